"""Per-head RMSNorm and rotary embedding of queries and keys."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_norm(weight_ptr, dims, D: tl.constexpr):
    """The norm's weights for both halves of a head: float32 [1, D / 2] each."""
    HALF: tl.constexpr = D // 2
    first = tl.load(weight_ptr + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    second = tl.load(weight_ptr + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    return first[None, :], second[None, :]


@triton.jit
def load_angles(rope_ptr, position, dims, D: tl.constexpr):
    """Cosine and sine of one position, float32 [1, D / 2]; table float32 [positions, 2, D / 2]."""
    HALF: tl.constexpr = D // 2
    at = rope_ptr + position * D + dims
    cosine = tl.load(at, mask=dims < HALF, other=0.0)
    sine = tl.load(at + HALF, mask=dims < HALF, other=0.0)
    return cosine[None, :], sine[None, :]


@triton.jit
def load_halves(row_ptr, heads, num_heads, dims, D: tl.constexpr):
    """Both halves of `heads` of one row, `num_heads` of them real: float32 [heads, D / 2] each."""
    HALF: tl.constexpr = D // 2
    at = row_ptr + (heads * D)[:, None] + dims[None, :]
    inside = (heads < num_heads)[:, None] & (dims < HALF)[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def store_halves(row_ptr, first, second, heads, num_heads, dims, D: tl.constexpr):
    """The reverse of `load_halves`, in the row's type."""
    HALF: tl.constexpr = D // 2
    at = row_ptr + (heads * D)[:, None] + dims[None, :]
    inside = (heads < num_heads)[:, None] & (dims < HALF)[None, :]
    tl.store(at, first.to(row_ptr.dtype.element_ty), mask=inside)
    tl.store(at + HALF, second.to(row_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D: tl.constexpr):
    """RMSNorm and NeoX rotation of a head's two halves, float32 [heads, D / 2] each."""
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    inverse_rms = tl.rsqrt(squares / D + eps)[:, None]
    first *= inverse_rms * norm_first
    second *= inverse_rms * norm_second
    return first * cosine - second * sine, second * cosine + first * sine
