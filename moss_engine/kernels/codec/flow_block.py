"""A transformer of the flow's estimator around its attention, in three kernels.

Norm and queries; output projection; norm and feed-forward. Of many rows, whose tiles have no
columns, the library makes the products. Rows and parts are described in `flow_rows`, `meta` in
`flow_meta`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import gelu, linear

from moss_engine.kernels.codec.flow_meta import BRANCHES, WIDTH, Chunks, Tiles, precision
from moss_engine.kernels.codec.flow_rows import mish, normed, summed
from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous


@dataclass(frozen=True)
class Stream:
    """The residual stream: x float32 [rows, size] plus pending `parts` [parts, rows, size]."""

    x: Tensor
    parts: Tensor

    def total(self) -> Tensor:
        """float32 [rows, size]"""
        return self.x + self.parts.sum(0, dtype=torch.float32)


def settled(x: Tensor) -> Stream:
    """Rows to which nothing is to be added."""
    return Stream(x, x.new_empty(0, *x.shape))


@triton.jit(do_not_specialize=["layer", "count"])
def _query_kernel(x_ptr, parts_ptr, mish_gain_ptr, mish_shift_ptr, straight_ptr, straight_stride,
                  gain_ptr, shift_ptr, weight_ptr, x_out_ptr, out_ptr, anchor_ptr, meta_ptr, layer,
                  count, frames, size, outputs, eps, PARTS: tl.constexpr, STRAIGHTS: tl.constexpr,
                  NOTES: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                  PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """With STRAIGHTS, x is the second convolution of a stage, to be normed, bent and put on the
    straight path, which has so many parts. Without COLS the norm itself goes out; with NOTES it is
    kept for later chunks, too."""
    dtype = out_ptr.dtype.element_ty
    columns = tl.arange(0, TILE)
    inside = columns < size
    if COLS:
        cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
        weight = tl.load(weight_ptr + cols[:, None] * size + columns[None, :],
                         mask=(cols < outputs)[:, None] & inside[None, :], other=0.0)
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    shift = tl.load(shift_ptr + columns, mask=inside, other=0.0)
    if STRAIGHTS:
        mish_gain = tl.load(mish_gain_ptr + columns, mask=inside, other=0.0)
        mish_shift = tl.load(mish_shift_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if NOTES:
        stream, branch = rows // (frames * BRANCHES), (rows // frames) % BRANCHES
        fields, asks = meta_ptr + stream * WIDTH, (rows < count) & (tl.program_id(0) == 0)
        notes = tl.multiple_of(tl.load(fields, mask=asks, other=0), 16)
        capacity = tl.load(fields + 1, mask=asks, other=0)
        slot = tl.load(fields + 2, mask=asks, other=0)
    cells = rows[:, None] * size + columns[None, :]
    wanted = (rows < count)[:, None] & inside[None, :]
    x = summed(x_ptr, parts_ptr, cells, wanted, count * size, PARTS)
    if STRAIGHTS:
        x = mish(normed(x, mish_gain, mish_shift, inside, size, eps))
        straight = straight_ptr + rows[:, None] * straight_stride + columns[None, :]
        for part in tl.static_range(STRAIGHTS):
            x += tl.load(straight + part * count * straight_stride, mask=wanted, other=0.0).to(
                tl.float32)
    noted = normed(x, gain, shift, inside, size, eps).to(dtype)
    if COLS:
        y = tl.trans(tl.dot(weight, tl.trans(noted), input_precision=PRECISION))
        tl.store(out_ptr + rows[:, None] * outputs + cols[None, :], y.to(dtype),
                 mask=(rows < count)[:, None] & (cols < outputs)[None, :])
    else:
        tl.store(out_ptr + cells, noted, mask=wanted)
    if tl.program_id(0) == 0:
        tl.store(x_out_ptr + cells, x, mask=wanted)
    if NOTES and (tl.program_id(0) == 0):
        at = (layer.to(tl.int64) * BRANCHES + branch) * capacity + slot + rows % frames
        tl.store(anchor_ptr + (notes + at * size)[:, None] + columns[None, :], noted, mask=wanted)


@triton.jit
def _mixed(parts_ptr, tops_ptr, rows, head, heads, count, columns, wanted, size,
           SPLITS: tl.constexpr):
    """What the queries of one head mixed: the SPLITS parts, by the sums of their weights"""
    at = rows * heads + head
    if SPLITS == 1:
        return tl.load(parts_ptr + at[:, None] * size + columns[None, :], mask=wanted, other=0.0)
    top = tl.load(tops_ptr + at, mask=rows < count, other=0.0)
    for split in tl.static_range(1, SPLITS):
        top = tl.maximum(
            top, tl.load(tops_ptr + split * count * heads + at, mask=rows < count, other=0.0))
    total = tl.zeros_like(top)
    mixed = tl.zeros([at.shape[0], columns.shape[0]], tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(
            tl.load(tops_ptr + split * count * heads + at, mask=rows < count, other=0.0) - top)
        part = tl.load(
            parts_ptr + split * count * heads * size + at[:, None] * size + columns[None, :],
            mask=wanted, other=0.0)
        total += share
        mixed += share[:, None] * part.to(tl.float32)
    return (mixed / total[:, None]).to(parts_ptr.dtype.element_ty)


@triton.jit(do_not_specialize=["count"])
def _join_kernel(parts_ptr, tops_ptr, weight_ptr, bias_ptr, out_ptr, count, heads, size,
                 SPLITS: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
                 COLS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """HEADS heads of each program, whose sums are one part"""
    columns, cols = tl.arange(0, TILE), tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside, here = columns < size, cols < size
    head = tl.program_id(2) * HEADS
    places = weight_ptr + cols[:, None] * heads * size + columns[None, :]
    weight = tl.load(places + head * size, mask=here[:, None] & inside[None, :], other=0.0)
    wait_for_previous(OVERLAP)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    wanted = (rows < count)[:, None] & inside[None, :]
    y = tl.zeros([COLS, ROWS], tl.float32)
    for number in tl.static_range(HEADS):
        mixed = _mixed(parts_ptr, tops_ptr, rows, head + number, heads, count, columns,
                       wanted & (head + number < heads), size, SPLITS)
        y = tl.dot(weight, tl.trans(mixed), y, input_precision=PRECISION)
        if number + 1 < HEADS:
            weight = tl.load(places + (head + number + 1) * size,
                             mask=here[:, None] & inside[None, :] & (head + number + 1 < heads),
                             other=0.0)
    if tl.program_id(2) == 0:
        y += tl.load(bias_ptr + cols, mask=here, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + (tl.program_id(2) * count + rows[:, None]) * size + cols[None, :],
             tl.trans(y).to(out_ptr.dtype.element_ty), mask=(rows < count)[:, None] & here[None, :])


@triton.jit(do_not_specialize=["count"])
def _feed_kernel(x_ptr, parts_ptr, gain_ptr, shift_ptr, first_ptr, first_bias_ptr, second_ptr,
                 second_bias_ptr, x_out_ptr, out_ptr, count, size, hidden, eps, PARTS: tl.constexpr,
                 SLABS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, SLAB: tl.constexpr,
                 PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """Each program takes SLABS slabs of the hidden columns; their sums are one part."""
    dtype = out_ptr.dtype.element_ty
    columns, slab = tl.arange(0, TILE), tl.arange(0, SLAB)
    inside = columns < size
    at = tl.program_id(0) * SLABS * SLAB + slab
    first = tl.load(first_ptr + at[:, None] * size + columns[None, :],
                    mask=(at < hidden)[:, None] & inside[None, :], other=0.0)
    second = tl.load(second_ptr + columns[:, None] * hidden + at[None, :],
                     mask=inside[:, None] & (at < hidden)[None, :], other=0.0)
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    shift = tl.load(shift_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    cells = rows[:, None] * size + columns[None, :]
    wanted = (rows < count)[:, None] & inside[None, :]
    x = summed(x_ptr, parts_ptr, cells, wanted, count * size, PARTS)
    if tl.program_id(0) == 0:
        tl.store(x_out_ptr + cells, x, mask=wanted)
    noted = normed(x, gain, shift, inside, size, eps).to(dtype)
    y = tl.zeros([TILE, ROWS], tl.float32)
    for number in tl.static_range(SLABS):
        bent = tl.dot(first, tl.trans(noted), input_precision=PRECISION)
        bent += tl.load(first_bias_ptr + at, mask=at < hidden, other=0.0).to(tl.float32)[:, None]
        bent = (0.5 * bent * (1.0 + tl.erf(bent * 0.7071067811865476))).to(dtype)
        y = tl.dot(second, bent, y, input_precision=PRECISION)
        if number + 1 < SLABS:
            at += SLAB
            first = tl.load(first_ptr + at[:, None] * size + columns[None, :],
                            mask=(at < hidden)[:, None] & inside[None, :], other=0.0)
            second = tl.load(second_ptr + columns[:, None] * hidden + at[None, :],
                             mask=inside[:, None] & (at < hidden)[None, :], other=0.0)
    if tl.program_id(0) == 0:
        y += tl.load(second_bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + tl.program_id(0) * count * size + cells, tl.trans(y).to(dtype), mask=wanted)


def first_query(y: Tensor, gain: Tensor, shift: Tensor, straight: Tensor, norm_gain: Tensor,
                norm_shift: Tensor, weight: Tensor, eps: float, chunks: Chunks, layer: int,
                tiles: Tiles) -> tuple[Tensor, Tensor]:
    """First queries of a stage: x = mish(norm(y)) + straight, then its norm times `weight`.

    y and straight are parts [parts, rows, size], weight [outputs, size]; the norm is noted for
    `layer`.
    """
    assert straight.stride(0) == straight.shape[1] * straight.stride(1), "parts follow one another"
    return _query(Stream(y[0], y[1:]), (gain, shift), straight, norm_gain, norm_shift, weight, eps,
                  chunks, layer, tiles)


def query(stream: Stream, gain: Tensor, shift: Tensor, weight: Tensor, eps: float, chunks: Chunks,
          layer: int, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """The summed stream and its norm times `weight` [outputs, size]; noted for `layer`."""
    nothing = stream.x.new_empty(0, *stream.x.shape)
    return _query(stream, (gain, shift), nothing, gain, shift, weight, eps, chunks, layer, tiles)


def _query(stream: Stream, bent: tuple[Tensor, Tensor], straight: Tensor, gain: Tensor,
           shift: Tensor, weight: Tensor, eps: float, chunks: Chunks | None, layer: int,
           tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Without columns in `tiles` the product is left to the library, and without `chunks` to the
    caller."""
    x, parts = stream.x, stream.parts
    (count, size), outputs = x.shape, len(weight) if tiles.cols else x.shape[1]
    x_out = torch.empty(count, size, device=x.device)
    out = torch.empty(count, outputs, device=x.device, dtype=weight.dtype)
    anchor, meta, frames = (out, out, 1) if chunks is None else (chunks.anchor, chunks.meta,
                                                                 chunks.frames)
    grid = (triton.cdiv(outputs, tiles.cols or outputs), triton.cdiv(count, tiles.rows))
    _query_kernel[grid](x, parts, *bent, straight, straight.stride(1), gain, shift, weight, x_out,
                        out, anchor, meta, layer, count, frames, size, outputs, eps,
                        PARTS=len(parts), STRAIGHTS=len(straight), NOTES=chunks is not None,
                        TILE=_tile(size), ROWS=tiles.rows, COLS=tiles.cols,
                        PRECISION=precision(weight), **options(tiles.warps, tiles.stages))
    return x_out, out if tiles.cols or chunks is None else linear(out, weight)


