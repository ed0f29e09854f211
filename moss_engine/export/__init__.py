"""Offline: from a converted checkpoint to engine files. Serving never imports this package."""
