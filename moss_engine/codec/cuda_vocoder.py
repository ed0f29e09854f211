"""BigVGAN on a GPU: half precision, fused activations, and a CUDA graph for each number and length of windows."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moss_engine.errors import MissingPackageError

COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of windows that graphs are made for; others run in the next larger one."""


def fuse(network: nn.Module) -> None:
    """Give a generator, built and filled, the GPU's activations; raises MissingPackageError without Triton."""
    if importlib.util.find_spec("triton") is None:
        raise MissingPackageError("The vocoder on a GPU needs the package triton, which CUDA builds of PyTorch bring "
                                  "along; install it with `pip install triton`, or use --device cpu.")
    from moss_engine.runtime.kernels.snake import fuse_activations

    fuse_activations(network)


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    mel: Tensor
    wave: Tensor


class CudaVocoder:
    """Log-mel float32 [batch, num_mels, frames] -> samples float32 [batch, 1, frames * hop_size].

    `frames` must be one of `lengths`, the batch at most `max_together`. Everything is captured when it is made; calls
    come from one thread at a time, and run on its current CUDA stream.
    """

    def __init__(self, network: nn.Module, num_mels: int, lengths: Sequence[int], max_together: int,
                 device: torch.device, dtype: torch.dtype = torch.float16) -> None:
        network = network.to(device, dtype)
        counts = [*(count for count in COUNTS if count < max_together), max_together]
        memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self._counts = counts
        self._graphs: dict[tuple[int, int], _Graph] = {}
        # the largest first: the smaller ones find their memory in the pool
        quick = torch.backends.cudnn.flags(enabled=True, benchmark=True)
        with torch.cuda.device(device), quick, torch.inference_mode():
            for frames in sorted(lengths, reverse=True):
                for count in reversed(counts):
                    mel = torch.zeros(count, num_mels, frames, device=device, dtype=dtype)
                    with torch.cuda.stream(stream):
                        network(mel)  # chooses algorithms and compiles kernels, which must not happen during capture
                    stream.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=memory, stream=stream):
                        wave = network(mel)
                    self._graphs[count, frames] = _Graph(graph, mel, wave)

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        batch, _, frames = mel.shape
        graph = self._graphs[next(count for count in self._counts if count >= batch), frames]
        graph.mel[:batch].copy_(mel)
        graph.graph.replay()
        return graph.wave[:batch].to(torch.float32, copy=True)
