"""Kernels of the flow's conformer: KV writes into rings, and relative attention over them.

Rows are [streams * count, ...]; `meta` is described in `flow_meta`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.codec.flow import WIDTH, place, precision
from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous

_ROWS = 16


@triton.jit
def _ring(meta_ptr, stream, AT: tl.constexpr, RATIO: tl.constexpr):
    """Load a conformer's fields of `meta`: places, then capacity, slot, seen, valid, prompt length.

    Lengths are in this conformer's steps, RATIO of them a code.
    """
    fields = meta_ptr + stream * WIDTH
    return (place(meta_ptr, stream, AT), place(
        meta_ptr, stream, AT + 1), place(meta_ptr, stream, AT + 2), place(
            meta_ptr, stream, AT + 3), tl.load(fields + 1) // RATIO, tl.load(fields + 2) // RATIO,
            tl.load(fields + 3) // RATIO, tl.load(fields + 4) // RATIO,
            tl.load(fields + 6) // RATIO)


@triton.jit(do_not_specialize=["block"])
def _keep_kernel(qkv_ptr, waves_ptr, anchor_ptr, meta_ptr, block, count, width, AT: tl.constexpr,
                 RATIO: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    stream, step = row // count, row % count
    rows, waves, _, _, capacity, slot, _, _, _ = _ring(meta_ptr, stream, AT, RATIO)
    columns = tl.arange(0, TILE)
    inside = columns < width
    key = tl.load(qkv_ptr + row * 3 * width + width + columns, mask=inside, other=0.0)
    value = tl.load(qkv_ptr + row * 3 * width + 2 * width + columns, mask=inside, other=0.0)
    target = anchor_ptr + rows + (block * 2 * capacity + slot + step) * width + columns
    tl.store(target, key, mask=inside)
    tl.store(target + capacity * width, value, mask=inside)
    if block == 0:
        wave = tl.load(waves_ptr + row * width + columns, mask=inside, other=0.0)
        target = anchor_ptr + waves + (slot + step) * width + columns
        tl.store(target, wave.to(anchor_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load_positional(positional_ptr, waves_ptr, mask, half, dtype: tl.constexpr):
    """What rows ask of a place's sine and cosine waves, relative to their own."""
    sine = tl.load(positional_ptr, mask=mask, other=0.0).to(tl.float32)
    cosine = tl.load(positional_ptr + half, mask=mask, other=0.0).to(tl.float32)
    own_sine = tl.load(waves_ptr, mask=mask, other=0.0)
    own_cosine = tl.load(waves_ptr + half, mask=mask, other=0.0)
    return ((cosine * own_sine - sine * own_cosine).to(dtype),
            (sine * own_sine + cosine * own_cosine).to(dtype))


@triton.jit(do_not_specialize=["block"])
def _attend_kernel(qkv_ptr, bias_ptr, positional_ptr, waves_ptr, out_ptr, anchor_ptr, meta_ptr,
                   block, streams, count, width, size, scale, AT: tl.constexpr, RATIO: tl.constexpr,
                   ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
                   PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    head, stream = tl.program_id(0), tl.program_id(1)
    dtype = out_ptr.dtype.element_ty
    columns, halves = tl.arange(0, SIZE), tl.arange(0, HALF)
    inside, half = columns < size, width // 2
    in_half = halves < half
    bias = tl.load(bias_ptr + head * size + columns, mask=inside, other=0.0)
    wait_for_previous(OVERLAP)
    own_rows, own_waves, past_rows, past_waves, capacity, slot, seen, valid, past = _ring(
        meta_ptr, stream, AT, RATIO)
    steps = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    rows = stream * count + steps
    real = (steps < count)[:, None]
    query = tl.load(qkv_ptr + rows[:, None] * 3 * width + head * size + columns[None, :],
                    mask=real & inside[None, :], other=0.0)
    query = (query + bias[None, :]).to(dtype)
    positional = positional_ptr + (head * streams * count + rows[:, None]) * width + halves[None, :]
    own = waves_ptr + rows[:, None] * width + halves[None, :]
    to_sine, to_cosine = _load_positional(positional, own, real & in_half[None, :], half, dtype)
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, SIZE], tl.float32)
    in_past = (past + BLOCK - 1) // BLOCK
    for part in range(in_past + (seen + BLOCK - 1) // BLOCK):
        is_past = part < in_past
        at = tl.where(is_past, part, part - in_past) * BLOCK + tl.arange(0, BLOCK)
        known = (at < tl.where(is_past, past, slot + valid)) | (at >= tl.where(
            is_past, past, slot + count))
        known = known & (at < tl.where(is_past, past, seen))
        length = tl.where(is_past, past, capacity)
        base = tl.where(is_past, past_rows,
                        own_rows) + (block * 2 * length + at) * width + head * size
        keys = anchor_ptr + base[:, None] + columns[None, :]
        wave = anchor_ptr + (tl.where(is_past, past_waves, own_waves) +
                             at * width)[:, None] + halves[None, :]
        wanted, wave_wanted = known[:, None] & inside[None, :], known[:, None] & in_half[None, :]
        scores = tl.dot(query, tl.trans(tl.load(keys, mask=wanted, other=0.0)),
                        input_precision=PRECISION)
        scores += tl.dot(to_sine, tl.trans(tl.load(wave, mask=wave_wanted, other=0.0)),
                         input_precision=PRECISION)
        scores += tl.dot(to_cosine, tl.trans(tl.load(wave + half, mask=wave_wanted, other=0.0)),
                         input_precision=PRECISION)
        scores = tl.where(known[None, :], scores * scale, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.where(known[None, :], tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(keys + length * width, mask=wanted, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(dtype), values,
                                                 input_precision=PRECISION)
        best = higher
    tl.store(out_ptr + rows[:, None] * width + head * size + columns[None, :],
             (acc / total[:, None]).to(dtype), mask=real & inside[None, :])


def keep(qkv: Tensor, waves: Tensor, anchor: Tensor, meta: Tensor, block: int, count: int, at: int,
         ratio: int) -> None:
    """Write KV of qkv [streams * count, 3 * width] into the rings whose fields begin at `at`.

    With the first block also waves float32 [streams * count, width].
    """
    width = waves.shape[1]
    _keep_kernel[(len(qkv),)](qkv, waves, anchor, meta, block, count, width, AT=at, RATIO=ratio,
                              TILE=next_power_of_2(width), **options(4))


def attend(qkv: Tensor, bias: Tensor, positional: Tensor, waves: Tensor, anchor: Tensor,
           meta: Tensor, block: int, count: int, at: int, ratio: int) -> Tensor:
    """Attention of qkv [streams * count, 3 * width] -> [streams * count, width].

    bias [heads, size]; positional [heads, streams * count, width] holds each query's products with
    sines and cosines; waves float32 [streams * count, width] are those of its own position.
    """
    (heads, size), width = bias.shape, waves.shape[1]
    out = qkv.new_empty(len(qkv), width)
    # float32 takes twice the shared memory, which holds three tiles of each block
    block_size, stages = (16, 1) if qkv.dtype == torch.float32 else (32, 2)
    _attend_kernel[(heads, len(meta), triton.cdiv(
        count, _ROWS))](qkv, bias, positional, waves, out, anchor, meta, block, len(meta), count,
                        width, size, 1 / math.sqrt(size), AT=at, RATIO=ratio, ROWS=_ROWS, SIZE=max(
                            16, next_power_of_2(size)), HALF=max(16, next_power_of_2(
                                width // 2)), BLOCK=block_size, PRECISION=precision(qkv), **options(
                                    4, stages))
    return out
