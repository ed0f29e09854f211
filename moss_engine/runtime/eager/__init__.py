"""The PyTorch runtime for any device."""
