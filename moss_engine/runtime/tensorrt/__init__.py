"""The runtimes of TensorRT and TensorRT-RTX."""
