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
