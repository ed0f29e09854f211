"""Float8 matrix times one vector: `matvec` for e4m3 weights with a scale per output.

Eight weights travel as one 64-bit integer. They are widened to pairs of float16 and multiplied two
at a time, four products of each pair are summed as float16, everything else as float32. The vector
is divided by its largest value first, so that no such sum can overflow (4 * 448 is far below
65504).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import (
    next_power_of_2,
    num_multiprocessors,
    options,
    wait_for_previous,
)

_CHUNK = 4096
_DOT = tl.constexpr("""
{
    .reg .b16 a<4>;
    .reg .b32 w<4>, sum;
    .reg .b16 low, high;
    .reg .f32 x, y;
    mov.b64 {a0, a1, a2, a3}, $1;
    cvt.rn.f16x2.e4m3x2 w0, a0;
    cvt.rn.f16x2.e4m3x2 w1, a1;
    cvt.rn.f16x2.e4m3x2 w2, a2;
    cvt.rn.f16x2.e4m3x2 w3, a3;
    mul.rn.f16x2 sum, w0, $2;
    fma.rn.f16x2 sum, w1, $3, sum;
    fma.rn.f16x2 sum, w2, $4, sum;
    fma.rn.f16x2 sum, w3, $5, sum;
    mov.b32 {low, high}, sum;
    cvt.f32.f16 x, low;
    cvt.f32.f16 y, high;
    add.f32 $0, x, y;
}
""")


@triton.jit
def _pairs(x):
    """float32 [8 * n] -> four int32 [n]: pairs of float16 at equal places of every eight."""
    N: tl.constexpr = x.shape[0] // 8
    even, odd = tl.split(tl.reshape(x, [N, 4, 2]))
    even = even.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    odd = odd.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    first, second = tl.split(tl.reshape(even | (odd << 16), [N, 2, 2]))
    pair0, pair2 = tl.split(first)
    pair1, pair3 = tl.split(second)
    return pair0, pair1, pair2, pair3


@triton.jit
def _dots(weights, pair0, pair1, pair2, pair3):
    """Sums of eight products: int64 [R, n] and int32 [n] -> float32 [R, n]."""
    return tl.inline_asm_elementwise(
        _DOT, "=f,l,r,r,r,r",
        [weights, pair0[None, :], pair1[None, :], pair2[None, :], pair3[None, :]], dtype=tl.float32,
        is_pure=True, pack=1)


@triton.jit
def _load_tile(weight_rows, tile_valid, packs, K: tl.constexpr, CHUNK: tl.constexpr):
    """One tile of weights, chunk by chunk: a tuple of int64 [R, CHUNK / 8]."""
    loaded = ()
    for start in tl.static_range(0, K // 8, CHUNK // 8):
        inside = tile_valid[:, None] & (start + packs < K // 8)[None, :]
        loaded += (tl.load(weight_rows + start, mask=inside, other=0),)
    return loaded


@triton.jit
def _row_sums(weights, pairs, K: tl.constexpr, CHUNK: tl.constexpr):
    """Products of a tile with the whole vector: float32 [R]."""
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    total = _dots(weights[0], pairs[0], pairs[1], pairs[2], pairs[3])
    for chunk in tl.static_range(1, NUM_CHUNKS):
        total += _dots(weights[chunk], pairs[4 * chunk], pairs[4 * chunk + 1], pairs[4 * chunk + 2],
                       pairs[4 * chunk + 3])
    return tl.sum(total, 1)


@triton.jit
def _load_vector(x_ptr, norm_ptr, lane, eps, K: tl.constexpr, CHUNK: tl.constexpr,
                 NORM: tl.constexpr):
    """One lane's vector as float16 pairs, chunk by chunk, and their multipliers."""
    columns = tl.arange(0, CHUNK)
    squares = 0.0
    largest = 1e-30
    for start in tl.static_range(0, K, CHUNK):
        k = start + columns
        x = tl.load(x_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 0)
            x *= tl.load(norm_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 0))
    shrink = 1.0 / largest
    pairs = ()
    for start in tl.static_range(0, K, CHUNK):
        k = start + columns
        x = tl.load(x_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32) * shrink
        if NORM:
            x *= tl.load(norm_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32)
        pairs += _pairs(x)
    if NORM:
        largest *= tl.rsqrt(squares / K + eps)
    return pairs, largest


