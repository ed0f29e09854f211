"""Talking: what was said as text -> an answer, read out sentence by sentence by the service."""
