"""The kernels of the flow's estimator.

Rows are [streams * 2 branches * frames, channels]. The residual stream is handed on as float32 rows
and the parts that are still to be added to them: products whose sums were split over several
programs. `meta` int64 [streams, FIELDS] says where each stream's memories are and how much of them
counts, so that one graph serves any streams.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import gelu, linear

from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous


class Field(enum.IntEnum):
    """Columns of `meta`. `capacity`, `slot` and `seen` count frames of the ring: all, those before
    the chunk's place, and those that hold something, the chunk's included, of which `valid` are
    real. `prompt_frames` are the prompt's. `link` is the sum of CONTINUES, where the chunk goes on
    behind the one of the row before, and GOES_ON, where the next row goes on behind it. All others
    but `parity` are places: elements after `anchor`, a tensor of the memories' number format. So a
    kernel's addresses begin at an argument, whose alignment the compiler knows, as it does not that
    of a number that it loads.
    """

    kv = 0
    capacity = 1
    slot = 2
    seen = 3
    valid = 4
    prompt_kv = 5
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
    link = 17


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
CONTINUES, GOES_ON = tl.constexpr(1), tl.constexpr(2)
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


@triton.jit
def summed(x_ptr, parts_ptr, cells, wanted, stride, PARTS: tl.constexpr):
    """float32 rows with their parts, which are `stride` elements apart"""
    x = tl.load(x_ptr + cells, mask=wanted, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(parts_ptr + part * stride + cells, mask=wanted, other=0.0).to(tl.float32)
    return x


@triton.jit
def normed(x, gain, shift, inside, size, eps):
    """Layer norm of rows [rows, columns], of which `inside` are there."""
    mean = tl.sum(x, 1) / size
    centred = tl.where(inside[None, :], x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / size + eps)
    return centred * scale[:, None] * gain[None, :] + shift[None, :]


@triton.jit
def mish(x):
    """x tanh(log(1 + e^x))"""
    grown = tl.exp(tl.minimum(x, 20.0))
    product = grown * (grown + 2.0)
    return x * tl.where(x > 20.0, 1.0, product / (product + 2.0))


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


@dataclass(frozen=True)
class Residual:
    """What a stage does before its first transformer: mish of the norm, plus the `straight` path
    [parts, rows, size], whose parts follow one another."""

    gain: Tensor
    shift: Tensor
    straight: Tensor


@triton.jit(do_not_specialize=["layer", "count"])
def _query_kernel(x_ptr, parts_ptr, mish_gain_ptr, mish_shift_ptr, straight_ptr, straight_stride,
                  gain_ptr, shift_ptr, weight_ptr, x_out_ptr, out_ptr, anchor_ptr, meta_ptr, layer,
                  count, frames, size, outputs, eps, PARTS: tl.constexpr, STRAIGHTS: tl.constexpr,
                  KEEPS_KV: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
                  COLS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """With STRAIGHTS, x is the second convolution of a stage: its norm and mish are added to the
    straight path, which has so many parts. Without COLS the norm itself goes out; with KEEPS_KV it
    is kept for later chunks, too."""
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
    if KEEPS_KV:
        stream, branch = rows // (frames * BRANCHES), (rows // frames) % BRANCHES
        fields, keeps = meta_ptr + stream * WIDTH, (rows < count) & (tl.program_id(0) == 0)
        kv = tl.multiple_of(tl.load(fields, mask=keeps, other=0), 16)
        capacity = tl.load(fields + 1, mask=keeps, other=0)
        slot = tl.load(fields + 2, mask=keeps, other=0)
    cells = rows[:, None] * size + columns[None, :]
    wanted = (rows < count)[:, None] & inside[None, :]
    x = summed(x_ptr, parts_ptr, cells, wanted, count * size, PARTS)
    if STRAIGHTS:
        x = mish(normed(x, mish_gain, mish_shift, inside, size, eps))
        straight = straight_ptr + rows[:, None] * straight_stride + columns[None, :]
        for part in tl.static_range(STRAIGHTS):
            x += tl.load(straight + part * count * straight_stride, mask=wanted, other=0.0).to(
                tl.float32)
    x_normed = normed(x, gain, shift, inside, size, eps).to(dtype)
    if COLS:
        y = tl.trans(tl.dot(weight, tl.trans(x_normed), input_precision=PRECISION))
        tl.store(out_ptr + rows[:, None] * outputs + cols[None, :], y.to(dtype),
                 mask=(rows < count)[:, None] & (cols < outputs)[None, :])
    else:
        tl.store(out_ptr + cells, x_normed, mask=wanted)
    if tl.program_id(0) == 0:
        tl.store(x_out_ptr + cells, x, mask=wanted)
    if KEEPS_KV and (tl.program_id(0) == 0):
        at = (layer.to(tl.int64) * BRANCHES + branch) * capacity + slot + rows % frames
        tl.store(anchor_ptr + (kv + at * size)[:, None] + columns[None, :], x_normed, mask=wanted)


@triton.jit
def _merged(parts_ptr, lse_ptr, rows, head, heads, count, columns, wanted, size,
           SPLITS: tl.constexpr):
    """What the queries of one head attend to: the SPLITS parts, merged by their log-sum-exps"""
    at = rows * heads + head
    if SPLITS == 1:
        return tl.load(parts_ptr + at[:, None] * size + columns[None, :], mask=wanted, other=0.0)
    highest = tl.load(lse_ptr + at, mask=rows < count, other=0.0)
    for split in tl.static_range(1, SPLITS):
        highest = tl.maximum(
            highest, tl.load(lse_ptr + split * count * heads + at, mask=rows < count, other=0.0))
    total = tl.zeros_like(highest)
    acc = tl.zeros([at.shape[0], columns.shape[0]], tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(
            tl.load(lse_ptr + split * count * heads + at, mask=rows < count, other=0.0) - highest)
        part = tl.load(
            parts_ptr + split * count * heads * size + at[:, None] * size + columns[None, :],
            mask=wanted, other=0.0)
        total += share
        acc += share[:, None] * part.to(tl.float32)
    return (acc / total[:, None]).to(parts_ptr.dtype.element_ty)


@triton.jit(do_not_specialize=["count"])
def _join_kernel(parts_ptr, lse_ptr, weight_ptr, bias_ptr, out_ptr, count, heads, size,
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
        attended = _merged(parts_ptr, lse_ptr, rows, head + number, heads, count, columns,
                           wanted & (head + number < heads), size, SPLITS)
        y = tl.dot(weight, tl.trans(attended), y, input_precision=PRECISION)
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
    x_normed = normed(x, gain, shift, inside, size, eps).to(dtype)
    y = tl.zeros([TILE, ROWS], tl.float32)
    for number in tl.static_range(SLABS):
        h = tl.dot(first, tl.trans(x_normed), input_precision=PRECISION)
        h += tl.load(first_bias_ptr + at, mask=at < hidden, other=0.0).to(tl.float32)[:, None]
        h = (0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))).to(dtype)
        y = tl.dot(second, h, y, input_precision=PRECISION)
        if number + 1 < SLABS:
            at += SLAB
            first = tl.load(first_ptr + at[:, None] * size + columns[None, :],
                            mask=(at < hidden)[:, None] & inside[None, :], other=0.0)
            second = tl.load(second_ptr + columns[:, None] * hidden + at[None, :],
                             mask=inside[:, None] & (at < hidden)[None, :], other=0.0)
    if tl.program_id(0) == 0:
        y += tl.load(second_bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + tl.program_id(0) * count * size + cells, tl.trans(y).to(dtype), mask=wanted)


def query(stream: Stream, residual: Residual | None, gain: Tensor, shift: Tensor, weight: Tensor,
          eps: float, chunks: Chunks | None, layer: int, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """The summed stream, behind its `residual`, and its norm times `weight` [outputs, size].

    The norm is kept as keys of `layer`, unless `chunks` is None. Without columns in `tiles` the
    product is left to the library, and without `chunks` to the caller.
    """
    x, parts = stream.x, stream.parts
    (count, size), outputs = x.shape, len(weight) if tiles.cols else x.shape[1]
    x_out = torch.empty(count, size, device=x.device)
    out = torch.empty(count, outputs, device=x.device, dtype=weight.dtype)
    anchor, meta, frames = (out, out, 1) if chunks is None else (chunks.anchor, chunks.meta,
                                                                 chunks.frames)
    entry = residual or Residual(gain, shift, x.new_empty(0, *x.shape))
    assert entry.straight.stride(0) == count * entry.straight.stride(1), "parts follow one another"
    grid = (triton.cdiv(outputs, tiles.cols or outputs), triton.cdiv(count, tiles.rows))
    _query_kernel[grid](x, parts, entry.gain, entry.shift, entry.straight, entry.straight.stride(1),
                        gain, shift, weight, x_out, out, anchor, meta, layer, count, frames, size,
                        outputs, eps, PARTS=len(parts), STRAIGHTS=len(entry.straight),
                        KEEPS_KV=chunks is not None, TILE=_tile(size), ROWS=tiles.rows,
                        COLS=tiles.cols, PRECISION=precision(weight),
                        **options(tiles.warps, tiles.stages))
    return x_out, out if tiles.cols or chunks is None else linear(out, weight)


def join(parts: Tensor, lse: Tensor, weight: Tensor, bias: Tensor, tiles: Tiles) -> Tensor:
    """Output projection: attended rows times `weight` [size, heads * size], as parts.

    They are given as `attend` returns them, parts [splits, rows * heads, size] with their
    log-sum-exps [splits, rows * heads]; the result is [parts, rows, size].
    """
    splits, queries, size = parts.shape
    heads = weight.shape[1] // size
    if not tiles.cols:
        assert splits == 1, "the library does not merge splits"
        return linear(parts.view(-1, heads * size), weight, bias)[None]
    count, num_parts = queries // heads, min(tiles.parts, heads)
    out = torch.empty(num_parts, count, size, device=parts.device, dtype=parts.dtype)
    _join_kernel[(triton.cdiv(size, tiles.cols), triton.cdiv(count, tiles.rows), num_parts)](
        parts, lse, weight, bias, out, count, heads, size, SPLITS=splits, HEADS=triton.cdiv(
            heads, num_parts), TILE=_tile(size), ROWS=tiles.rows, COLS=tiles.cols,
        PRECISION=precision(parts), **options(tiles.warps, tiles.stages))
    return out


def feed(stream: Stream, gain: Tensor, shift: Tensor, eps: float, first: Tensor, first_bias: Tensor,
         second: Tensor, second_bias: Tensor, tiles: Tiles) -> Stream:
    """Feed-forward: norm, `first` [hidden, size], GELU, `second` [size, hidden], as new parts."""
    x, parts = stream.x, stream.parts
    if not tiles.cols:
        x, y = query(stream, None, gain, shift, first, eps, None, 0, tiles)
        hidden = gelu(linear(y, first, first_bias))
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


@dataclass(frozen=True)
class Tails:
    """The memory of rows before a convolution: its number `layer` of `copy`, rows of `size`."""

    layer: int
    copy: int
    size: int


@triton.jit(do_not_specialize=["layer", "copy", "count"])
def _convolve_kernel(x_ptr, stride, apart, parts_ptr, gain_ptr, shift_ptr, time_ptr, weight_ptr,
                     bias_ptr, out_ptr, anchor_ptr, meta_ptr, layer, copy, tail_size, count, frames,
                     size, outputs, eps, PARTS: tl.constexpr, NORMS: tl.constexpr,
                     TILE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                     PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """One tap of each program: its product is one part. NORMS: of mish(norm(x)) + time. The last
    two rows of each chunk are kept for the next one, unless that is of the same run."""
    dtype = out_ptr.dtype.element_ty
    tap = tl.program_id(2)
    back = 2 - tap
    columns, cols = tl.arange(0, TILE), tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = columns < size
    weight = tl.load(weight_ptr + (cols[:, None] * 3 + tap) * size + columns[None, :],
                     mask=(cols < outputs)[:, None] & inside[None, :], other=0.0)
    if NORMS:
        gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
        shift = tl.load(shift_ptr + columns, mask=inside, other=0.0)
        time = tl.load(time_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    stream, branch, frame = rows // (frames * BRANCHES), (rows // frames) % BRANCHES, rows % frames
    fields = meta_ptr + stream * WIDTH
    tails = anchor_ptr + tl.multiple_of(tl.load(fields + 7, mask=rows < count, other=0), 16)
    parity = tl.load(fields + 8, mask=rows < count, other=0)
    link = tl.load(fields + 17, mask=rows < count, other=0)
    continues, last = (link & CONTINUES) != 0, (frame >= frames - 2) & ((link & GOES_ON) == 0)
    source = rows - back - tl.where((frame < back) & continues, (BRANCHES - 1) * frames, 0)
    earlier = (frame < back) & (continues == 0)
    here = (rows < count) & (earlier == 0)
    x = summed(x_ptr, parts_ptr, source[:, None] * stride + columns[None, :],
               here[:, None] & inside[None, :], apart, PARTS)
    if NORMS:
        x = mish(normed(x, gain, shift, inside, size, eps)) + time[None, :]
    x = x.to(dtype)
    earlier = (rows < count) & earlier
    read = tails + ((parity * copy + layer) * BRANCHES + branch) * 2 * tail_size
    before = tl.load((read + (frame + tap) * tail_size)[:, None] + columns[None, :],
                     mask=earlier[:, None] & inside[None, :], other=0.0)
    x = tl.where(earlier[:, None], before, x)
    y = tl.trans(tl.dot(weight, tl.trans(x), input_precision=PRECISION))
    if tap == 2:
        y += tl.load(bias_ptr + cols, mask=cols < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + (tap * count + rows[:, None]) * outputs + cols[None, :], y.to(dtype),
             mask=(rows < count)[:, None] & (cols < outputs)[None, :])
    if (tap == 2) & (tl.program_id(0) == 0):
        write = tails + (((1 - parity) * copy + layer) * BRANCHES + branch) * 2 * tail_size
        tl.store((write + (frame - (frames - 2)) * tail_size)[:, None] + columns[None, :], x,
                 mask=((rows < count) & last)[:, None] & inside[None, :])


def convolve(stream: Stream, weight: Tensor, bias: Tensor, chunks: Chunks, tails: Tails,
             tiles: Tiles) -> Tensor:
    """Causal convolution: the stream [rows, size] -> parts [3, rows, outputs]."""
    return _convolve(stream.x, stream.parts, None, weight, bias, 0.0, chunks, tails, tiles)


def convolve_activated(y: Tensor, gain: Tensor, shift: Tensor, time: Tensor, weight: Tensor,
                  bias: Tensor, eps: float, chunks: Chunks, tails: Tails, tiles: Tiles) -> Tensor:
    """As `convolve`, of mish(norm(y)) + time, where y is given as parts [parts, rows, size]."""
    return _convolve(y[0], y[1:], (gain, shift, time), weight, bias, eps, chunks, tails, tiles)


def _convolve(x: Tensor, parts: Tensor, activation: tuple[Tensor, Tensor, Tensor] | None,
              weight: Tensor, bias: Tensor, eps: float, chunks: Chunks, tails: Tails,
              tiles: Tiles) -> Tensor:
    (count, size), outputs = x.shape, len(weight)
    assert not len(parts) or parts.stride(1) == x.stride(0), "parts lie as their rows do"
    out = torch.empty(3, count, outputs, device=x.device, dtype=weight.dtype)
    gain, shift, time = (bias, bias, bias) if activation is None else activation
    _convolve_kernel[(triton.cdiv(outputs, tiles.cols), triton.cdiv(count, tiles.rows), 3)](
        x, x.stride(0), parts.stride(0), parts, gain, shift, time, weight, bias, out, chunks.anchor,
        chunks.meta, tails.layer, tails.copy, tails.size, count, chunks.frames,
        size, outputs, eps, PARTS=len(parts), NORMS=activation is not None, TILE=_tile(size),
        ROWS=tiles.rows, COLS=tiles.cols, PRECISION=precision(weight),
        **options(tiles.warps, tiles.stages))
    return out


@triton.jit
def _history(anchor_ptr, prompt, ring, block, in_prompt, prompt_frames, seen, slot, frames, offsets,
             inside, size, BLOCK: tl.constexpr):
    """A block of prompt or ring, and the mask of what a chunk sees: all but its own place."""
    is_prompt = block < in_prompt
    first = tl.where(is_prompt, block, block - in_prompt) * BLOCK
    left = (tl.where(is_prompt, prompt_frames, seen) - first).to(tl.int32)
    gap = tl.where(is_prompt, left, slot - first).to(tl.int32)
    rows = tl.arange(0, BLOCK)
    known = (rows < left) & ((rows < gap) | (rows >= gap + frames))
    start = anchor_ptr + tl.where(is_prompt, prompt, ring) + first * size
    return tl.load(start + offsets, mask=known[:, None] & inside[None, :], other=0.0), known


@triton.jit
def _online_softmax(query, keys, known, best, total, acc, PRECISION: tl.constexpr):
    """The running softmax, to the base 2, with a block of keys more. `best` begins far above what
    stands for a score that does not count, so that such a one weighs nothing."""
    hidden = tl.where(known, 0.0, -1e30)
    scores = tl.dot(query, tl.trans(keys),
                    input_precision=PRECISION) * 1.4426950408889634 + hidden[None, :]
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(keys.dtype), keys, acc * shrink[:, None],
                   input_precision=PRECISION)
    return higher, total, acc


@triton.jit(do_not_specialize=["layer"])
def _attend_kernel(query_ptr, parts_ptr, lse_ptr, anchor_ptr, meta_ptr, layer, queries, frames,
                   size, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                   OWN: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
                   OVERLAP: tl.constexpr):
    """A program attends to every SPLITS-th block, the last also to the chunk's own keys."""
    group, split = tl.program_id(1), tl.program_id(2)
    stream, branch = group // BRANCHES, group % BRANCHES
    columns = tl.arange(0, TILE)
    inside = columns < size
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cells = (group * queries + at[:, None]) * size + columns[None, :]
    wanted = (at < queries)[:, None] & inside[None, :]
    layer = layer.to(tl.int64) * BRANCHES + branch
    prompt_frames, seen = field(meta_ptr, stream, 6), field(meta_ptr, stream, 3)
    slot, valid = field(meta_ptr, stream, 2), field(meta_ptr, stream, 4)
    prompt = place(meta_ptr, stream, 5) + layer * prompt_frames * size
    ring = place(meta_ptr, stream, 0) + layer * field(meta_ptr, stream, 1) * size
    in_prompt = (prompt_frames + BLOCK - 1) // BLOCK
    blocks = (in_prompt + (seen + BLOCK - 1) // BLOCK).to(tl.int32)
    offsets = tl.arange(0, BLOCK)[:, None] * size + columns[None, :]
    # earlier runs wrote the history, so that it can be read while the previous kernel is still
    # busy, unless that writes what this chunk continues
    if (field(meta_ptr, stream, 17) & CONTINUES) != 0:
        wait_for_previous(OVERLAP)
    if SPLITS > 1:
        keys, known = _history(anchor_ptr, prompt, ring, split, in_prompt, prompt_frames, seen,
                                slot, frames, offsets, inside, size, BLOCK)
    wait_for_previous(OVERLAP)
    query = tl.load(query_ptr + cells, mask=wanted, other=0.0)
    best = tl.full([ROWS], -1e20, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, TILE], tl.float32)
    if split == SPLITS - 1:
        steps = tl.arange(0, OWN)
        source = ring + (slot + steps) * size
        own = tl.load(anchor_ptr + source[:, None] + columns[None, :],
                      mask=(steps < valid)[:, None] & inside[None, :], other=0.0)
        best, total, acc = _online_softmax(query, own, steps < valid, best, total, acc, PRECISION)
    for block in range(split, blocks, SPLITS):
        if SPLITS == 1:
            keys, known = _history(anchor_ptr, prompt, ring, block, in_prompt, prompt_frames, seen,
                                    slot, frames, offsets, inside, size, BLOCK)
        best, total, acc = _online_softmax(query, keys, known, best, total, acc, PRECISION)
        if SPLITS > 1:
            keys, known = _history(anchor_ptr, prompt, ring, block + SPLITS, in_prompt,
                                    prompt_frames, seen, slot, frames, offsets, inside, size, BLOCK)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    own_part = split * tl.num_programs(1) * queries
    tl.store(parts_ptr + own_part.to(tl.int64) * size + cells, acc.to(parts_ptr.dtype.element_ty),
             mask=wanted)
    if SPLITS > 1:
        lse = tl.where(total > 0.0, best + tl.log2(tl.maximum(total, 1e-30)), -1e30)
        tl.store(lse_ptr + own_part + group * queries + at, lse, mask=at < queries)


