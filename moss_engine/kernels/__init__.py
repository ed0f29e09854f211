"""Triton kernels of the CUDA runtime. Importing this package needs Triton, which CUDA builds of
PyTorch bring along."""
