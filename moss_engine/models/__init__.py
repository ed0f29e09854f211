"""The MOSS-Speech network in plain PyTorch, its configuration and its strict checkpoint loader."""
