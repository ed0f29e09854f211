"""A stream of the GPU of a codec's own: its work runs beside the language model's, not behind it,
and goes first where both want the same processors: a codec's kernels are many and short, and each
would wait for a long one."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

GRAPH_BATCHES = (1, 2, 4, 8, 16)
"""Batch sizes with a CUDA graph of their own; a batch runs in the next larger one."""


def open_lane(device: torch.device) -> torch.cuda.Stream | None:
    """A new stream of a GPU, None for a CPU; graphs that are captured on it keep its priority."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def on_lane(lane: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Run the body on `lane`; with None nothing changes, and an unused GPU stays asleep."""
    return contextlib.nullcontext() if lane is None else torch.cuda.stream(lane)
