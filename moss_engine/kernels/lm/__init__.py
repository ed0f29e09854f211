"""Triton kernels of the language model: attention, products, sampling."""
