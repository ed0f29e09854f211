"""Snake activations of vocoders over channels-last signals, with the bias and the residual before
them. Of BigVGAN's anti-aliased one, each thread goes along the time of a channel with the last few
samples in registers: every sample is read once, upsampled by 2, put through Snake, and downsampled.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from moss_engine.kernels.launch import interpreted, num_multiprocessors, options, wait_for_previous

TAPS = 12  # of both filters
_TILE = 256
# Samples that a thread goes along: multiples of 6, after which the registers' names come round.
_LONG, _SHORT = 60, 12


class SnakeConstants(NamedTuple):
    """Snake at twice the rate: x + magnitude * sin(pi * cycles * x)^2, all in float32.

    `up` has the gain of 2 that upsampling needs.
    """

    up: Tensor
    down: Tensor
    cycles: Tensor
    magnitude: Tensor


@triton.jit
def _snake(x, turns, half, FAST: tl.constexpr):
    """The sine's square by the cosine of twice the angle, `x * turns`; `half` of the magnitude."""
    # Wrong by less than 2e-6 of the magnitude up to ten turns; beyond, a tenth of float16's step.
    if FAST:
        return x + half - half * libdevice.fast_cosf(x * turns)
    return x + half - half * tl.cos(x * turns)


@triton.jit
def _sample(x_ptr, add_ptr, bias, at, samples, stride, HAS_ADD: tl.constexpr,
            AT_EDGE: tl.constexpr):
    """x + bias (+ add) at samples `at`; edges repeat the first and last sample."""
    if AT_EDGE:
        at = tl.minimum(tl.maximum(at, 0), samples - 1)
    value = tl.load(x_ptr + at * stride).to(tl.float32) + bias
    if HAS_ADD:
        value += tl.load(add_ptr + at * stride).to(tl.float32)
    return value


