"""Kernels of the flow's estimator: norms, activations and convolution windows, each with all that stands around it in
the network. Rows are [streams * 2 branches * frames, channels]; `meta` is described in `flow_meta`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.runtime.kernels.flow_meta import BRANCHES, WIDTH, field, place, precision
from moss_engine.runtime.kernels.launch import next_power_of_2, options, wait_for_previous

_TAPS = tl.constexpr(3)


@triton.jit
def _normed(x, weight_ptr, bias_ptr, columns, inside, size, eps):
    mean = tl.sum(x, 0) / size
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / size + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0)
    return centred * scale * weight + bias


@triton.jit
def _mish(x):
    """x tanh(log(1 + e^x))"""
    grown = tl.exp(tl.minimum(x, 20.0))
    product = grown * (grown + 2.0)
    return x * tl.where(x > 20.0, 1.0, product / (product + 2.0))


@triton.jit
def _note(normed, meta_ptr, anchor_ptr, layer, row, frames, columns, inside, size):
    """Write a normed row to the ring of its stream; `layer` counts through all steps."""
    stream, branch, frame = row // (frames * BRANCHES), (row // frames) % BRANCHES, row % frames
    slot = (layer * BRANCHES + branch) * field(meta_ptr, stream, 1) + field(meta_ptr, stream, 2) + frame
    tl.store(anchor_ptr + place(meta_ptr, stream, 0) + slot * size + columns, normed.to(anchor_ptr.dtype.element_ty),
             mask=inside)


@triton.jit
def _spread(value, out_ptr, anchor_ptr, meta_ptr, layer, copy, tail_size, row, frames, columns, inside, size):
    """Write a row beside its successors, and what the next chunk's convolution looks back to to the stream's memory.

    `layer` is the convolution's number through all steps, `copy` how many there are, `tail_size` the width of a row in
    the memory.
    """
    stream, branch, frame = row // (frames * BRANCHES), (row // frames) % BRANCHES, row % frames
    value = value.to(out_ptr.dtype.element_ty)
    wide = size * _TAPS
    for back in tl.static_range(3):
        tl.store(out_ptr + (row + back) * wide + (2 - back) * size + columns, value,
                 mask=columns < tl.where(frame + back < frames, size, 0))
    tails = anchor_ptr + place(meta_ptr, stream, 7)
    parity = field(meta_ptr, stream, 8)
    if frame == 0:
        read = tails + ((parity * copy + layer) * BRANCHES + branch) * 2 * tail_size
        first = tl.load(read + columns, mask=inside, other=0.0)
        second = tl.load(read + tail_size + columns, mask=inside, other=0.0)
        tl.store(out_ptr + row * wide + columns, first, mask=inside)
        tl.store(out_ptr + row * wide + size + columns, second, mask=inside)
        tl.store(out_ptr + (row + 1) * wide + columns, second, mask=inside)
    if frame >= frames - 2:
        write = tails + (((1 - parity) * copy + layer) * BRANCHES + branch) * 2 * tail_size
        tl.store(write + (frame - (frames - 2)) * tail_size + columns, value, mask=inside)


@triton.jit(do_not_specialize=["layer", "copy"])
def _window_kernel(x_ptr, delta_ptr, out_ptr, anchor_ptr, meta_ptr, layer, copy, tail_size, frames, size,
                   TILE: tl.constexpr, ADDS: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < size
    value = tl.load(x_ptr + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(delta_ptr + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    _spread(value, out_ptr, anchor_ptr, meta_ptr, layer, copy, tail_size, row, frames, columns, inside, size)


@triton.jit(do_not_specialize=["layer", "copy"])
def _mish_window_kernel(y_ptr, stride, weight_ptr, bias_ptr, time_ptr, out_ptr, anchor_ptr, meta_ptr, layer, copy,
                        tail_size, frames, size, eps, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < size
    time = tl.load(time_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    y = tl.load(y_ptr + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    value = _mish(_normed(y, weight_ptr, bias_ptr, columns, inside, size, eps)) + time
    _spread(value, out_ptr, anchor_ptr, meta_ptr, layer, copy, tail_size, row, frames, columns, inside, size)


@triton.jit(do_not_specialize=["layer"])
def _mish_note_kernel(y_ptr, weight_ptr, bias_ptr, straight_ptr, stride, x_ptr, norm_weight_ptr, norm_bias_ptr, out_ptr,
                      anchor_ptr, meta_ptr, layer, frames, size, eps, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < size
    y = tl.load(y_ptr + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    x = _mish(_normed(y, weight_ptr, bias_ptr, columns, inside, size, eps))
    x += tl.load(straight_ptr + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ptr + row * size + columns, x, mask=inside)
    normed = _normed(x, norm_weight_ptr, norm_bias_ptr, columns, inside, size, eps)
    tl.store(out_ptr + row * size + columns, normed.to(out_ptr.dtype.element_ty), mask=inside)
    _note(normed, meta_ptr, anchor_ptr, layer, row, frames, columns, inside, size)


@triton.jit(do_not_specialize=["layer"])
def _norm_linear_kernel(x_ptr, delta_ptr, gain_ptr, shift_ptr, weight_ptr, bias_ptr, x_out_ptr, out_ptr, anchor_ptr,
                        meta_ptr, layer, count, frames, size, outputs, eps, TILE: tl.constexpr, ROWS: tl.constexpr,
                        COLS: tl.constexpr, FEEDS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """norm(x + delta) times a matrix; FEEDS: with bias and GELU, else the norm is noted."""
    kind = out_ptr.dtype.element_ty
    columns = tl.arange(0, TILE)
    inside = columns < size
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    weight = tl.load(weight_ptr + cols[:, None] * size + columns[None, :],
                     mask=(cols < outputs)[:, None] & inside[None, :], other=0.0)
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    shift = tl.load(shift_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if not FEEDS:  # asked for early, as an answer takes time
        stream, branch = rows // (frames * BRANCHES), (rows // frames) % BRANCHES
        fields, asks = meta_ptr + stream * WIDTH, (rows < count) & (tl.program_id(0) == 0)
        notes = tl.multiple_of(tl.load(fields, mask=asks, other=0), 16)
        capacity, slot = tl.load(fields + 1, mask=asks, other=0), tl.load(fields + 2, mask=asks, other=0)
    cells = rows[:, None] * size + columns[None, :]
    wanted = (rows < count)[:, None] & inside[None, :]
    x = tl.load(x_ptr + cells, mask=wanted, other=0.0)
    x += tl.load(delta_ptr + cells, mask=wanted, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / size
    centred = tl.where(wanted, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / size + eps)
    normed = (centred * scale[:, None] * gain[None, :] + shift[None, :]).to(kind)
    y = tl.dot(normed, tl.trans(weight), input_precision=PRECISION)
    if tl.program_id(0) == 0:
        tl.store(x_out_ptr + cells, x, mask=wanted)
    if FEEDS:
        y += tl.load(bias_ptr + cols, mask=cols < outputs, other=0.0).to(tl.float32)[None, :]
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif tl.program_id(0) == 0:
        noted = (layer.to(tl.int64) * BRANCHES + branch) * capacity + slot + rows % frames
        tl.store(anchor_ptr + (notes + noted * size)[:, None] + columns[None, :], normed, mask=wanted)
    tl.store(out_ptr + rows[:, None] * outputs + cols[None, :], y.to(kind),
             mask=(rows < count)[:, None] & (cols < outputs)[None, :])


def window(x: Tensor, delta: Tensor | None, anchor: Tensor, meta: Tensor, layer: int, copy: int, tail_size: int,
           frames: int, dtype: torch.dtype) -> Tensor:
    """x (+ delta) [rows, size] -> [rows, 3 * size] of `dtype`: each row behind its two predecessors."""
    rows, size = x.shape
    out = torch.empty(rows, 3 * size, device=x.device, dtype=dtype)
    _window_kernel[(rows,)](x, x if delta is None else delta, out, anchor, meta, layer, copy, tail_size, frames, size,
                            TILE=next_power_of_2(size), ADDS=delta is not None, **options(4))
    return out


def mish_window(y: Tensor, weight: Tensor, bias: Tensor, time: Tensor, eps: float, anchor: Tensor, meta: Tensor,
                layer: int, copy: int, tail_size: int, frames: int) -> Tensor:
    """mish(norm(y)) + time, y [rows, size] with any row stride -> [rows, 3 * size] as `window` does."""
    rows, size = y.shape
    out = torch.empty(rows, 3 * size, device=y.device, dtype=y.dtype)
    _mish_window_kernel[(rows,)](y, y.stride(0), weight, bias, time, out, anchor, meta, layer, copy, tail_size, frames,
                                 size, eps, TILE=next_power_of_2(size), **options(4))
    return out


def mish_note(y: Tensor, weight: Tensor, bias: Tensor, straight: Tensor, norm_weight: Tensor, norm_bias: Tensor,
              eps: float, anchor: Tensor, meta: Tensor, layer: int, frames: int) -> tuple[Tensor, Tensor]:
    """x = mish(norm(y)) + straight -> x float32 and its norm, noted for `layer`."""
    rows, size = y.shape
    x, out = torch.empty(rows, size, device=y.device, dtype=torch.float32), torch.empty_like(y)
    _mish_note_kernel[(rows,)](y, weight, bias, straight, straight.stride(0), x, norm_weight, norm_bias, out, anchor,
                               meta, layer, frames, size, eps, TILE=next_power_of_2(size), **options(4))
    return x, out


def norm_query(x: Tensor, delta: Tensor, gain: Tensor, shift: Tensor, eps: float, weight: Tensor, anchor: Tensor,
               meta: Tensor, layer: int, frames: int) -> tuple[Tensor, Tensor]:
    """-> x + delta, and its norm times `weight` [outputs, size]; the norm is noted for `layer`."""
    return _norm_linear(x, delta, gain, shift, eps, weight, None, anchor, meta, layer, frames)


def norm_feed(x: Tensor, delta: Tensor, gain: Tensor, shift: Tensor, eps: float, weight: Tensor, bias: Tensor,
              ) -> tuple[Tensor, Tensor]:
    """-> x + delta, and gelu(norm of it times `weight` [outputs, size] + bias)"""
    return _norm_linear(x, delta, gain, shift, eps, weight, bias, delta, None, 0, 1)


def _norm_linear(x: Tensor, delta: Tensor, gain: Tensor, shift: Tensor, eps: float, weight: Tensor,
                 bias: Tensor | None, anchor: Tensor, meta: Tensor | None, layer: int, frames: int,
                 ) -> tuple[Tensor, Tensor]:
    (count, size), outputs = x.shape, len(weight)
    x_out, out = torch.empty_like(x), delta.new_empty(count, outputs)
    rows, cols = (16, 64) if count <= 64 else (32, 64)
    _norm_linear_kernel[(triton.cdiv(outputs, cols), triton.cdiv(count, rows))](
        x, delta, gain, shift, weight, weight if bias is None else bias, x_out, out, anchor,
        anchor if meta is None else meta, layer, count, frames, size, outputs, eps,
        TILE=max(16, next_power_of_2(size)), ROWS=rows, COLS=cols, FEEDS=bias is not None, PRECISION=precision(delta),
        **options(4 if rows == 16 else 8))
    return x_out, out
