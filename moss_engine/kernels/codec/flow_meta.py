"""How the flow's kernels find streams' memories, so that one graph serves any streams.

`meta` int64 [streams, FIELDS] says where each memory is and how much of it counts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


class Field(enum.IntEnum):
    """Columns of `meta`. `capacity`, `slot` and `seen` count frames of the ring: all, those before
    the chunk's place, and those that hold something, the chunk's included, of which `valid` are
    real. `prompt_frames` are the prompt's. All others but `parity` are places: elements after
    `anchor`, a tensor of the memories' number format. So a kernel's addresses begin at an argument,
    whose alignment the compiler knows, as it does not that of a number that it loads.
    """

    notes = 0
    capacity = 1
    slot = 2
    seen = 3
    valid = 4
    prompt_notes = 5
    prompt_frames = 6
    tails = 7
    parity = 8
    low_rows = 9
    low_waves = 10
    low_past_rows = 11
    low_past_waves = 12
    high_rows = 13
    high_waves = 14
    high_past_rows = 15
    high_past_waves = 16


@dataclass(frozen=True)
class Chunks:
    """The chunks of `frames` frames that a run works on, and where their streams' memories are."""

    anchor: Tensor
    meta: Tensor
    frames: int


@dataclass(frozen=True)
class Tiles:
    """Tiling of a kernel: rows and columns of a program, split sums, warps, stages."""

    rows: int
    cols: int
    parts: int
    warps: int
    stages: int = 2


FIELDS = len(Field)
BRANCHES = tl.constexpr(2)
WIDTH = tl.constexpr(FIELDS)


@triton.jit
def field(meta_ptr, stream, FIELD: tl.constexpr):
    return tl.load(meta_ptr + stream * WIDTH + FIELD)


@triton.jit
def place(meta_ptr, stream, FIELD: tl.constexpr):
    """A place; tensors begin at multiples of 16 elements."""
    return tl.multiple_of(tl.load(meta_ptr + stream * WIDTH + FIELD), 16)


def precision(like: Tensor) -> str:
    """Precision of products: float32 ones take three tensor-core passes, nearly exact."""
    return "tf32x3" if like.dtype == torch.float32 else "tf32"
