"""Conversations with programs, in text or speech."""
