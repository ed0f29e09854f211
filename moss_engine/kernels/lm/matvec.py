"""Matrix times one vector, at the speed of reading the matrix.

All functions compute `out[lane] = epilogue(weight[lane] @ prologue(x[lane]))`. A lane is one of
several equal networks run side by side: one for the trunk, two for the text and audio branches.
Products are summed in float32.

Weights on their way are kept in registers: through shared memory, by asynchronous copies, they come
more slowly.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import (
    next_power_of_2,
    num_multiprocessors,
    options,
    wait_for_previous,
)

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
