"""What other programs speak to: OpenAI's HTTP interfaces, keys and figures for monitoring."""
