"""BigVGAN's anti-aliased Snake activation as one kernel, with the sums around it, over channels-last signals.

Each thread goes along the time of a channel with the last few samples in registers: every sample is read once,
upsampled by 2, bent by Snake, and downsampled.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.runtime.kernels.launch import options, wait_for_previous

TAPS = 12  # of both filters
_TILE = 256


class SnakeConstants(NamedTuple):
    """x + magnitude * sin(pi * cycles * x)^2 at twice the rate; all float32: filters [12], the others [channels].

    `up` has the gain of 2 that upsampling needs.
    """

    up: Tensor
    down: Tensor
    cycles: Tensor
    magnitude: Tensor


@triton.jit
def _snake(x, cycles, magnitude):
    """The sine's square has period 1 in cycles * x, so that a short series will do."""
    turn = x * cycles
    turn -= tl.floor(turn + 0.5)
    square = turn * turn
    series = 0.08214588661112823 + square * -0.00737043094571435
    series = 2.550164039877345 + square * (-0.5992645293207921 + square * series)
    sine = turn * (3.141592653589793 + square * (-5.16771278004997 + square * series))
    return x + magnitude * sine * sine


@triton.jit
def _sample(x_ptr, add_ptr, bias, at, samples, stride, mask, HAS_ADD: tl.constexpr):
    """x + bias (+ add) at samples `at`, whose first and last are repeated outwards."""
    at = tl.minimum(tl.maximum(at, 0), samples - 1) * stride
    value = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias
    if HAS_ADD:
        value += tl.load(add_ptr + at, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def _load_taps(filter_ptr):
    return (tl.load(filter_ptr), tl.load(filter_ptr + 1), tl.load(filter_ptr + 2), tl.load(filter_ptr + 3),
            tl.load(filter_ptr + 4), tl.load(filter_ptr + 5), tl.load(filter_ptr + 6), tl.load(filter_ptr + 7),
            tl.load(filter_ptr + 8), tl.load(filter_ptr + 9), tl.load(filter_ptr + 10), tl.load(filter_ptr + 11))


@triton.jit(do_not_specialize=["samples"])
def _activate_kernel(x_ptr, add_ptr, bias_ptr, sum_ptr, out_ptr, up_ptr, down_ptr, cycles_ptr, magnitude_ptr, channels,
                     samples, HAS_ADD: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr,
                     STEPS: tl.constexpr, SEGMENTS: tl.constexpr, TILE_C: tl.constexpr, OVERLAP: tl.constexpr):
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)[None, :]
    mask = channel < channels
    cycles = tl.load(cycles_ptr + channel, mask=mask, other=0.0)
    magnitude = tl.load(magnitude_ptr + channel, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32) if HAS_BIAS else 0.0
    u0, u1, u2, u3, u4, u5, u6, u7, u8, u9, u10, u11 = _load_taps(up_ptr)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11 = _load_taps(down_ptr)
    wait_for_previous(OVERLAP)
    base = tl.program_id(2).to(tl.int64) * samples * channels
    x_at, add_at = x_ptr + base + channel, add_ptr + base + channel
    start = (tl.program_id(0) * SEGMENTS + tl.arange(0, SEGMENTS)[:, None]) * STEPS
    end = samples - 1
    # the activated signal's own first and last value, which stand for everything outside
    w1 = _sample(x_at, add_at, bias, start * 0, samples, channels, mask, HAS_ADD)
    w2 = _sample(x_at, add_at, bias, start * 0 + 1, samples, channels, mask, HAS_ADD)
    w3 = _sample(x_at, add_at, bias, start * 0 + 2, samples, channels, mask, HAS_ADD)
    first = _snake(w1 * (u11 + u9 + u7 + u5) + w2 * u3 + w3 * u1, cycles, magnitude)
    w1 = _sample(x_at, add_at, bias, start * 0 + end, samples, channels, mask, HAS_ADD)
    w2 = _sample(x_at, add_at, bias, start * 0 + (end - 1), samples, channels, mask, HAS_ADD)
    w3 = _sample(x_at, add_at, bias, start * 0 + (end - 2), samples, channels, mask, HAS_ADD)
    last = _snake(w1 * (u0 + u2 + u4 + u6) + w2 * u8 + w3 * u10, cycles, magnitude)
    w1 = _sample(x_at, add_at, bias, start - 5, samples, channels, mask, HAS_ADD)
    w2 = _sample(x_at, add_at, bias, start - 4, samples, channels, mask, HAS_ADD)
    w3 = _sample(x_at, add_at, bias, start - 3, samples, channels, mask, HAS_ADD)
    w4 = _sample(x_at, add_at, bias, start - 2, samples, channels, mask, HAS_ADD)
    w5 = _sample(x_at, add_at, bias, start - 1, samples, channels, mask, HAS_ADD)
    o1, o2, o3, o4, o5 = w1, w2, w3, w4, w5  # filled by the first five steps
    e1, e2, e3, e4, e5 = w1, w2, w3, w4, w5
    for step in range(STEPS + 5):
        at = start + step - 5
        w0, w1, w2, w3, w4 = w1, w2, w3, w4, w5
        w5 = _sample(x_at, add_at, bias, at + 5, samples, channels, mask, HAS_ADD)
        o0, o1, o2, o3, o4 = o1, o2, o3, o4, o5
        e0, e1, e2, e3, e4 = e1, e2, e3, e4, e5
        o5 = _snake(w0 * u10 + w1 * u8 + w2 * u6 + w3 * u4 + w4 * u2 + w5 * u0, cycles, magnitude)
        o5 = tl.where(at + 2 < 0, first, tl.where(at + 2 >= samples, last, o5))
        e5 = _snake(w0 * u11 + w1 * u9 + w2 * u7 + w3 * u5 + w4 * u3 + w5 * u1, cycles, magnitude)
        e5 = tl.where(at + 3 < 0, first, tl.where(at + 3 >= samples, last, e5))
        total = o0 * d0 + e0 * d1 + o1 * d2 + e1 * d3 + o2 * d4 + e2 * d5
        total += o3 * d6 + e3 * d7 + o4 * d8 + e4 * d9 + o5 * d10 + e5 * d11
        inside = mask & (at >= start) & (at < samples)
        place = base + at * channels + channel
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
        if HAS_SUM:
            tl.store(sum_ptr + place, w0.to(sum_ptr.dtype.element_ty), mask=inside)


