"""The published MOSS-Speech codec."""
