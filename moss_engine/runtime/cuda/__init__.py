"""The PyTorch runtime for NVIDIA GPUs: CUDA graphs over own kernels."""
