"""When is somebody's turn over: turns with and without pauses, and what is learned from them."""
