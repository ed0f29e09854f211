"""Row-wise kernels: embedding, RMSNorm, the gated activation, a copy for each branch, and rounding
before and scaling after a product of float8 rows and weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous

_TILE = 2048


@triton.jit
def _embed_kernel(ids_ptr, text_table_ptr, audio_table_ptr, out_ptr, modality_pad, hidden,
                  TILE: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    text_id = tl.load(ids_ptr + row * 2)
    if text_id == modality_pad:
        source = audio_table_ptr + tl.load(ids_ptr + row * 2 + 1).to(tl.int64) * hidden
    else:
        source = text_table_ptr + text_id.to(tl.int64) * hidden
    values = tl.load(source + columns, mask=columns < hidden, other=0.0)
    tl.store(out_ptr + row.to(tl.int64) * hidden + columns, values, mask=columns < hidden)


@triton.jit(do_not_specialize=["rows_per_lane"])
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rows_per_lane, size, eps, TILE: tl.constexpr,
                     OVERLAP: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, TILE)
    inside = columns < size
    weight = tl.load(weight_ptr + (row // rows_per_lane) * size + columns, mask=inside,
                     other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + row.to(tl.int64) * size + columns, mask=inside, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight
    tl.store(out_ptr + row.to(tl.int64) * size + columns, x.to(out_ptr.dtype.element_ty),
             mask=inside)


@triton.jit
def _gate_kernel(gate_up_ptr, out_ptr, size, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    gate = tl.load(gate_up_ptr + row * 2 * size + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + columns, mask=inside, other=0.0).to(
        tl.float32)
    gate = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * size + columns, gate.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _repeat_kernel(source_ptr, target_ptr, num_source, size, TILE: tl.constexpr,
                   OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    source = row % num_source
    values = tl.load(source_ptr + source.to(tl.int64) * size + columns, mask=columns < size,
                     other=0.0)
    tl.store(target_ptr + row.to(tl.int64) * size + columns, values, mask=columns < size)


def repeat_rows(source: Tensor, target: Tensor) -> None:
    """Fill target [m, size] with the rows of source [n, size], over and over."""
    rows, size = target.shape
    tile = min(_TILE, next_power_of_2(size))
    _repeat_kernel[(rows, triton.cdiv(size, tile))](source, target, len(source), size, TILE=tile,
                                                    **options(4))


def embed(ids: Tensor, text_table: Tensor, audio_table: Tensor, modality_pad: int,
          out: Tensor) -> None:
    """ids [rows, 2] int32 -> out [rows, hidden]: the table of the channel that counts."""
    rows, hidden = out.shape
    tile = min(_TILE, next_power_of_2(hidden))
    _embed_kernel[(rows, triton.cdiv(hidden, tile))](ids, text_table, audio_table, out,
                                                     modality_pad, hidden, TILE=tile, **options(4))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """x, out [lanes, rows, size]; weight [lanes, size]."""
    lanes, rows, size = x.shape
    tile = next_power_of_2(size)
    _rms_norm_kernel[(lanes * rows, )](x, weight, out, rows, size, eps, TILE=tile,
                                       **options(8 if tile >= 4096 else 4))


def gate(gate_up: Tensor, out: Tensor) -> None:
    """silu(gate) * up: gate_up [lanes, rows, 2 * size] -> out [lanes, rows, size]."""
    lanes, rows, size = out.shape
    tile = min(_TILE, next_power_of_2(size))
    _gate_kernel[(lanes * rows, triton.cdiv(size, tile))](gate_up, out, size, TILE=tile,
                                                          **options(4))


LARGEST = 448.0  # of e4m3


@triton.jit(do_not_specialize=["rows_per_lane"])
def _quantise_kernel(x_ptr, norm_ptr, values_ptr, scale_ptr, rows_per_lane, size, eps,
                     LIMIT: tl.constexpr, NORM: tl.constexpr, TILE: tl.constexpr,
                     OVERLAP: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, TILE)
    if NORM:
        norm = tl.load(norm_ptr + (row // rows_per_lane) * size + columns, mask=columns < size,
                       other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + row.to(tl.int64) * size + columns, mask=columns < size, other=0.0).to(
        tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * norm
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)  # as `rms_norm` would have left it
    scale = tl.maximum(tl.max(tl.abs(x), 0) / LIMIT, 1e-12)
    tl.store(values_ptr + row.to(tl.int64) * size + columns, (x / scale).to(
        values_ptr.dtype.element_ty), mask=columns < size)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _rescale_kernel(product_ptr, row_scale_ptr, scale_ptr, residual_ptr, out_ptr, size,
                    RESIDUAL: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    scale = tl.load(scale_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    x = tl.load(product_ptr + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    x *= scale * tl.load(row_scale_ptr + row)
    if RESIDUAL:
        x += tl.load(residual_ptr + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * size + columns, x.to(out_ptr.dtype.element_ty), mask=inside)


def quantise_rows(x: Tensor, values: Tensor, scale: Tensor, norm: Tensor | None = None,
                  eps: float = 0.0) -> None:
    """x [rows, size] -> float8 values of the same shape and float32 scales [rows].

    norm [lanes, size]: x, whose rows are those of one lane after another, is RMS-normed first.
    """
    rows, size = x.shape
    tile = next_power_of_2(size)
    lane_rows = rows if norm is None else rows // len(norm)
    _quantise_kernel[(rows, )](x, x if norm is None else norm, values, scale, lane_rows, size, eps,
                               LIMIT=LARGEST, NORM=norm is not None, TILE=tile,
                               **options(16 if tile > 4096 else 8))


def rescale(product: Tensor, row_scale: Tensor, scale: Tensor, out: Tensor,
            residual: Tensor | None = None) -> None:
    """out [rows, size] = product * row_scale [rows] * scale [size] (+ residual)."""
    rows, size = out.shape
    tile = min(_TILE, next_power_of_2(size))
    _rescale_kernel[(rows, triton.cdiv(
        size, tile))](product, row_scale, scale, out if residual is None else residual, out, size,
                      RESIDUAL=residual is not None, TILE=tile, **options(4))
