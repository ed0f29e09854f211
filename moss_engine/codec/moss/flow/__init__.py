"""Codes -> mel by flow matching."""
