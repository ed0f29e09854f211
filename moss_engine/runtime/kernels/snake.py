"""BigVGAN's anti-aliased Snake activation as one kernel: upsampling by 2, Snake and downsampling by 2 in registers."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from moss_engine.runtime.kernels.launch import options, wait_for_previous

_TILE = 256
_TAPS = 12  # of both filters


@triton.jit
def _upsampled(x_row, up_ptr, at, samples, PARITY: tl.constexpr):
    """Samples 2 * at + PARITY of the row at twice its rate; the row's ends are repeated outwards."""
    total = tl.zeros(at.shape, tl.float32)
    for i in tl.static_range(6):
        x = tl.load(x_row + tl.minimum(tl.maximum(at + (i - 3 + PARITY), 0), samples - 1)).to(tl.float32)
        total += x * tl.load(up_ptr + (11 - PARITY - 2 * i))
    return total


@triton.jit
def _snake(x, cycles, magnitude):
    """x + magnitude * sin(pi * cycles * x)^2; the square has period 1 in cycles * x, so that a short series will do."""
    turn = x * cycles
    turn -= tl.floor(turn + 0.5)
    square = turn * turn
    series = 0.08214588661112823 + square * -0.00737043094571435
    series = 2.550164039877345 + square * (-0.5992645293207921 + square * series)
    sine = turn * (3.141592653589793 + square * (-5.16771278004997 + square * series))
    return x + magnitude * sine * sine


@triton.jit
def _snake_kernel(x_ptr, out_ptr, up_ptr, down_ptr, cycles_ptr, magnitude_ptr, channels, samples,
                  TILE: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(1)
    cycles = tl.load(cycles_ptr + row % channels)
    magnitude = tl.load(magnitude_ptr + row % channels)
    wait_for_previous(OVERLAP)
    x_row = x_ptr + row.to(tl.int64) * samples
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    end = tl.arange(0, 1)
    first = tl.sum(_snake(_upsampled(x_row, up_ptr, end, samples, 0), cycles, magnitude), 0)
    last = tl.sum(_snake(_upsampled(x_row, up_ptr, end + samples - 1, samples, 1), cycles, magnitude), 0)
    total = tl.zeros([TILE], tl.float32)
    for i in tl.static_range(6):
        odd = at + (i - 3)
        value = _snake(_upsampled(x_row, up_ptr, odd, samples, 1), cycles, magnitude)
        value = tl.where(odd < 0, first, tl.where(odd >= samples, last, value))
        total += value * tl.load(down_ptr + 2 * i)
        even = at + (i - 2)
        value = _snake(_upsampled(x_row, up_ptr, even, samples, 0), cycles, magnitude)
        value = tl.where(even < 0, first, tl.where(even >= samples, last, value))
        total += value * tl.load(down_ptr + 2 * i + 1)
    tl.store(out_ptr + row.to(tl.int64) * samples + at, total.to(out_ptr.dtype.element_ty), mask=at < samples)


def antialiased_snake(x: Tensor, up_filter: Tensor, down_filter: Tensor, cycles: Tensor, magnitude: Tensor) -> Tensor:
    """x [batch, channels, samples] -> the same shape: x + magnitude * sin(pi * cycles * x)^2 at twice the sample rate.

    Filters float32 [12], the first with the gain of 2 that upsampling needs; cycles, magnitude float32 [channels].
    """
    batch, channels, samples = x.shape
    assert x.is_contiguous() and len(up_filter) == len(down_filter) == _TAPS, "the kernel is made for BigVGAN's filters"
    out = torch.empty_like(x)
    _snake_kernel[(triton.cdiv(samples, _TILE), batch * channels)](x, out, up_filter, down_filter, cycles, magnitude,
                                                                   channels, samples, TILE=_TILE, **options(4))
    return out


class FusedActivation(nn.Module):
    """The package's `Activation1d` with trained weights, for inference on a GPU."""

    def __init__(self, activation: Any):
        super().__init__()
        snake, up, down = activation.act, activation.upsample, activation.downsample.lowpass
        frequency = snake.alpha.detach().float()
        magnitude = getattr(snake, "beta", snake.alpha).detach().float()
        if snake.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        assert up.stride == down.stride == 2 and (up.pad_left, down.pad_left) == (15, 5), "BigVGAN resamples by 2"
        # kept float32 whatever the network is cast to, hence no buffers
        self._constants = ((up.ratio * up.filter).float().flatten().contiguous(), down.filter.float().flatten(),
                           (frequency / math.pi).contiguous(), (1.0 / (magnitude + snake.no_div_by_zero)).contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, samples] -> the same"""
        if self._constants[0].device != x.device:
            self._constants = tuple(constant.to(x.device) for constant in self._constants)
        return antialiased_snake(x.contiguous(), *self._constants)


def fuse_activations(network: nn.Module) -> None:
    """Replace every `Activation1d` of a generator that has its weights and will not be trained further."""
    for name, child in network.named_children():
        if type(child).__name__ == "Activation1d":
            setattr(network, name, FusedActivation(child))
        else:
            fuse_activations(child)
