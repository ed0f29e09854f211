"""Rows of activations as float8, each with its own scale, for products in which both sides are float8."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.runtime.kernels.launch import next_power_of_2, options, wait_for_previous

LARGEST = 448.0  # of e4m3


@triton.jit
def _quantise_kernel(x_ptr, values_ptr, scale_ptr, size, LIMIT: tl.constexpr, TILE: tl.constexpr,
                     OVERLAP: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, TILE)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + row.to(tl.int64) * size + columns, mask=columns < size, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0) / LIMIT, 1e-12)
    tl.store(values_ptr + row.to(tl.int64) * size + columns, (x / scale).to(values_ptr.dtype.element_ty),
             mask=columns < size)
    tl.store(scale_ptr + row, scale)


def quantise_rows(x: Tensor, values: Tensor, scale: Tensor) -> None:
    """x [rows, size] -> values float8 of the same shape and scale float32 [rows], x = values * scale."""
    rows, size = x.shape
    tile = next_power_of_2(size)
    _quantise_kernel[(rows,)](x, values, scale, size, LIMIT=LARGEST, TILE=tile, **options(16 if tile > 4096 else 8))
