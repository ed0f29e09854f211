"""HiFT's Snake activation as one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import options, wait_for_previous

_TILE = 1024


@triton.jit
def _snake_kernel(x_ptr, frequency_ptr, out_ptr, channels, samples, TILE: tl.constexpr,
                  OVERLAP: tl.constexpr):
    row = tl.program_id(1)
    frequency = tl.load(frequency_ptr + row % channels)
    wait_for_previous(OVERLAP)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = row.to(tl.int64) * samples + at
    x = tl.load(x_ptr + place, mask=at < samples, other=0.0)
    sine = tl.sin(x * frequency)
    tl.store(out_ptr + place, x + sine * sine / (frequency + 1e-9), mask=at < samples)


def snake(x: Tensor, frequency: Tensor) -> Tensor:
    """Snake: x + sin(frequency * x)^2 / frequency; x float32 [batch, channels, samples]."""
    x = x.contiguous()
    batch, channels, samples = x.shape
    out = torch.empty_like(x)
    _snake_kernel[(triton.cdiv(samples, _TILE), batch * channels)](
        x, frequency, out, channels, samples, TILE=_TILE, **options(4))
    return out
