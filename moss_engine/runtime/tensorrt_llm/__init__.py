"""The runtime of TensorRT-LLM's attention plugin."""