@triton.jit
def _go_along(x_ptr, add_ptr, sum_ptr, out_ptr, bias, turns, half, first, last, u, d, start,
              samples, stride, HAS_ADD: tl.constexpr, STEPS: tl.constexpr, UNROLL: tl.constexpr,
              AT_EDGE: tl.constexpr, FAST: tl.constexpr):
    """Samples `start` to `start + STEPS - 1`. `first` and `last` stand for the activated signal
    outside."""
    w1 = _sample(x_ptr, add_ptr, bias, start - 5, samples, stride, HAS_ADD, AT_EDGE)
    w2 = _sample(x_ptr, add_ptr, bias, start - 4, samples, stride, HAS_ADD, AT_EDGE)
    w3 = _sample(x_ptr, add_ptr, bias, start - 3, samples, stride, HAS_ADD, AT_EDGE)
    w4 = _sample(x_ptr, add_ptr, bias, start - 2, samples, stride, HAS_ADD, AT_EDGE)
    w5 = _sample(x_ptr, add_ptr, bias, start - 1, samples, stride, HAS_ADD, AT_EDGE)
    o1, o2, o3, o4, o5 = w1, w2, w3, w4, w5  # filled by the first five steps
    e1, e2, e3, e4, e5 = w1, w2, w3, w4, w5
    for step in range(-5, 0):
        at = start + step
        w0, w1, w2, w3, w4 = w1, w2, w3, w4, w5
        w5 = _sample(x_ptr, add_ptr, bias, at + 5, samples, stride, HAS_ADD, AT_EDGE)
        o1, o2, o3, o4 = o2, o3, o4, o5
        e1, e2, e3, e4 = e2, e3, e4, e5
        o5 = _snake(w0 * u[10] + w1 * u[8] + w2 * u[6] + w3 * u[4] + w4 * u[2] + w5 * u[0], turns,
                    half, FAST)
        e5 = _snake(w0 * u[11] + w1 * u[9] + w2 * u[7] + w3 * u[5] + w4 * u[3] + w5 * u[1], turns,
                    half, FAST)
        if AT_EDGE:
            o5 = tl.where(at + 2 < 0, first, tl.where(at + 2 >= samples, last, o5))
            e5 = tl.where(at + 3 < 0, first, tl.where(at + 3 >= samples, last, e5))
    for step in tl.range(0, STEPS, loop_unroll_factor=UNROLL):
        at = start + step
        w0, w1, w2, w3, w4 = w1, w2, w3, w4, w5
        w5 = _sample(x_ptr, add_ptr, bias, at + 5, samples, stride, HAS_ADD, AT_EDGE)
        o0, o1, o2, o3, o4 = o1, o2, o3, o4, o5
        e0, e1, e2, e3, e4 = e1, e2, e3, e4, e5
        o5 = _snake(w0 * u[10] + w1 * u[8] + w2 * u[6] + w3 * u[4] + w4 * u[2] + w5 * u[0], turns,
                    half, FAST)
        e5 = _snake(w0 * u[11] + w1 * u[9] + w2 * u[7] + w3 * u[5] + w4 * u[3] + w5 * u[1], turns,
                    half, FAST)
        inside = None
        if AT_EDGE:
            o5 = tl.where(at + 2 < 0, first, tl.where(at + 2 >= samples, last, o5))
            e5 = tl.where(at + 3 < 0, first, tl.where(at + 3 >= samples, last, e5))
            inside = at < samples
        total = o0 * d[0] + e0 * d[1] + o1 * d[2] + e1 * d[3] + o2 * d[4] + e2 * d[5]
        total += o3 * d[6] + e3 * d[7] + o4 * d[8] + e4 * d[9] + o5 * d[10] + e5 * d[11]
        tl.store(out_ptr + at * stride, total.to(out_ptr.dtype.element_ty), mask=inside)
        if HAS_ADD:
            tl.store(sum_ptr + at * stride, w0.to(sum_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _taps(ptr):
    """A filter of 12."""
    return (tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3), tl.load(ptr + 4),
            tl.load(ptr + 5), tl.load(ptr + 6), tl.load(ptr + 7), tl.load(ptr + 8),
            tl.load(ptr + 9), tl.load(ptr + 10), tl.load(ptr + 11))


@triton.jit(do_not_specialize=["samples", "has_bias"])
def _activate_kernel(x_ptr, add_ptr, bias_ptr, sum_ptr, out_ptr, up_ptr, down_ptr, cycles_ptr,
                     magnitude_ptr, channels, samples, has_bias, HAS_ADD: tl.constexpr,
                     STEPS: tl.constexpr, SEGMENTS: tl.constexpr, TILE_C: tl.constexpr,
                     FAST: tl.constexpr, OVERLAP: tl.constexpr):
    """Each program SEGMENTS * STEPS samples of TILE_C channels, which divide the channels; with
    HAS_ADD the sum is written, too. Only programs that see the signal's first or last sample look
    where it ends.
    """
    channel = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)[None, :]
    turns = tl.load(cycles_ptr + channel) * 6.283185307179586
    half = tl.load(magnitude_ptr + channel) * 0.5
    bias = tl.load(bias_ptr + channel, mask=channel < channels * has_bias, other=0.0).to(tl.float32)
    u, d = _taps(up_ptr), _taps(down_ptr)
    wait_for_previous(OVERLAP)
    base = tl.program_id(2).to(tl.int64) * samples * channels
    x_at, add_at, sum_at, out_at = (x_ptr + base + channel, add_ptr + base + channel,
                                    sum_ptr + base + channel, out_ptr + base + channel)
    begin, end = tl.program_id(0) * SEGMENTS * STEPS, samples - 1
    start = begin + tl.arange(0, SEGMENTS)[:, None] * STEPS
    if (begin >= 5) & (begin + SEGMENTS * STEPS + 5 <= samples):
        _go_along(x_at, add_at, sum_at, out_at, bias, turns, half, half, half, u, d, start, samples,
                  channels, HAS_ADD, STEPS, 6, False, FAST)
    else:
        w1 = _sample(x_at, add_at, bias, start * 0, samples, channels, HAS_ADD, True)
        w2 = _sample(x_at, add_at, bias, start * 0 + 1, samples, channels, HAS_ADD, True)
        w3 = _sample(x_at, add_at, bias, start * 0 + 2, samples, channels, HAS_ADD, True)
        first = _snake(w1 * (u[11] + u[9] + u[7] + u[5]) + w2 * u[3] + w3 * u[1], turns, half, FAST)
        w1 = _sample(x_at, add_at, bias, start * 0 + end, samples, channels, HAS_ADD, True)
        w2 = _sample(x_at, add_at, bias, start * 0 + (end - 1), samples, channels, HAS_ADD, True)
        w3 = _sample(x_at, add_at, bias, start * 0 + (end - 2), samples, channels, HAS_ADD, True)
        last = _snake(w1 * (u[0] + u[2] + u[4] + u[6]) + w2 * u[8] + w3 * u[10], turns, half, FAST)
        _go_along(x_at, add_at, sum_at, out_at, bias, turns, half, first, last, u, d, start,
                  samples, channels, HAS_ADD, STEPS, 1, True, FAST)


