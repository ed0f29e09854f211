"""Matrix times one vector, at the speed of reading the matrix.

All functions compute `out[lane] = epilogue(weight[lane] @ prologue(x[lane]))`. A lane is one of
several equal networks run side by side: one for the trunk, two for the text and audio branches.
Products are summed in float32. Weights on their way are kept in registers: through shared memory,
by asynchronous copies, they come more slowly.

Weights of fewer than 16 bits travel as 64-bit integers. They are widened to pairs of float16, 4 and
8 bits by masks, and multiplied two values at a time; four products of each pair in float8, all of
one integer in fewer bits, are summed as float16, everything else as float32. The vector is scaled
by its largest value first, so that no such sum can overflow, and stays in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import (
    interpreted,
    next_power_of_2,
    num_multiprocessors,
    options,
    wait_for_previous,
)
from moss_engine.kernels.lm.packed import dot_packs, first_inputs, pair

_CHUNK = 4096  # columns in registers at a time
# Products with few outputs are faster as a stream through a fixed number of programs than as one
# program a tile.
_STREAM_OUTPUTS = 8192
_STREAM_TILE, _STREAM_WARPS, _STREAM_PROGRAMS = 4, 8, 2


@triton.jit
def _matvec_kernel(x_ptr, weight_ptr, norm_ptr, residual_ptr, out_ptr, num_outputs, eps,
                   K: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr, NORM: tl.constexpr,
                   GLU: tl.constexpr, RESIDUAL: tl.constexpr, OVERLAP: tl.constexpr):
    """R outputs a program; each chunk of weights is loaded before the one ahead of it is used, the
    first of them before the previous kernel has ended.
    """
    lane = tl.program_id(1)
    outputs = tl.program_id(0) * R + tl.arange(0, R)
    valid = outputs < num_outputs
    columns = tl.arange(0, CHUNK)
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    lane_outputs = lane.to(tl.int64) * num_outputs * (2 if GLU else 1)
    weight_rows = weight_ptr + (lane_outputs + outputs)[:, None] * K + columns[None, :]
    up_rows = weight_rows + num_outputs.to(tl.int64) * K
    inside = valid[:, None] & (columns < K)[None, :]
    weights = tl.load(weight_rows, mask=inside, other=0.0)
    if GLU:
        ups = tl.load(up_rows, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    acc = tl.zeros([R], tl.float32)
    acc_up = tl.zeros([R], tl.float32)
    squares = 0.0
    for chunk in tl.static_range(NUM_CHUNKS):
        if chunk + 1 < NUM_CHUNKS:
            inside = valid[:, None] & ((chunk + 1) * CHUNK + columns < K)[None, :]
            next_weights = tl.load(weight_rows + (chunk + 1) * CHUNK, mask=inside, other=0.0)
            if GLU:
                next_ups = tl.load(up_rows + (chunk + 1) * CHUNK, mask=inside, other=0.0)
        k = chunk * CHUNK + columns
        x = tl.load(x_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 0)
            x *= tl.load(norm_ptr + lane * K + k, mask=k < K, other=0.0).to(tl.float32)
        acc += tl.sum(weights.to(tl.float32) * x[None, :], 1)
        if GLU:
            acc_up += tl.sum(ups.to(tl.float32) * x[None, :], 1)
        if chunk + 1 < NUM_CHUNKS:
            weights = next_weights
            if GLU:
                ups = next_ups
    if NORM:
        inverse_rms = tl.rsqrt(squares / K + eps)
        acc *= inverse_rms
        acc_up *= inverse_rms
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    if RESIDUAL:
        acc += tl.load(residual_ptr + lane * num_outputs + outputs, mask=valid, other=0.0).to(
            tl.float32)
    tl.store(out_ptr + lane * num_outputs + outputs, acc.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def _matvec_stream_kernel(x_ptr, weight_ptr, norm_ptr, residual_ptr, out_ptr, num_outputs, eps,
                          K: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr, NORM: tl.constexpr,
                          RESIDUAL: tl.constexpr, OVERLAP: tl.constexpr):
    """x stays in registers while tiles of R outputs stream by, each loaded one tile ahead."""
    lane = tl.program_id(1)
    first = tl.program_id(0) * R + tl.arange(0, R)
    stride = tl.num_programs(0) * R
    columns = tl.arange(0, CHUNK)
    weight_rows = weight_ptr + (lane.to(tl.int64) * num_outputs +
                                first)[:, None] * K + columns[None, :]
    ahead = tl.load(weight_rows, mask=(first < num_outputs)[:, None] & (columns < K)[None, :],
                    other=0.0)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + lane * K + columns, mask=columns < K, other=0.0).to(tl.float32)
    if NORM:
        x *= tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        x *= tl.load(norm_ptr + lane * K + columns, mask=columns < K, other=0.0).to(tl.float32)
    for done in tl.range(0, num_outputs - tl.program_id(0) * R, stride):
        outputs = first + done
        weights = ahead
        next_valid = outputs + stride < num_outputs
        ahead = tl.load(weight_rows + (done + stride).to(tl.int64) * K,
                        mask=next_valid[:, None] & (columns < K)[None, :], other=0.0)
        acc = tl.sum(weights.to(tl.float32) * x[None, :], 1)
        valid = outputs < num_outputs
        if RESIDUAL:
            acc += tl.load(residual_ptr + lane * num_outputs + outputs, mask=valid, other=0.0).to(
                tl.float32)
        tl.store(out_ptr + lane * num_outputs + outputs, acc.to(out_ptr.dtype.element_ty),
                 mask=valid)


def matvec(x: Tensor, weight: Tensor, out: Tensor, *, norm: Tensor | None = None, eps: float = 0.0,
           residual: Tensor | None = None, gated: bool = False) -> None:
    """out [lanes, N] = weight [lanes, N, K] times x [lanes, K].

    norm [lanes, K]: x is RMS-normed first. residual [lanes, N] is added, and may be `out`. gated:
    the weight is [lanes, 2 * N, K], gates then ups, and out is silu(gate) * up.
    """
    lanes, k = x.shape
    num_outputs = out.shape[1]
    assert weight.shape == (lanes, num_outputs * (1 + gated), k), "shapes do not fit"
    assert x.is_contiguous() and weight.is_contiguous() and out.is_contiguous(
    ), "matvec takes contiguous tensors"
    # pointers that a variant never reads are filled with x
    pointers = (x, weight, x if norm is None else norm, x if residual is None else residual, out,
                num_outputs, eps)
    flags = {"K": k, "NORM": norm is not None, "RESIDUAL": residual is not None}
    chunk = min(_CHUNK, next_power_of_2(k))
    if not gated and chunk >= k and num_outputs < _STREAM_OUTPUTS:
        programs = min(triton.cdiv(num_outputs, _STREAM_TILE),
                       num_multiprocessors() * _STREAM_PROGRAMS // lanes)
        _matvec_stream_kernel[(max(programs, 1), lanes)](*pointers, R=_STREAM_TILE, CHUNK=chunk,
                                                         **flags, **options(_STREAM_WARPS))
        return
    tile, warps = (2, 4) if gated else (4, 8)
    _matvec_kernel[(triton.cdiv(num_outputs, tile), lanes)](*pointers, R=tile, CHUNK=chunk,
                                                            GLU=gated, **flags, **options(warps))


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
def _load_tile8(weight_rows, tile_valid, packs, K: tl.constexpr, CHUNK: tl.constexpr):
    """One tile of weights, chunk by chunk: a tuple of int64 [R, CHUNK / 8]."""
    loaded = ()
    for start in tl.static_range(0, K // 8, CHUNK // 8):
        inside = tile_valid[:, None] & (start + packs < K // 8)[None, :]
        loaded += (tl.load(weight_rows + start, mask=inside, other=0),)
    return loaded


@triton.jit
def _row_sums8(weights, pairs, K: tl.constexpr, CHUNK: tl.constexpr):
    """Products of a tile with the whole vector: float32 [R]."""
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    total = _dots(weights[0], pairs[0], pairs[1], pairs[2], pairs[3])
    for chunk in tl.static_range(1, NUM_CHUNKS):
        total += _dots(weights[chunk], pairs[4 * chunk], pairs[4 * chunk + 1], pairs[4 * chunk + 2],
                       pairs[4 * chunk + 3])
    return tl.sum(total, 1)


@triton.jit
def _load_inputs(x_ptr, norm_ptr, at, k, shrink, K: tl.constexpr, NORM: tl.constexpr):
    x = tl.load(x_ptr + at + k, mask=k < K, other=0.0).to(tl.float32) * shrink
    if NORM:
        x *= tl.load(norm_ptr + at + k, mask=k < K, other=0.0).to(tl.float32)
    return x


@triton.jit
def _measure(x_ptr, norm_ptr, lane, K: tl.constexpr, CHUNK: tl.constexpr, NORM: tl.constexpr):
    """A lane's sum of squares, if it is to be normed, and its largest magnitude."""
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
    return squares, largest


