"""Triton kernels of the codec: flow, HiFT, Snake activations."""
