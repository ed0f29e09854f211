"""How the kernels of the flow's estimator are tiled, by rows, number format and GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from moss_engine.kernels.codec.flow_meta import Tiles

_MOST_SHARED = 150 << 10
"""Bytes of shared memory that the largest program of a plan takes."""

_FLOAT32 = {
    "convolve": (8, 32, 1, 8, 1),
    "wide": (8, 32, 1, 8, 1),
    "bend": (8, 32, 1, 8, 1),
    "query": (8, 64, 1, 8, 1),
    "attend": (16, 16, 4, 8, 1),
    "join": (8, 64, 8, 8, 1),
    "feed": (8, 64, 16, 8, 1),
}
_UP_TO_80_ROWS = {
    "convolve": (8, 64, 1, 4),
    "wide": (8, 64, 1, 4),
    "bend": (8, 64, 1, 4),
    "query": (8, 64, 1, 4),
    "attend": (16, 64, 8, 4),
    "join": (16, 64, 8, 4),
    "feed": (8, 128, 8, 8),
}
_UP_TO_80_ROWS_SMALL = {**_UP_TO_80_ROWS, "feed": (8, 64, 8, 8)}
_MORE_ROWS_SMALL = {
    "convolve": (32, 64, 1, 4),
    "wide": (32, 64, 1, 4),
    "bend": (32, 64, 1, 4),
    "query": (32, 64, 1, 4),
    "attend": (64, 64, 1, 4),
    "join": (64, 64, 4, 8),
    "feed": (32, 64, 4, 8),
}
_UP_TO_160_ROWS = {
    "convolve": (16, 128, 1, 8),
    "wide": (16, 64, 1, 4),
    "bend": (8, 64, 1, 4),
    "query": (8, 128, 1, 8),
    "attend": (32, 64, 2, 8, 3),
    "join": (16, 64, 8, 4),
    "feed": (16, 128, 8, 8),
}
_MORE_ROWS = {
    "convolve": (32, 128, 1, 8),
    "wide": (32, 64, 1, 4),
    "bend": (32, 128, 1, 8),
    "query": (32, 256, 1, 8),
    "attend": (64, 64, 1, 4, 3),
    "join": (64, 128, 4, 8),
    "feed": (32, 128, 4, 8),
}


@dataclass(frozen=True)
class Plan:
    """The tiles of every kernel.

    `convolve` is for convolutions, `wide` for those with wide inputs, `bend` for the second one of
    a stage; the others are a transformer's.
    """

    convolve: Tiles
    wide: Tiles
    bend: Tiles
    query: Tiles
    attend: Tiles
    join: Tiles
    feed: Tiles


def plan_of(rows: int, dtype: torch.dtype, shared_bytes: int) -> Plan:
    """The plan for `rows` rows on a GPU with `shared_bytes` of shared memory for a program.

    Programs are smaller in float32, which takes twice the room, and on GeForce cards, which have
    99 KB of shared memory.
    """
    from moss_engine.kernels.codec.flow_meta import Tiles

    is_small = shared_bytes < _MOST_SHARED
    if dtype == torch.float32:
        tiles = _FLOAT32
    elif is_small:
        tiles = _UP_TO_80_ROWS_SMALL if rows <= 80 else _MORE_ROWS_SMALL
    elif rows <= 80:
        tiles = _UP_TO_80_ROWS
    else:
        tiles = _UP_TO_160_ROWS if rows <= 160 else _MORE_ROWS
    return Plan(**{name: Tiles(*sizes) for name, sizes in tiles.items()})
