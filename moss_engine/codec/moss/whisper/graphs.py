"""The speech encoder's network as CUDA graphs of a few lengths, for one segment at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LENGTHS = (13, 25, 38, 50, 63, 75, 100, 125)
"""In codes: of 1 s to 10 s of speech. Longer ones are not limited by launches, and their graphs
would keep memory that grows with the square of the length."""


class EncoderGraphs:
    """Runs `encode`, features float32 [1, bands, frames] -> codes int64 [1, codes], from graphs.

    What was captured for a longer segment gives the same codes: the network is causal, and what is
    padded lies behind. Any thread may call.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        bands: int,
        frames_per_code: int,
        device: torch.device,
        lengths: tuple[int, ...] = LENGTHS,
    ) -> None:
        self._encode, self._frames_per_code = encode, frames_per_code
        self._lock = threading.Lock()
        self._shapes: dict[int, tuple[Tensor, Tensor, Callable[[], None]]] = {}
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        for length in sorted(lengths, reverse=True):  # the longest takes the most memory
            features = torch.zeros(1, bands, length * frames_per_code, device=device)
            self._shapes[features.shape[2]] = features, *self._captured(features, memory)

    @torch.inference_mode()
    def _captured(self, features: Tensor, memory: Any) -> tuple[Tensor, Callable[[], None]]:
        """Where the codes of `features` appear, and what makes them: on a CPU the network."""
        codes = self._encode(features)
        if memory is None:

            def run() -> None:
                codes.copy_(self._encode(features))

            return codes, run
        stream = torch.cuda.Stream(features.device)
        stream.wait_stream(torch.cuda.current_stream(features.device))
        with torch.cuda.stream(stream):
            self._encode(features)  # chooses algorithms, which capture must not do
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory, stream=stream):
            codes = self._encode(features)
        return codes, graph.replay

    def __call__(self, features: Tensor) -> Tensor | None:
        """Codes of one segment [1, bands, frames]; None where it is longer than every graph."""
        frames = features.shape[2]
        length = min((found for found in self._shapes if found >= frames), default=None)
        if length is None:
            return None
        given, codes, run = self._shapes[length]
        with self._lock:
            given[:, :, :frames] = features
            given[:, :, frames:] = 0
            run()
            return codes[:, : frames // self._frames_per_code].clone()
