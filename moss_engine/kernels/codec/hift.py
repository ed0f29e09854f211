"""HiFT's Snake activation as one kernel, with what comes before it: bias and residual."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import options, wait_for_previous

_TILE = 1024


@triton.jit(do_not_specialize=["size"])
def _snake_kernel(x_ptr, bias_ptr, add_ptr, frequency_ptr, total_ptr, out_ptr, channels, size,
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
    bent = x + sine * sine / (frequency + 1e-9)
    tl.store(out_ptr + at, bent.to(out_ptr.dtype.element_ty), mask=mask)


def snake(x: Tensor, frequency: Tensor, bias: Tensor | None = None,
          add: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """y + sin(frequency * y)^2 / frequency of y = x + bias + add, and y.

    Signals are channels-last [batch, channels, 1, samples]; frequency and bias float32 [channels].
    """
    for other in (x, add):
        assert other is None or (other.shape == x.shape
                                 and other.is_contiguous(memory_format=torch.channels_last))
    assert add is None or bias is not None, "what is added up comes after a convolution"
    out, total = torch.empty_like(x), x if add is None else torch.empty_like(x)
    _snake_kernel[(triton.cdiv(x.numel(), _TILE), )](
        x, frequency if bias is None else bias, x if add is None else add, frequency, total, out,
        x.shape[1], x.numel(), HAS_BIAS=bias is not None, HAS_ADD=add is not None, TILE=_TILE,
        **options(4))
    return out, total
