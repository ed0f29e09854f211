"""Matrix times one vector, at the speed of reading the matrix.

All kernels compute `out[lane] = epilogue(weight[lane] @ prologue(x[lane]))`. A lane is one of
several equal networks run side by side: one for the trunk, two for the text and audio branches.
The vector stays in registers while weights stream by, which are kept in registers on their way:
through shared memory, by asynchronous copies, they come more slowly. Caches drop them first, which
shortens a step of one row on an H100 by 0.4 to 1.1 %.

Weights of 16 bits are multiplied and summed in float32. Those of fewer travel as 64-bit integers.
float8 is widened to pairs of float16, and four products of each pair are summed as float16. Weights
of 8 and 4 bits meet the vector as integers of 16 bits, in steps of 1 / 32767 of its largest value,
of which four bytes are multiplied at a time and summed exactly: with 12,288 inputs their rounding
is at most 1.7e-3 of the vector's length.
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
from moss_engine.kernels.lm.packed import (
    dot_packs,
    input_pairs,
    input_words,
    larger,
    load_inputs,
    round_to_bits,
    sum_and_larger,
)

_CHUNK = 4096  # columns in registers at a time
_FLOAT8 = tl.constexpr(-8)  # in the place of the bits of an integer

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
def _load_inputs(x_ptr, K: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
                 PER: tl.constexpr):
    """A vector, or a norm's weights, chunk by chunk, each a tuple of tiles."""
    chunks = ()
    for start in tl.static_range(0, K, CHUNK):
        if PER == 1:
            k = start + tl.arange(0, CHUNK)
            chunks += ((tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32),),)
        else:
            chunks += (load_inputs(x_ptr, start, K, CHUNK, GROUP, PER),)
    return chunks


@triton.jit
def _flat(tile):
    """In any order. A reduction does so by itself, but Triton's interpreter not with two tiles."""
    return tl.reshape(tile, [tile.numel], can_reorder=True)


@triton.jit
def _load_vector(x_ptr, norms, eps, K: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
                 BITS: tl.constexpr, PER: tl.constexpr, ASM: tl.constexpr):
    """A vector as the weights meet it, a tuple for each chunk, and what sums are to be multiplied
    by: infinity or NaN where a value is."""
    NORM: tl.constexpr = len(norms) > 0
    loaded = _load_inputs(x_ptr, K, CHUNK, GROUP, PER)
    squares = tl.zeros(loaded[0][0].shape, tl.float32)
    largest = tl.full(loaded[0][0].shape, 1e-30, tl.float32)
    xs = ()
    for chunk in tl.static_range(len(loaded)):
        tiles = ()
        for i in tl.static_range(len(loaded[chunk])):
            x = loaded[chunk][i]
            if NORM:
                squares += x * x
                x *= norms[chunk][i]
            if BITS < 16:
                largest = larger(largest, tl.abs(x))
            tiles += (x,)
        xs += (tiles,)
    grow, total, top = 1.0, 0.0, 0.0
    if NORM and BITS < 16:
        total, top = tl.reduce((_flat(squares), _flat(largest)), 0, sum_and_larger)
    elif NORM:
        total = tl.sum(squares)
    elif BITS < 16:
        top = tl.reduce(largest, None, larger)
    if NORM:
        grow = tl.rsqrt(total / K + eps)
    if BITS < 16:
        floats, xs = xs, ()
        for chunk in tl.static_range(len(floats)):
            tiles = ()
            for i in tl.static_range(len(floats[chunk])):
                if BITS == _FLOAT8:
                    tiles += (floats[chunk][i] * (1.0 / top),)
                else:
                    tiles += (round_to_bits(floats[chunk][i] * (32767.0 / top)),)
            xs += (input_pairs(tiles, ASM) if BITS == _FLOAT8 else input_words(tiles, ASM),)
        grow *= top if BITS == _FLOAT8 else top / (32767.0 * (16 if BITS == 4 else 1))
    return xs, grow


