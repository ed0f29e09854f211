"""Questions on their way: doubts, replay files and own voices."""