def join(parts: Tensor, tops: Tensor, weight: Tensor, bias: Tensor, tiles: Tiles) -> Tensor:
    """Output projection: mixtures times `weight` [size, heads * size], as parts.

    Mixtures are parts [splits, rows * heads, size] with the binary logarithms of their weights'
    sums [splits, rows * heads]; the result is [parts, rows, size].
    """
    splits, queries, size = parts.shape
    heads = weight.shape[1] // size
    if not tiles.cols:
        assert splits == 1, "the library does not mix parts"
        return linear(parts.view(-1, heads * size), weight, bias)[None]
    count, num_parts = queries // heads, min(tiles.parts, heads)
    out = torch.empty(num_parts, count, size, device=parts.device, dtype=parts.dtype)
    _join_kernel[(triton.cdiv(size, tiles.cols), triton.cdiv(count, tiles.rows), num_parts)](
        parts, tops, weight, bias, out, count, heads, size, SPLITS=splits, HEADS=triton.cdiv(
            heads, num_parts), TILE=_tile(size), ROWS=tiles.rows, COLS=tiles.cols,
        PRECISION=precision(parts), **options(tiles.warps, tiles.stages))
    return out


def feed(stream: Stream, gain: Tensor, shift: Tensor, eps: float, first: Tensor, first_bias: Tensor,
         second: Tensor, second_bias: Tensor, tiles: Tiles) -> Stream:
    """Feed-forward: norm, `first` [hidden, size], GELU, `second` [size, hidden], as new parts."""
    x, parts = stream.x, stream.parts
    if not tiles.cols:
        nothing = x.new_empty(0, *x.shape)
        x, noted = _query(stream, (gain, shift), nothing, gain, shift, first, eps, None, 0, tiles)
        hidden = gelu(linear(noted, first, first_bias))
        return Stream(x, linear(hidden, second, second_bias)[None])
    (count, size), hidden = x.shape, len(first)
    slabs = triton.cdiv(hidden, tiles.cols)
    num_parts = min(tiles.parts, slabs)
    x_out = torch.empty_like(x)
    out = torch.empty(num_parts, count, size, device=x.device, dtype=first.dtype)
    _feed_kernel[(num_parts, triton.cdiv(
        count, tiles.rows))](x, parts, gain, shift, first, first_bias, second, second_bias, x_out,
                             out, count, size, hidden, eps, PARTS=len(parts), SLABS=triton.cdiv(
                                 slabs, num_parts), TILE=_tile(size), ROWS=tiles.rows,
                             SLAB=tiles.cols, PRECISION=precision(first), **options(
                                 tiles.warps, tiles.stages))
    return Stream(x_out, out)


def _tile(size: int) -> int:
    return max(16, next_power_of_2(size))
