"""The realtime interface: a WebSocket on which somebody speaks, listens and interrupts."""