@triton.jit
def _load_tile(weight_rows, scale_rows, valid, K: tl.constexpr, CHUNK: tl.constexpr,
               GROUP: tl.constexpr, PER: tl.constexpr):
    """One tile of weights, PER of them in each element, and the scales of their groups, if they
    have any, chunk by chunk: [CHUNK / PER, R] each, in which order both are loaded by the same
    threads."""
    packs = tl.arange(0, CHUNK // PER)
    weights = ()
    scales = ()
    for start in tl.static_range(0, K // PER, CHUNK // PER):
        inside = (start + packs < K // PER)[:, None] & valid[None, :]
        weights += (tl.load(weight_rows[None, :] + (start + packs)[:, None], mask=inside, other=0,
                            eviction_policy="evict_first"),)
        if GROUP < K:
            scales += (tl.load(scale_rows[None, :] + ((start + packs) // (GROUP // PER))[:, None],
                               mask=inside, other=0.0),)
    return weights, scales


@triton.jit
def _products(weights, xs, BITS: tl.constexpr, ASM: tl.constexpr):
    """Sums over the values of each element: float32 [n, R], or int32 of packed integers."""
    if BITS == 16:
        total = weights.to(tl.float32) * xs[0][:, None]
    elif BITS == _FLOAT8:
        total = tl.inline_asm_elementwise(
            _DOT, "=f,l,r,r,r,r",
            [weights, xs[0][:, None], xs[1][:, None], xs[2][:, None], xs[3][:, None]],
            dtype=tl.float32, is_pure=True, pack=1)
    else:
        total = dot_packs(weights, xs, BITS, ASM)
    return total


@triton.jit
def _row_sums(weights, scales, xs, BITS: tl.constexpr, ASM: tl.constexpr):
    """Products of a tile with the whole vector: float32 [R]."""
    total = _products(weights[0], xs[0], BITS, ASM)
    if len(scales) > 0:
        total = total.to(tl.float32) * scales[0].to(tl.float32)
    for chunk in tl.static_range(1, len(weights)):
        part = _products(weights[chunk], xs[chunk], BITS, ASM)
        if len(scales) > 0:
            part = part.to(tl.float32) * scales[chunk].to(tl.float32)
        total += part
    return tl.sum(total.to(tl.float32), 0)


@triton.jit
def _matvec_kernel(x_ptr, weight_ptr, scale_ptr, norm_ptr, residual_ptr, out_ptr, num_outputs,
                   weight_lane, scale_lane, eps, K: tl.constexpr, R: tl.constexpr,
                   CHUNK: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, PER: tl.constexpr,
                   NORM: tl.constexpr, GLU: tl.constexpr, RESIDUAL: tl.constexpr, ASM: tl.constexpr,
                   OVERLAP: tl.constexpr):
    """Tiles of R outputs stream by, each loaded one tile ahead, the first of them and the norm's
    weights before the previous kernel has ended.

    weight_ptr is [lanes, outputs, K / PER]; scale_ptr, for fewer than 16 bits, [lanes, outputs, K /
    GROUP]; weight_lane and scale_lane are the distances of two lanes in each.
    """
    PACKS: tl.constexpr = K // PER
    GROUPS: tl.constexpr = K // GROUP
    lane = tl.program_id(1)
    first = tl.program_id(0) * R + tl.arange(0, R)
    stride = tl.num_programs(0) * R
    weight_rows = weight_ptr + lane.to(tl.int64) * weight_lane + first.to(tl.int64) * PACKS
    scale_rows = scale_ptr + lane.to(tl.int64) * scale_lane + first.to(tl.int64) * GROUPS
    up = num_outputs.to(tl.int64)
    ahead, scales = _load_tile(weight_rows, scale_rows, first < num_outputs, K, CHUNK, GROUP, PER)
    if GLU:
        ahead_up, scales_up = _load_tile(weight_rows + up * PACKS, scale_rows + up * GROUPS,
                                         first < num_outputs, K, CHUNK, GROUP, PER)
    norms = ()
    if NORM:
        norms = _load_inputs(norm_ptr + lane * K, K, CHUNK, GROUP, PER)
    wait_for_previous(OVERLAP)
    xs, grow = _load_vector(x_ptr + lane * K, norms, eps, K, CHUNK, GROUP, BITS, PER, ASM)
    for done in tl.range(0, num_outputs - tl.program_id(0) * R, stride):
        outputs = first + done
        valid = outputs < num_outputs
        there = (done + stride).to(tl.int64)
        next_weights, next_scales = weight_rows + there * PACKS, scale_rows + there * GROUPS
        next_valid = outputs + stride < num_outputs
        weights, scale = ahead, scales
        ahead, scales = _load_tile(next_weights, next_scales, next_valid, K, CHUNK, GROUP, PER)
        acc = _row_sums(weights, scale, xs, BITS, ASM) * grow
        if BITS < 16 and GROUP == K:
            acc *= tl.load(scale_rows + done, mask=valid, other=0.0).to(tl.float32)
        if GLU:
            ups, scale_up = ahead_up, scales_up
            ahead_up, scales_up = _load_tile(next_weights + up * PACKS, next_scales + up * GROUPS,
                                             next_valid, K, CHUNK, GROUP, PER)
            acc_up = _row_sums(ups, scale_up, xs, BITS, ASM) * grow
            if BITS < 16 and GROUP == K:
                acc_up *= tl.load(scale_rows + up + done, mask=valid, other=0.0).to(tl.float32)
            acc = acc / (1.0 + tl.exp(-acc)) * acc_up
        if RESIDUAL:
            acc += tl.load(residual_ptr + lane * num_outputs + outputs, mask=valid, other=0.0).to(
                tl.float32)
        tl.store(out_ptr + lane * num_outputs + outputs, acc.to(out_ptr.dtype.element_ty),
                 mask=valid)


# Outputs of a tile, warps, and programs on a multiprocessor, as measured in whole steps on an H200:
# for more inputs than a chunk, for gates, for few outputs behind a norm and without, and for many.
_MANY = 16384
_TUNINGS = {
    16: {"long": (4, 8, 1), "gated": (1, 4, 8), "normed": (2, 8, 4), "few": (4, 8, 2),
         "many": (4, 8, 2)},
    _FLOAT8.value: {"long": (4, 8, 2), "gated": (4, 4, 4), "normed": (2, 4, 8), "few": (4, 4, 4),
         "many": (4, 4, 4)},
    8: {"long": (4, 8, 2), "gated": (4, 4, 4), "normed": (8, 4, 4), "few": (8, 4, 3),
        "many": (8, 4, 8)},
    4: {"long": (4, 4, 2), "gated": (4, 4, 4), "normed": (8, 8, 2), "few": (16, 4, 2),
        "many": (8, 4, 3)},
}
_BITS = {torch.float8_e4m3fn: _FLOAT8.value, torch.int8: 8, torch.uint8: 4}


def matvec(x: Tensor, weight: Tensor, out: Tensor, *, scale: Tensor | None = None,
           norm: Tensor | None = None, eps: float = 0.0, residual: Tensor | None = None,
           gated: bool = False) -> None:
    """out [lanes, N] = weight [lanes, N, K] times x [lanes, K].

    Weights of 4 bits are uint8 [lanes, N, K / 2]. scale: float32 [lanes, N] of float8 weights,
    float16 [lanes, N, groups] of 8 and 4 bits; weights and scales may be slices along N. norm
    [lanes, K]: x is RMS-normed first. residual [lanes, N] is added, and may be `out`. gated: the
    weight is [lanes, 2 * N, K], gates then ups, and out is silu(gate) * up.
    """
    lanes, k = x.shape
    num_outputs, bits = out.shape[1], _BITS.get(weight.dtype, 16)
    per = 1 if bits == 16 else 64 // abs(bits)
    width = k // 2 if bits == 4 else k
    assert weight.shape == (lanes, num_outputs * (1 + gated), width), "shapes do not fit"
    assert k % per == 0 and weight.stride(2) == 1 and weight.stride(1) == width
    assert x.is_contiguous() and out.is_contiguous(), "matvec takes contiguous rows"
    assert (scale is None) == (bits == 16), "weights of fewer than 16 bits have scales"
    packs = weight if bits == 16 else weight.view(torch.int64)
    # pointers that a variant never reads are filled with x
    scale = x if scale is None else scale
    chunk = min(_CHUNK, next_power_of_2(k))
    few = "few" if norm is None else "normed"
    kind = "long" if k > chunk else "gated" if gated else few if num_outputs < _MANY else "many"
    tile, warps, programs = _TUNINGS[bits][kind]
    programs = min(triton.cdiv(num_outputs, tile), num_multiprocessors() * programs // lanes)
    _matvec_kernel[(max(programs, 1), lanes)](
        x, packs, scale, x if norm is None else norm, x if residual is None else residual, out,
        num_outputs, packs.stride(0), scale.stride(0), eps, K=k, R=tile, CHUNK=chunk,
        GROUP=k // scale.shape[2] if scale.ndim == 3 else k, BITS=bits, PER=per,
        NORM=norm is not None, GLU=gated, RESIDUAL=residual is not None, ASM=not interpreted(),
        **options(warps))