@triton.jit
def _load_vector8(x_ptr, norm_ptr, lane, eps, K: tl.constexpr, CHUNK: tl.constexpr,
                  NORM: tl.constexpr):
    """One lane's vector as float16 pairs, chunk by chunk, and their multipliers."""
    squares, largest = _measure(x_ptr, norm_ptr, lane, K, CHUNK, NORM)
    shrink = 1.0 / largest
    pairs = ()
    for start in tl.static_range(0, K, CHUNK):
        k = start + tl.arange(0, CHUNK)
        pairs += _pairs(_load_inputs(x_ptr, norm_ptr, lane * K, k, shrink, K, NORM))
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
    ahead = _load_tile8(weight_rows, first < num_outputs, packs, K, CHUNK)
    if GLU:
        ahead_up = _load_tile8(weight_rows + up_offset, first < num_outputs, packs, K, CHUNK)
    wait_for_previous(OVERLAP)
    pairs, largest = _load_vector8(x_ptr, norm_ptr, lane, eps, K, CHUNK, NORM)
    for done in tl.range(0, num_outputs - tl.program_id(0) * R, stride):
        outputs = first + done
        valid = outputs < num_outputs
        next_rows = weight_rows + (done + stride).to(tl.int64) * (K // 8)
        weights = ahead
        ahead = _load_tile8(next_rows, outputs + stride < num_outputs, packs, K, CHUNK)
        acc = _row_sums8(weights, pairs, K, CHUNK)
        acc *= tl.load(scale_ptr + lane_outputs + outputs, mask=valid, other=0.0) * largest
        if GLU:
            ups = ahead_up
            ahead_up = _load_tile8(next_rows + up_offset, outputs + stride < num_outputs, packs, K,
                                   CHUNK)
            acc_up = _row_sums8(ups, pairs, K, CHUNK)
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


# Outputs of a tile, warps, and programs on a multiprocessor, as measured on an H200: for more
# inputs than a chunk, for gates, for few outputs and for many.
_MANY = 16384
_TUNINGS = {
    8: {"long": (4, 4, 3), "gated": (4, 4, 4), "few": (8, 4, 3), "many": (8, 4, 8)},
    4: {"long": (4, 4, 2), "gated": (4, 4, 4), "few": (8, 8, 2), "many": (8, 4, 3)},
}
# What the vector's largest value becomes: 4 * 128 * 32 and 8 * 8 * 256 are a quarter of float16's.
_LARGEST = {8: 32.0, 4: 256.0}


@triton.jit
def _load_vector(x_ptr, norm_ptr, lane, eps, K: tl.constexpr, CHUNK: tl.constexpr,
                 NORM: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
                 LARGEST: tl.constexpr, ASM: tl.constexpr):
    """One lane's vector in the order of the packed weights, and what sums are to be multiplied by.

    Pairs of float16 as int32, or, without machine instructions, single values as float32.
    """
    squares, largest = _measure(x_ptr, norm_ptr, lane, K, CHUNK, NORM)
    shrink = LARGEST / largest
    PER: tl.constexpr = 64 // BITS
    HALF: tl.constexpr = GROUP // 2
    xs = ()
    for start in tl.static_range(0, K, CHUNK):
        packs = start // PER + tl.arange(0, CHUNK // PER)
        base = tl.where(packs < K // PER, first_inputs(packs, GROUP, BITS), K)
        if ASM:
            for i in tl.static_range(PER // 2):
                if BITS == 8:
                    a = _load_inputs(x_ptr, norm_ptr, lane * K, base + 2 * i, shrink, K, NORM)
                    b = _load_inputs(x_ptr, norm_ptr, lane * K, base + 2 * i + 1, shrink, K, NORM)
                else:
                    k = base + i // 4 * 4 + i % 4 // 2 + i % 2 * HALF
                    less = shrink * (0.0625 if i % 2 else 1.0)
                    a = _load_inputs(x_ptr, norm_ptr, lane * K, k, less, K, NORM)
                    b = _load_inputs(x_ptr, norm_ptr, lane * K, k + 2, less, K, NORM)
                xs += (pair(a, b),)
        else:
            for i in tl.static_range(PER):
                k = base + i if BITS == 8 else base + i // 2 + i % 2 * HALF
                xs += (_load_inputs(x_ptr, norm_ptr, lane * K, k, shrink, K, NORM),)
    grow = largest / LARGEST
    if NORM:
        grow *= tl.rsqrt(squares / K + eps)
    return xs, grow


@triton.jit
def _load_tile(weight_rows, scale_rows, tile_valid, K: tl.constexpr, CHUNK: tl.constexpr,
               GROUP: tl.constexpr, BITS: tl.constexpr):
    """One tile of weights and their scales, chunk by chunk: int64 and float16 [R, CHUNK / PER]."""
    PER: tl.constexpr = 64 // BITS
    packs = tl.arange(0, CHUNK // PER)
    weights = ()
    scales = ()
    for start in tl.static_range(0, K // PER, CHUNK // PER):
        inside = tile_valid[:, None] & (start + packs < K // PER)[None, :]
        weights += (tl.load(weight_rows[:, None] + (start + packs)[None, :], mask=inside, other=0),)
        if GROUP < K:
            scales += (tl.load(scale_rows[:, None] + ((start + packs) // (GROUP // PER))[None, :],
                               mask=inside, other=0.0),)
    return weights, scales


@triton.jit
def _row_sums(weights, scales, xs, K: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
              BITS: tl.constexpr, ASM: tl.constexpr):
    """Products of a tile with the whole vector: float32 [R]."""
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    EACH: tl.constexpr = (32 if ASM else 64) // BITS
    total = dot_packs(weights[0], xs, 0, BITS, ASM)
    if GROUP < K:
        total *= scales[0].to(tl.float32)
    for chunk in tl.static_range(1, NUM_CHUNKS):
        part = dot_packs(weights[chunk], xs, EACH * chunk, BITS, ASM)
        if GROUP < K:
            part *= scales[chunk].to(tl.float32)
        total += part
    return tl.sum(total, 1)


@triton.jit
def _matvec_packed_kernel(x_ptr, weight_ptr, scale_ptr, norm_ptr, residual_ptr, out_ptr,
                          num_outputs, weight_lane, scale_lane, eps, K: tl.constexpr,
                          R: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
                          BITS: tl.constexpr, LARGEST: tl.constexpr, NORM: tl.constexpr,
                          GLU: tl.constexpr, RESIDUAL: tl.constexpr, ASM: tl.constexpr,
                          OVERLAP: tl.constexpr):
    """Tiles of R outputs stream by, each loaded one tile ahead, the first of them before the
    previous kernel has ended.

    weight_ptr is int64 [lanes, outputs, K * BITS / 64], scale_ptr float16 [lanes, outputs, K /
    GROUP]; weight_lane and scale_lane are the distances of two lanes in each.
    """
    PACKS: tl.constexpr = K * BITS // 64
    GROUPS: tl.constexpr = K // GROUP
    lane = tl.program_id(1)
    first = tl.program_id(0) * R + tl.arange(0, R)
    stride = tl.num_programs(0) * R
    weight_rows = weight_ptr + lane.to(tl.int64) * weight_lane + first.to(tl.int64) * PACKS
    scale_rows = scale_ptr + lane.to(tl.int64) * scale_lane + first.to(tl.int64) * GROUPS
    up = num_outputs.to(tl.int64)
    ahead, scales = _load_tile(weight_rows, scale_rows, first < num_outputs, K, CHUNK, GROUP, BITS)
    if GLU:
        ahead_up, scales_up = _load_tile(weight_rows + up * PACKS, scale_rows + up * GROUPS,
                                         first < num_outputs, K, CHUNK, GROUP, BITS)
    wait_for_previous(OVERLAP)
    xs, grow = _load_vector(x_ptr, norm_ptr, lane, eps, K, CHUNK, NORM, GROUP, BITS, LARGEST, ASM)
    for done in tl.range(0, num_outputs - tl.program_id(0) * R, stride):
        outputs = first + done
        valid = outputs < num_outputs
        there = (done + stride).to(tl.int64)
        next_weights, next_scales = weight_rows + there * PACKS, scale_rows + there * GROUPS
        next_valid = outputs + stride < num_outputs
        weights, scale = ahead, scales
        ahead, scales = _load_tile(next_weights, next_scales, next_valid, K, CHUNK, GROUP, BITS)
        acc = _row_sums(weights, scale, xs, K, CHUNK, GROUP, BITS, ASM) * grow
        if GROUP == K:
            acc *= tl.load(scale_rows + done, mask=valid, other=0.0).to(tl.float32)
        if GLU:
            ups, scale_up = ahead_up, scales_up
            ahead_up, scales_up = _load_tile(next_weights + up * PACKS, next_scales + up * GROUPS,
                                             next_valid, K, CHUNK, GROUP, BITS)
            acc_up = _row_sums(ups, scale_up, xs, K, CHUNK, GROUP, BITS, ASM) * grow
            if GROUP == K:
                acc_up *= tl.load(scale_rows + up + done, mask=valid, other=0.0).to(tl.float32)
            acc = acc / (1.0 + tl.exp(-acc)) * acc_up
        if RESIDUAL:
            acc += tl.load(residual_ptr + lane * num_outputs + outputs, mask=valid, other=0.0).to(
                tl.float32)
        tl.store(out_ptr + lane * num_outputs + outputs, acc.to(out_ptr.dtype.element_ty),
                 mask=valid)


def matvec_packed(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor, *,
                  norm: Tensor | None = None, eps: float = 0.0, residual: Tensor | None = None,
                  gated: bool = False, tuning: tuple[int, int, int] | None = None) -> None:
    """`matvec` with weight int8 [lanes, outputs, K] or uint8 [lanes, outputs, K / 2], and scale
    float16 [lanes, outputs, groups]; both may be slices along their outputs.

    tuning: outputs of a tile, warps, programs on a multiprocessor.
    """
    lanes, k = x.shape
    num_outputs, bits = out.shape[1], 8 if weight.dtype is torch.int8 else 4
    assert weight.shape == (lanes, num_outputs * (1 + gated), k * bits // 8), "shapes do not fit"
    assert k % (64 // bits) == 0 and weight.stride(2) == 1 and weight.stride(1) == weight.shape[2]
    assert x.is_contiguous() and out.is_contiguous(), "matvec_packed takes contiguous rows"
    chunk = min(_CHUNK, next_power_of_2(k))
    kind = "long" if k > chunk else "gated" if gated else "few" if num_outputs < _MANY else "many"
    tile, warps, programs = tuning or _TUNINGS[bits][kind]
    programs = min(triton.cdiv(num_outputs, tile), num_multiprocessors() * programs // lanes)
    _matvec_packed_kernel[(max(programs, 1), lanes)](
        x, weight.view(torch.int64), scale, x if norm is None else norm,
        x if residual is None else residual, out, num_outputs, weight.stride(0) // 8,
        scale.stride(0), eps, K=k, R=tile, CHUNK=chunk, GROUP=k // scale.shape[2], BITS=bits,
        LARGEST=_LARGEST[bits], NORM=norm is not None, GLU=gated, RESIDUAL=residual is not None,
        ASM=not interpreted(), **options(warps))
