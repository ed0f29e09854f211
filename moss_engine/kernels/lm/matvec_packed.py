"""Matrix times one vector: `matvec` for weights of 8 and 4 bits with a scale per group of inputs.

A 64-bit integer of weights is widened to pairs of float16 by masks and multiplied two values at a
time; the products of one integer are summed as float16, everything else as float32. The vector is
scaled by its largest value first, so that no such sum can overflow, and stays in registers.
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

_CHUNK = 4096
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
def _load_inputs(x_ptr, norm_ptr, at, k, shrink, K: tl.constexpr, NORM: tl.constexpr):
    x = tl.load(x_ptr + at + k, mask=k < K, other=0.0).to(tl.float32) * shrink
    if NORM:
        x *= tl.load(norm_ptr + at + k, mask=k < K, other=0.0).to(tl.float32)
    return x


@triton.jit
def _load_vector(x_ptr, norm_ptr, lane, eps, K: tl.constexpr, CHUNK: tl.constexpr,
                 NORM: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
                 LARGEST: tl.constexpr, ASM: tl.constexpr):
    """One lane's vector in the order of the packed weights, and what sums are to be multiplied by.

    Pairs of float16 as int32, or, without machine instructions, single values as float32.
    """
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