@triton.jit
def _matvec8_kernel(x_ptr, weight_ptr, scale_ptr, norm_ptr, residual_ptr, out_ptr, num_outputs, eps,
                    K: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr, NORM: tl.constexpr,
                    GLU: tl.constexpr, RESIDUAL: tl.constexpr, OVERLAP: tl.constexpr):
    """The vector stays in registers while tiles of R outputs stream by, each loaded one tile ahead.

    weight_ptr is int64 [lanes, outputs, K / 8].
    """
    lane = tl.program_id(1)
    first = tl.program_id(0) * R + tl.arange(0, R)
    stride = tl.num_programs(0) * R
    packs = tl.arange(0, CHUNK // 8)
    lane_outputs = lane.to(tl.int64) * num_outputs * (2 if GLU else 1)
    weight_rows = weight_ptr + (lane_outputs + first)[:, None] * (K // 8) + packs[None, :]
    up_offset = num_outputs.to(tl.int64) * (K // 8)
    ahead = _load_tile(weight_rows, first < num_outputs, packs, K, CHUNK)
    if GLU:
        ahead_up = _load_tile(weight_rows + up_offset, first < num_outputs, packs, K, CHUNK)
    wait_for_previous(OVERLAP)
    pairs, largest = _load_vector(x_ptr, norm_ptr, lane, eps, K, CHUNK, NORM)
    for done in tl.range(0, num_outputs - tl.program_id(0) * R, stride):
        outputs = first + done
        valid = outputs < num_outputs
        next_rows = weight_rows + (done + stride).to(tl.int64) * (K // 8)
        weights = ahead
        ahead = _load_tile(next_rows, outputs + stride < num_outputs, packs, K, CHUNK)
        acc = _row_sums(weights, pairs, K, CHUNK)
        acc *= tl.load(scale_ptr + lane_outputs + outputs, mask=valid, other=0.0) * largest
        if GLU:
            ups = ahead_up
            ahead_up = _load_tile(next_rows + up_offset, outputs + stride < num_outputs, packs, K,
                                  CHUNK)
            acc_up = _row_sums(ups, pairs, K, CHUNK)
            acc_up *= tl.load(scale_ptr + lane_outputs + num_outputs + outputs, mask=valid,
                              other=0.0) * largest
            acc = acc / (1.0 + tl.exp(-acc)) * acc_up
        if RESIDUAL:
            acc += tl.load(residual_ptr + lane * num_outputs + outputs, mask=valid, other=0.0).to(
                tl.float32)
        tl.store(out_ptr + lane * num_outputs + outputs, acc.to(out_ptr.dtype.element_ty),
                 mask=valid)


def matvec8(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor, *, norm: Tensor | None = None,
            eps: float = 0.0, residual: Tensor | None = None, gated: bool = False) -> None:
    """`matvec` with weight float8 [lanes, outputs, K] and scale float32 [lanes, outputs]."""
    lanes, k = x.shape
    num_outputs = out.shape[1]
    assert weight.shape == (lanes, num_outputs * (1 + gated), k) and k % 8 == 0, "shapes do not fit"
    assert x.is_contiguous() and weight.is_contiguous() and out.is_contiguous(
    ), "matvec8 takes contiguous tensors"
    chunk = min(_CHUNK, next_power_of_2(k))
    tile, warps, programs = (4, 8, 2) if k > chunk else (2, 4, 4) if gated else (4, 4, 4)
    programs = min(triton.cdiv(num_outputs, tile), num_multiprocessors() * programs // lanes)
    _matvec8_kernel[(max(programs, 1), lanes)](
        x, weight.view(torch.int64), scale, x if norm is None else norm,
        x if residual is None else residual, out, num_outputs, eps, K=k, R=tile, CHUNK=chunk,
        NORM=norm is not None, GLU=gated, RESIDUAL=residual is not None, **options(warps))
