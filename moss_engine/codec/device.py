"""What networks of codecs share on a device.

A codec has a stream of the GPU of its own: its work runs beside the language model's, not behind
it, and goes first where both want the same processors: a codec's kernels are many and short, and
each would wait for a long one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, pad

Result = TypeVar("Result")
GRAPH_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes with a CUDA graph of their own; a batch runs in the next larger one."""


def open_lane(device: torch.device) -> torch.cuda.Stream | None:
    """A new stream of a GPU, None for a CPU; graphs that are captured on it keep its priority."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def on_lane(lane: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Run the body on `lane`; with None nothing changes, and an unused GPU stays asleep."""
    return contextlib.nullcontext() if lane is None else torch.cuda.stream(lane)


def captured(
    run: Callable[[], Result], lane: torch.cuda.Stream, pool: Any
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """`run` as a CUDA graph of that memory pool, and its results, which every replay makes anew.

    It is run once before, as kernels are compiled and algorithms chosen then, which capture must
    not do.
    """
    lane.wait_stream(torch.cuda.current_stream(lane.device))
    with torch.cuda.stream(lane):
        run()
    lane.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=lane):
        results = run()
    return graph, results


def on_host(waves: list[Tensor]) -> list[np.ndarray]:
    """Samples float32 [n] of each, by one copy from the device; no piece keeps the others'
    memory."""
    joined = torch.cat(waves).float()
    if joined.is_cuda:
        # into pinned memory, since other threads could start nothing during a copy to other memory
        host = torch.empty(joined.shape, pin_memory=True)
        host.copy_(joined, non_blocking=True)
        torch.cuda.current_stream(joined.device).synchronize()
        joined = host
    pieces = np.split(joined.numpy(), np.cumsum([len(wave) for wave in waves[:-1]]))
    return [piece.copy() for piece in pieces]


@dataclass(frozen=True)
class Affine:
    """weight [outputs, inputs], bias [outputs]; of a norm both [size]"""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Format:
    """Of signals [batch, channels, 1, samples]. `fused`: each activation is one kernel of a GPU,
    which also adds up what comes before it, and channels come last, as convolutions on tensor cores
    want them."""

    dtype: torch.dtype
    fused: bool

    def of(self, x: Tensor) -> Tensor:
        layout = torch.channels_last if self.fused else torch.contiguous_format
        return x.contiguous(memory_format=layout)


class Convolution:
    """weight [outputs, inputs, 1, taps], of a transposed one [inputs, outputs, 1, taps]; bias
    float32. With `inputs` and `outputs` more channels that are zero."""

    def __init__(self, affine: Affine, form: Format, *, inputs: int = 0, outputs: int = 0) -> None:
        weight = pad(affine.weight, (0, 0, 0, inputs, 0, outputs))[:, :, None].to(form.dtype)
        self.weight, self.bias = form.of(weight), pad(affine.bias, (0, outputs)).float()
        self._form = form

    def __call__(
        self, x: Tensor, padding: int, dilation: int = 1, stride: int = 1, *, biased: bool = True
    ) -> Tensor:
        """[batch, inputs, 1, samples] -> the same form"""
        y = conv2d(x, self.weight, stride=(1, stride), padding=(0, padding), dilation=(1, dilation))
        return self._biased(y) if biased else self._form.of(y)

    def transposed(self, x: Tensor, padding: int, stride: int) -> Tensor:
        """[batch, inputs, 1, samples] -> `stride` times as many samples"""
        return self._biased(
            conv_transpose2d(x, self.weight, stride=(1, stride), padding=(0, padding))
        )

    def _biased(self, y: Tensor) -> Tensor:
        return self._form.of(y) + self.bias[:, None, None].to(y.dtype)


class Graph:
    """`run(*inputs)` as a CUDA graph, for inputs of those sizes."""

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        lane: torch.cuda.Stream,
        pool: Any,
    ) -> None:
        self._inputs = inputs
        self._graph, self._outputs = captured(lambda: run(*inputs), lane, pool)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The outputs for these inputs, of which there may be fewer than there is room for."""
        count = len(given[0])
        for place, values in zip(self._inputs, given, strict=True):
            place[:count].copy_(values)
        self._graph.replay()
        return tuple(output[:count].clone() for output in self._outputs)
