"""The end of an Euler step of the flow: both branches' last convolution -> where the mel moves.
Rows are described in `flow_rows`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.codec.flow_meta import precision
from moss_engine.kernels.codec.flow_rows import mish, normed, summed
from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous

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
