"""Recordings and the microphone of visitors."""