def attend(query: Tensor, chunks: Chunks, layer: int, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Attention of query [streams * 2, queries, size] to `layer`'s keys, which are its values, too.

    Returns parts [splits, all queries, size] and their log-sum-exps to the base 2 [splits, all
    queries].
    """
    groups, queries, size = query.shape
    parts = query.new_empty(tiles.parts, groups * queries, size)
    lse = torch.empty(tiles.parts, groups * queries, device=query.device)
    _attend_kernel[(triton.cdiv(queries, tiles.rows), groups, tiles.parts)](
        query, parts, lse, chunks.anchor, chunks.meta, layer, queries, chunks.frames, size,
        TILE=max(16, next_power_of_2(size)), ROWS=tiles.rows, BLOCK=tiles.cols,
        OWN=max(16, next_power_of_2(chunks.frames)), SPLITS=tiles.parts,
        PRECISION=precision(query), **options(tiles.warps, tiles.stages))
    return parts, lse


_ROWS = 8
_WEIGHT_BYTES = 64 << 10  # in one program, whose shared memory they take


@triton.jit(do_not_specialize=["count"])
def _step_kernel(y_ptr, gain_ptr, shift_ptr, weight_ptr, bias_ptr, inputs_ptr, stride, guidance,
                 count, frames, size, mels, wide, eps, PARTS: tl.constexpr, TILE: tl.constexpr,
                 ROWS: tl.constexpr, MELS: tl.constexpr, PRECISION: tl.constexpr,
                 OVERLAP: tl.constexpr):
    """Final norm and projection; `count` rows of both branches, [ROWS, MELS] a program."""
    dtype = weight_ptr.dtype.element_ty
    columns, bands = tl.arange(0, TILE), tl.program_id(2) * MELS + tl.arange(0, MELS)
    inside, here = columns < size, bands < mels
    weight = tl.load(weight_ptr + bands[:, None] * size + columns[None, :],
                     mask=here[:, None] & inside[None, :], other=0.0)
    bias = tl.load(bias_ptr + bands, mask=here, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0)
    shift = tl.load(shift_ptr + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    steps = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = tl.program_id(1) * 2 * frames + steps
    wanted = (steps < frames)[:, None] & inside[None, :]
    cells = rows[:, None] * size + columns[None, :]
    x = mish(
        normed(summed(y_ptr, y_ptr + count * size, cells, wanted, count * size, PARTS), gain, shift,
               inside, size, eps)).to(dtype)
    with_it = tl.dot(weight, tl.trans(x), input_precision=PRECISION) + bias[:, None]
    cells += frames * size
    x = mish(
        normed(summed(y_ptr, y_ptr + count * size, cells, wanted, count * size, PARTS), gain, shift,
               inside, size, eps)).to(dtype)
    without = tl.dot(weight, tl.trans(x), input_precision=PRECISION) + bias[:, None]
    move = tl.trans(stride * ((1.0 + guidance) * with_it - guidance * without))
    places = inputs_ptr + rows[:, None] * wide + bands[None, :]
    mask = (steps < frames)[:, None] & here[None, :]
    mel = tl.load(places, mask=mask, other=0.0) + move
    tl.store(places, mel, mask=mask)
    tl.store(places + frames * wide, mel, mask=mask)


def step(y: Tensor, gain: Tensor, shift: Tensor, eps: float, weight: Tensor, bias: Tensor,
         inputs: Tensor, stride: float, guidance: float, frames: int) -> None:
    """One Euler step: move the mels by `stride` times the guided velocity.

    Inputs float32 [streams * 2 * frames, input channels] hold the mels in their first columns; y
    are parts [parts, rows, size] of both branches, which go through norm and projection.
    """
    (parts, count, size), mels = y.shape, len(weight)
    tile = max(16, next_power_of_2(size))
    bands = min(next_power_of_2(mels), _WEIGHT_BYTES // (tile * weight.element_size()))
    _step_kernel[(triton.cdiv(frames, _ROWS), count // (2 * frames), triton.cdiv(
        mels, bands))](y, gain, shift, weight, bias, inputs, stride, guidance, count, frames, size,
                       mels, inputs.shape[1], eps, PARTS=parts - 1, TILE=tile, ROWS=_ROWS,
                       MELS=bands, PRECISION=precision(weight), **options(8))
