"""The brain: a chat server of one's choice that thinks of the answers."""