def activate(x: Tensor, constants: SnakeConstants, bias: Tensor | None = None, add: Tensor | None = None,
             total: Tensor | None = None) -> Tensor:
    """The activation of x + bias + add [batch, channels, 1, samples], all channels-last; bias float32 [channels].

    The sum is written to `total`, where that is given.
    """
    batch, channels, _, samples = x.shape
    for other in (x, add, total):
        assert other is None or (other.shape == x.shape and other.is_contiguous(memory_format=torch.channels_last))
    assert len(constants.up) == len(constants.down) == TAPS, "the kernel is made for BigVGAN's filters"
    out = torch.empty_like(x, memory_format=torch.channels_last)
    tile_c = next((size for size in (64, 32) if channels % size == 0), 16)
    steps, segments = 16, _TILE // tile_c
    grid = (triton.cdiv(samples, steps * segments), triton.cdiv(channels, tile_c), batch)
    _activate_kernel[grid](x, x if add is None else add, x if bias is None else bias, x if total is None else total,
                           out, *constants, channels, samples, HAS_ADD=add is not None, HAS_BIAS=bias is not None,
                           HAS_SUM=total is not None, STEPS=steps, SEGMENTS=segments, TILE_C=tile_c, **options(4))
    return out


@triton.jit
def _mix_kernel(x_ptr, add_ptr, bias_ptr, mixed_ptr, scale, channels, size, ADDS_UP: tl.constexpr, TILE: tl.constexpr,
                OVERLAP: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < size
    bias = tl.load(bias_ptr + at % channels, mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    value = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias
    value = scale * (value + tl.load(add_ptr + at, mask=mask, other=0.0).to(tl.float32))
    if ADDS_UP:
        value += tl.load(mixed_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(mixed_ptr + at, value.to(mixed_ptr.dtype.element_ty), mask=mask)


def mix(mixed: Tensor, x: Tensor, bias: Tensor, add: Tensor, scale: float, *, adds_up: bool) -> None:
    """mixed = scale * (x + bias + add), or that much more of it; all channels-last but bias, float32 [channels]."""
    for other in (mixed, x, add):
        assert other.is_contiguous(memory_format=torch.channels_last) and other.shape == x.shape
    _mix_kernel[(triton.cdiv(x.numel(), 1024),)](x, add, bias, mixed, scale, x.shape[1], x.numel(), ADDS_UP=adds_up,
                                                 TILE=1024, **options(4))
