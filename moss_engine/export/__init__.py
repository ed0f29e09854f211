"""Offline: from a checkpoint to engine files. Serving never imports this package."""
