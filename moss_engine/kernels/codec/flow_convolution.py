"""Causal convolutions of the flow's estimator over chunks, three taps each. Rows and parts are
described in `flow_rows`, `meta` in `flow_meta`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.codec.flow_block import Stream
from moss_engine.kernels.codec.flow_meta import BRANCHES, WIDTH, Chunks, Tiles, precision
from moss_engine.kernels.codec.flow_rows import mish, normed, summed
from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous


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
    two rows of each chunk are kept for the next one."""
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
    here = (rows < count) & (frame >= back)
    x = summed(x_ptr, parts_ptr, (rows - back)[:, None] * stride + columns[None, :],
               here[:, None] & inside[None, :], apart, PARTS)
    if NORMS:
        x = mish(normed(x, gain, shift, inside, size, eps)) + time[None, :]
    x = x.to(dtype)
    earlier = (rows < count) & (frame < back)
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
                 mask=((rows < count) & (frame >= frames - 2))[:, None] & inside[None, :])


def convolve(stream: Stream, weight: Tensor, bias: Tensor, chunks: Chunks, tails: Tails,
             tiles: Tiles) -> Tensor:
    """Causal convolution: the stream [rows, size] -> parts [3, rows, outputs]."""
    return _convolve(stream.x, stream.parts, None, weight, bias, 0.0, chunks, tails, tiles)


def convolve_bent(y: Tensor, gain: Tensor, shift: Tensor, time: Tensor, weight: Tensor,
                  bias: Tensor, eps: float, chunks: Chunks, tails: Tails, tiles: Tiles) -> Tensor:
    """As `convolve`, of mish(norm(y)) + time, where y is given as parts [parts, rows, size]."""
    return _convolve(y[0], y[1:], (gain, shift, time), weight, bias, eps, chunks, tails, tiles)


def _convolve(x: Tensor, parts: Tensor, bent: tuple[Tensor, Tensor, Tensor] | None, weight: Tensor,
              bias: Tensor, eps: float, chunks: Chunks, tails: Tails, tiles: Tiles) -> Tensor:
    (count, size), outputs = x.shape, len(weight)
    assert not len(parts) or parts.stride(1) == x.stride(0), "parts lie as their rows do"
    out = torch.empty(3, count, outputs, device=x.device, dtype=weight.dtype)
    gain, shift, time = (bias, bias, bias) if bent is None else bent
    _convolve_kernel[(triton.cdiv(outputs, tiles.cols), triton.cdiv(count, tiles.rows), 3)](
        x, x.stride(0), parts.stride(0), parts, gain, shift, time, weight, bias, out, chunks.anchor,
        chunks.meta, tails.layer, tails.copy, tails.size, count, chunks.frames,
        size, outputs, eps, PARTS=len(parts), NORMS=bent is not None, TILE=max(
            16, next_power_of_2(size)), ROWS=tiles.rows, COLS=tiles.cols,
        PRECISION=precision(weight), **options(tiles.warps, tiles.stages))
    return out