def activate(x: Tensor, constants: SnakeConstants, bias: Tensor | None = None,
             add: Tensor | None = None, total: Tensor | None = None) -> Tensor:
    """The activation of x + bias + add, channels-last [batch, channels, 1, samples].

    With `add` the sum is written to `total`.
    """
    batch, channels, _, samples = x.shape
    for other in (x, add, total):
        assert other is None or (other.shape == x.shape
                                 and other.is_contiguous(memory_format=torch.channels_last))
    assert (add is None) == (total is None), "what is added up is kept"
    assert len(constants.up) == len(
        constants.down) == TAPS, "the kernel is made for BigVGAN's filters"
    out = torch.empty_like(x, memory_format=torch.channels_last)
    tile_c = next(size for size in (64, 32, 16, 8, 4, 2, 1) if channels % size == 0)
    segments = _TILE // tile_c
    grids = [(triton.cdiv(samples, steps * segments), channels // tile_c, batch)
             for steps in (_LONG, _SHORT)]
    steps = _LONG if grids[0][0] * grids[0][1] * batch > 4 * num_multiprocessors() else _SHORT
    _activate_kernel[grids[steps == _SHORT]](
        x, x if add is None else add, constants.cycles if bias is None else bias,
        x if total is None else total, out, *constants, channels, samples, int(bias is not None),
        HAS_ADD=add is not None, STEPS=steps, SEGMENTS=segments, TILE_C=tile_c,
        FAST=not interpreted(), **options(4))
    return out


@triton.jit
def _mix_kernel(x_ptr, add_ptr, bias_ptr, mixed_ptr, scale, channels, size, ADDS_UP: tl.constexpr,
                TILE: tl.constexpr, OVERLAP: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < size
    bias = tl.load(bias_ptr + at % channels, mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    value = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias
    value = scale * (value + tl.load(add_ptr + at, mask=mask, other=0.0).to(tl.float32))
    if ADDS_UP:
        value += tl.load(mixed_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(mixed_ptr + at, value.to(mixed_ptr.dtype.element_ty), mask=mask)


def mix(mixed: Tensor, x: Tensor, bias: Tensor, add: Tensor, scale: float, *,
        adds_up: bool) -> None:
    """mixed (+)= scale * (x + bias + add), all channels-last; bias float32 [channels]."""
    for other in (mixed, x, add):
        assert other.is_contiguous(memory_format=torch.channels_last) and other.shape == x.shape
    _mix_kernel[(triton.cdiv(x.numel(), 1024), )](x, add, bias, mixed, scale, x.shape[1], x.numel(),
                                                  ADDS_UP=adds_up, TILE=1024, **options(4))


_HIFT_TILE = 1024


@triton.jit(do_not_specialize=["size"])
def _hift_snake_kernel(x_ptr, bias_ptr, add_ptr, frequency_ptr, total_ptr, out_ptr, channels, size,
                  HAS_BIAS: tl.constexpr, HAS_ADD: tl.constexpr, TILE: tl.constexpr,
                  OVERLAP: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < size
    channel = at % channels
    frequency = tl.load(frequency_ptr + channel, mask=mask, other=1.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channel, mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += bias
    if HAS_ADD:
        x += tl.load(add_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(total_ptr + at, x.to(total_ptr.dtype.element_ty), mask=mask)
    sine = tl.sin(x * frequency)
    activated = x + sine * sine / (frequency + 1e-9)
    tl.store(out_ptr + at, activated.to(out_ptr.dtype.element_ty), mask=mask)


def hift_snake(x: Tensor, frequency: Tensor, bias: Tensor | None = None,
          add: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """y + sin(frequency * y)^2 / frequency of y = x + bias + add, and y.

    Signals are channels-last [batch, channels, 1, samples]; frequency and bias float32 [channels].
    """
    for other in (x, add):
        assert other is None or (other.shape == x.shape
                                 and other.is_contiguous(memory_format=torch.channels_last))
    assert add is None or bias is not None, "what is added up comes after a convolution"
    out, total = torch.empty_like(x), x if add is None else torch.empty_like(x)
    _hift_snake_kernel[(triton.cdiv(x.numel(), _HIFT_TILE), )](
        x, frequency if bias is None else bias, x if add is None else add, frequency, total, out,
        x.shape[1], x.numel(), HAS_BIAS=bias is not None, HAS_ADD=add is not None, TILE=_HIFT_TILE,
        **options(4))
    return out, total
