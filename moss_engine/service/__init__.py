"""The service: engine thread, codec thread and the listeners of replies."""
