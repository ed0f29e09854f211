"""The page: layout, wiring and the live player."""
