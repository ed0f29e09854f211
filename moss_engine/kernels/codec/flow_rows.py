"""What the kernels of the flow's estimator share: rows that are read, norms and activations.

Rows are [streams * 2 branches * frames, channels]. The residual stream is handed on as float32 rows
and the parts that are still to be added to them: products whose sums were split over several
programs.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
