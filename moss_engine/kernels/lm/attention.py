"""Attention over the paged KV pool, for one row of every sequence and for many rows of some.

The pool is two tensors [slots, blocks + 1, kv_heads, block_size, head_dim]. The block after the
last one takes what padding rows write. In 8 bits (QUANT) a row is head_dim / 2 words of 16 bits,
whose lower bytes are the first half of a head and the upper ones the second, so that words reach
the tensor cores as values of 16 bits do; each row of a head has two scales, of its key and of its
value, which meet scores and weights. In decoding, keys go there as the bytes that they are and meet
queries of two bytes, so that only values are widened.

Positions are split over several programs where too few would run. Each keeps the sum of its
weighted values, the largest score and the sum of weights; the program that finishes last adds the
parts up, always in the same order.

Own kernels rather than a library's, because the decode kernel norms, rotates and writes the new row
itself, reads the block tables on the device, so that a captured graph needs no planning by the
host, and loads before the kernel ahead of it has ended. How they compare with FlashInfer's and
torch's is in docs/full_size.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import (
    interpreted,
    next_power_of_2,
    options,
    start_next,
    wait_for_previous,
)
from moss_engine.kernels.lm.integer_rows import join_bytes
from moss_engine.models.config import ModelConfig


@triton.jit
def find_blocks(table_ptr, t, end, BLOCK: tl.constexpr):
    """Numbers of the blocks that hold positions t."""
    return tl.load(table_ptr + t // BLOCK, mask=t < end, other=0)


@triton.jit
def place_rows(blocks, t, pool_slot, kv_head, KV: tl.constexpr, BLOCK: tl.constexpr,
               D: tl.constexpr):
    """Pool offsets of positions t in `blocks`; pool_slot is slot * (blocks + 1)."""
    return ((pool_slot + blocks) * KV + kv_head) * (BLOCK * D) + (t % BLOCK) * D


@triton.jit
def load_rows(pool_ptr, at, t, end, dims, D: tl.constexpr):
    """[T, dims] of keys or values; zeros from `end` on."""
    return tl.load(pool_ptr + at[:, None] + dims[None, :],
                   mask=(t < end)[:, None] & (dims < D)[None, :], other=0)


@triton.jit
def load_half_keys(pool_ptr, at, t, end, halves, D: tl.constexpr):
    """[D / 2, T] of keys, transposed."""
    inside = (t < end)[None, :] & (halves < D // 2)[:, None]
    return tl.load(pool_ptr + at[None, :] + halves[:, None], mask=inside, other=0)


_MOST_STEPS = tl.constexpr(127 * 256 + 127)  # of two signed bytes
# Two words of two int8 each to a pair of bfloat16, of lower or of upper bytes: 128 + the lower
# seven bits, less 128, or less 256 where the sign is set.
_WIDEN = tl.constexpr("""
    lop3.b32 $0, x, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 x, x, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $0, $0, one, x;
}
""")
_BEGIN = "{ .reg .b32 x, one; mov.b32 one, 0x3f803f80;"
_WIDEN_LOWER = tl.constexpr(_BEGIN + "mov.b32 x, $1;" + _WIDEN.value)
_WIDEN_UPPER = tl.constexpr(_BEGIN + "shr.u32 x, $1, 8;" + _WIDEN.value)
_UPPER_HALF = tl.constexpr(-65536)  # of an int32


@triton.jit
def widen_lower(words, dtype: tl.constexpr, QUANT: tl.constexpr):
    """First halves of heads as tensor cores take them; QUANT 2 by machine instructions."""
    if QUANT == 2 and dtype == tl.bfloat16:
        wide = tl.inline_asm_elementwise(_WIDEN_LOWER, "=&r,r", [words], tl.bfloat16, True, 2)
    else:
        wide = ((words << 8) >> 8).to(dtype)
    return wide


@triton.jit
def widen_upper(words, dtype: tl.constexpr, QUANT: tl.constexpr):
    """The same of second halves."""
    if QUANT == 2 and dtype == tl.bfloat16:
        wide = tl.inline_asm_elementwise(_WIDEN_UPPER, "=&r,r", [words], tl.bfloat16, True, 2)
    else:
        wide = (words >> 8).to(dtype)
    return wide


@triton.jit
def round_halves(first, second):
    """One row of a head in whole steps, and the size of a step, which bfloat16 holds."""
    largest = tl.maximum(tl.max(tl.abs(first)), tl.max(tl.abs(second)))
    bits = tl.maximum(largest / 127.0, 1e-12).to(tl.int32, bitcast=True)
    scale = ((bits + 0x8000) & _UPPER_HALF).to(tl.float32, bitcast=True)
    return tl.floor(first / scale + 0.5), tl.floor(second / scale + 0.5), scale


@triton.jit
def join_halves(first, second):
    """Words of whole steps."""
    return (first.to(tl.int16) & 0xFF) | (second.to(tl.int16) << 8)


@triton.jit
def join_scales(k_scale, v_scale):
    """Two bfloat16 in an int32, the key's in its lower half."""
    upper = v_scale.to(tl.int32, bitcast=True)
    return upper | ((k_scale.to(tl.int32, bitcast=True) >> 16) & 0xFFFF)


@triton.jit
def split_scales(scales):
    """The reverse of `join_scales`."""
    k_scale, v_scale = scales << 16, scales & _UPPER_HALF
    return k_scale.to(tl.float32, bitcast=True), v_scale.to(tl.float32, bitcast=True)


@triton.jit
def find_dims(HP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, QUANT: tl.constexpr):
    """Dimensions of the columns of a sum of values, and which of them there are: in 8 bits both
    halves are padded."""
    columns = tl.arange(0, DP)
    dims, exist = columns, columns < D
    if QUANT:
        dims, exist = columns // HP * (D // 2) + columns % HP, columns % HP < D // 2
    return dims, exist


@triton.jit
def whole(acc, M: tl.constexpr, DP: tl.constexpr):
    """A sum of values [M, DP] that was kept in halves."""
    return tl.reshape(tl.permute(tl.join(acc[0], acc[1]), (0, 2, 1)), (M, DP))


@triton.jit
def add_values(weights, v_scale, v, acc, keep, dtype: tl.constexpr, QUANT: tl.constexpr):
    """A tile's weighted values, added to what is kept of the sum."""
    if QUANT:
        weights = (weights * v_scale[None, :]).to(dtype)
        first, second = widen_lower(v, dtype, QUANT), widen_upper(v, dtype, QUANT)
        added = (tl.dot(weights, first, acc[0] * keep[:, None], input_precision="ieee"),
                 tl.dot(weights, second, acc[1] * keep[:, None], input_precision="ieee"))
    else:
        added = tl.dot(weights.to(dtype), v, acc * keep[:, None], input_precision="ieee")
    return added


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


LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)


@triton.jit
def split_length(num_positions, num_splits, T: tl.constexpr):
    """Positions one split attends to: whole tiles of T."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_positions, num_splits), T), 1) * T


@triton.jit
def add_up_parts(part_acc, part_top, part_total, accs_ptr, stats_ptr, counter_ptr, group, split,
                 num_active, num_splits, REAL: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
                 DP: tl.constexpr, AT_ONCE: tl.constexpr):
    """Store this split's part, REAL of its M rows; the last program to arrive returns (True, the
    sum of all), of R rows. It reads AT_ONCE parts at a time."""
    rows, columns = tl.arange(0, M), tl.arange(0, DP)
    base = group.to(tl.int64) * num_splits
    accs_ptr += base * M * DP
    stats_ptr += base * 2 * M
    tl.store(accs_ptr + (split * M + rows)[:, None] * DP + columns[None, :], part_acc,
             mask=(rows < REAL)[:, None])
    tl.store(stats_ptr + split * 2 * M + rows, part_top)
    tl.store(stats_ptr + split * 2 * M + M + rows, part_total)
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr + group, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == num_active - 1
    acc, total = tl.zeros([R, DP], tl.float32), tl.zeros([R], tl.float32)
    if is_last:
        tl.store(counter_ptr + group, 0)
        kept = tl.arange(0, R)
        top = tl.full([R], LOWEST, tl.float32)
        for first in tl.range(0, num_active, AT_ONCE):
            parts = ()
            for part in tl.static_range(AT_ONCE):
                wanted = (kept < REAL) & (first + part < num_active)
                stats = stats_ptr + (first + part) * 2 * M + kept
                places = accs_ptr + ((first + part) * M + kept)[:, None] * DP + columns[None, :]
                parts += ((tl.load(stats, mask=wanted, other=LOWEST),
                           tl.load(stats + M, mask=wanted, other=0.0),
                           tl.load(places, mask=wanted[:, None], other=0.0)),)
            for part in tl.static_range(AT_ONCE):
                new_top = tl.maximum(top, parts[part][0])
                keep, add = tl.exp2(top - new_top), tl.exp2(parts[part][0] - new_top)
                total = total * keep + parts[part][1] * add
                acc = acc * keep[:, None] + parts[part][2] * add[:, None]
                top = new_top
    return is_last, acc, total


@triton.jit
def _load_new_row(row_ptr, norms, angles, kv_head, eps, KV: tl.constexpr, G: tl.constexpr,
                  D: tl.constexpr, M: tl.constexpr, HP: tl.constexpr):
    """A new row's queries and key of one KV head, normed and rotated in halves, float32."""
    heads, one, halves = tl.arange(0, M), tl.arange(0, 1), tl.arange(0, HP)
    q_first, q_second = load_halves(row_ptr + kv_head * G * D, heads, G, halves, D)
    q_first, q_second = norm_rotate(q_first, q_second, norms[0], norms[1], angles[0], angles[1],
                                    eps, D)
    k_first, k_second = load_halves(row_ptr + (KV * G + kv_head) * D, one, 1, halves, D)
    k_first, k_second = norm_rotate(k_first, k_second, norms[2], norms[3], angles[0], angles[1],
                                    eps, D)
    return q_first, q_second, k_first, k_second


@triton.jit
def _store_row(k_pool_ptr, v_pool_ptr, scales_ptr, blocks_before, t, kv_head, k_first, k_second,
               value_ptr, KV: tl.constexpr, D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
               BLOCK: tl.constexpr, is_stored, QUANT: tl.constexpr):
    """A new row's key, in halves, and its value to position t of the pool's block, where it
    `is_stored`. Returns both as the pool holds them."""
    one, halves, dims = tl.arange(0, 1), tl.arange(0, HP), tl.arange(0, DP)
    if QUANT:
        v_first, v_second = load_halves(value_ptr, one, 1, halves, D)
        k_first, k_second, k_scale = round_halves(k_first, k_second)
        v_first, v_second, v_scale = round_halves(v_first, v_second)
        at = place_rows(blocks_before, t, 0, kv_head, KV, BLOCK, D // 2)
        place = at + halves[None, :]
        inside = (halves < D // 2)[None, :] & is_stored
        tl.store(k_pool_ptr + place, join_halves(k_first, k_second), mask=inside)
        tl.store(v_pool_ptr + place, join_halves(v_first, v_second), mask=inside)
        tl.store(scales_ptr + at // (D // 2), join_scales(k_scale, v_scale), mask=is_stored)
        held = (k_first * k_scale, k_second * k_scale,
                (tl.sum(v_first * v_scale, 0), tl.sum(v_second * v_scale, 0)))
    else:
        v = tl.load(value_ptr + dims, mask=dims < D, other=0.0)
        dtype: tl.constexpr = k_pool_ptr.dtype.element_ty
        at = place_rows(blocks_before, t, 0, kv_head, KV, BLOCK, D)
        k_first, k_second, v = k_first.to(dtype), k_second.to(dtype), v.to(dtype)
        if is_stored:
            store_halves(k_pool_ptr + at, k_first, k_second, one, 1, halves, D)
            tl.store(v_pool_ptr + at + dims, v, mask=dims < D)
        held = (k_first.to(tl.float32), k_second.to(tl.float32), v.to(tl.float32))
    return held


@triton.jit
def _attend_to_itself(q_first, q_second, k_first, k_second, scale_log2, own, M: tl.constexpr):
    """The largest score and the sum of weights that attention starts with: those of the new row
    alone where `own`, else of nothing."""
    score = tl.sum(q_first.to(tl.float32) * k_first, 1)
    score += tl.sum(q_second.to(tl.float32) * k_second, 1)
    top = tl.where(own, score * scale_log2, LOWEST)
    return top, tl.where(own, 1.0, 0.0) + tl.zeros([M], tl.float32)


@triton.jit
def _query_bytes(first, second, M: tl.constexpr, DP: tl.constexpr):
    """Queries as the bytes of keys meet them, and the size of a step of each. They are rounded to
    whole steps of 16 bits: int8 [2 * M, DP], of every head the upper bytes, then the lower ones,
    both signed, and dimensions in the order of the pool."""
    step = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), 1) / _MOST_STEPS
    step = tl.maximum(step, 1e-30)
    first = tl.floor(first / step[:, None] + 0.5).to(tl.int32)
    second = tl.floor(second / step[:, None] + 0.5).to(tl.int32)
    # not by tl.join: the product would take its tiles of keys from memory byte by byte
    pair = tl.arange(0, 2)
    steps = tl.where(pair[None, None, None, :] == 0, first[:, None, :, None],
                     second[:, None, :, None])
    upper = (steps + 128) >> 8
    both = tl.where(pair[None, :, None, None] == 0, upper, steps - upper * 256)
    return tl.reshape(both.to(tl.int8), (2 * M, DP)), step


@triton.jit
def _attend_tile(q, tile, inside, scale_log2, top, total, acc, dtype: tl.constexpr,
                 QUANT: tl.constexpr):
    """Take one tile of cached rows into the sums of a decoding row's heads. In 8 bits those rows
    are rows of both products and heads their columns, of which tensor cores take as few as 8."""
    OVER: tl.constexpr = 0 if QUANT else 1  # the axis of cached rows
    if QUANT:
        keys, v, scales = tile
        k_scale, v_scale = split_scales(scales)
        upper, lower = join_bytes(tl.dot(keys, tl.trans(q[0]), out_dtype=tl.int32))
        scores = (upper * 256 + lower).to(tl.float32) * (q[1] * scale_log2)[None, :]
        scores *= k_scale[:, None]
    else:
        k_first, k_second, v = tile
        scores = tl.dot(q[0], k_first, input_precision="ieee")
        scores = tl.dot(q[1], k_second, scores, input_precision="ieee") * scale_log2
    scores = tl.where(tl.expand_dims(inside, 1 - OVER), scores, LOWEST)
    new_top = tl.maximum(top, tl.max(scores, OVER))
    keep = tl.exp2(top - new_top)
    weights = tl.exp2(scores - tl.expand_dims(new_top, OVER))
    total = total * keep + tl.sum(weights, OVER)
    if QUANT:
        weights = (weights * tl.where(inside, v_scale, 0.0)[:, None]).to(dtype)
        first, second = widen_lower(v, dtype, QUANT), widen_upper(v, dtype, QUANT)
        acc = (tl.dot(first, weights, acc[0] * keep[None, :], input_precision="ieee"),
               tl.dot(second, weights, acc[1] * keep[None, :], input_precision="ieee"))
    else:
        acc = tl.dot(weights.to(dtype), v, acc * keep[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def _find_tile(table, first, end, T: tl.constexpr, BLOCK: tl.constexpr, QUANT: tl.constexpr):
    """Blocks of the T positions from `first` on: in 8 bits a number for each block of them."""
    if QUANT:
        # where neither size is a multiple of the other, a tile may begin and end inside blocks
        NUM: tl.constexpr = (T // BLOCK if T % BLOCK == 0 else 1 if BLOCK % T == 0 else
                             (T - 1) // BLOCK + 2)
        blocks = ()
        for i in tl.static_range(NUM):
            block = first // BLOCK + i
            blocks += (tl.load(table + block, mask=block * BLOCK < end, other=0),)
    else:
        blocks = find_blocks(table, first + tl.arange(0, T), end, BLOCK)
    return blocks


@triton.jit
def _load_tile(k_pool_ptr, v_pool_ptr, scales_ptr, blocks, first, end, pool_slot, kv_head,
               KV: tl.constexpr, D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
               BLOCK: tl.constexpr, T: tl.constexpr, QUANT: tl.constexpr):
    """The T cached rows from `first` on: both halves of the keys, transposed, and values. In 8 bits
    bytes of keys [T, DP], words of values, transposed, and scales; from `end` on they are whatever
    lies there."""
    times, halves, dims = tl.arange(0, T), tl.arange(0, HP), tl.arange(0, DP)
    if QUANT:
        row = times if T % BLOCK == 0 else first % BLOCK + times
        start = ((pool_slot + blocks[0]) * KV + kv_head) * BLOCK + tl.zeros_like(times)
        for i in tl.static_range(1, len(blocks)):
            start = tl.where(row < i * BLOCK, start,
                             ((pool_slot + blocks[i]) * KV + kv_head) * BLOCK)
        row %= BLOCK
        bytes_ptr = k_pool_ptr.to(tl.pointer_type(tl.int8))
        keys = tl.load(bytes_ptr + (start * D)[:, None] + (row[:, None] * D + dims[None, :]),
                       mask=(dims < D)[None, :], other=0)
        words = tl.load(v_pool_ptr + (start * (D // 2))[None, :]
                        + (row[None, :] * (D // 2) + halves[:, None]),
                        mask=(halves < D // 2)[:, None], other=0)
        tile = (keys, words, tl.load(scales_ptr + start + row))
    else:
        t = first + times
        at = place_rows(blocks, t, pool_slot, kv_head, KV, BLOCK, D)
        tile = (load_half_keys(k_pool_ptr, at, t, end, halves, D),
                load_half_keys(k_pool_ptr + D // 2, at, t, end, halves, D),
                load_rows(v_pool_ptr, at, t, end, dims, D))
    return tile


@triton.jit
def _store_attended(out_ptr, acc, total, row, is_wanted, G: tl.constexpr, D: tl.constexpr,
                    M: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, QUANT: tl.constexpr):
    """The weighted mean of values for each head of one KV head, where this program has all of it.
    """
    heads = tl.arange(0, M)
    dims, exist = find_dims(HP, D, DP, QUANT)
    inside = (heads < G)[:, None] & exist[None, :] & is_wanted
    at = out_ptr + row * G * D + heads[:, None] * D + dims[None, :]
    tl.store(at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["batch", "slot", "lane_slots", "num_blocks", "table_stride", "num_splits"])
def attend_decode_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, tables_ptr,
                         k_pool_ptr, v_pool_ptr, scales_ptr, out_ptr, part_acc_ptr, part_stats_ptr,
                         counter_ptr, batch, slot, lane_slots, num_blocks, table_stride, num_splits,
                         scale, eps, KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
                         GP: tl.constexpr, M: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
                         BLOCK: tl.constexpr, T: tl.constexpr, QUANT: tl.constexpr,
                         SPLIT: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr):
    """Decode attention straight from the qkv product: norms, rotary, KV write, attention.

    qkv: [lanes, batch, (KV * G + 2 * KV) * D]; positions[i] counts the cached rows of sequence i;
    out: [lanes, batch, KV * G * D]. Grid (num_splits, KV, lanes * batch); SPLIT tells whether there
    is more than one. The first split also attends to the new row itself. Positions, tables and
    cached rows are read before the previous kernel has ended: no kernel of the step writes them.

    Where there is little to read (STAGES 0), a split's first tile is loaded before the previous
    kernel has ended, every other one tile ahead of its use; otherwise STAGES tiles are on their
    way. Block numbers are there one tile earlier. In 8 bits scores are exact but for the rounding
    of queries to steps of 1 / 32639 of their largest value.
    """
    split, kv_head = tl.program_id(0), tl.program_id(1)
    lane, sequence = tl.program_id(2) // batch, tl.program_id(2) % batch
    start_next(OVERLAP)
    num_cached = tl.load(positions_ptr + sequence)
    length = split_length(num_cached, num_splits, T)
    num_active = tl.maximum(tl.cdiv(num_cached, length), 1)
    if split >= num_active:
        return
    halves = tl.arange(0, HP)
    pool_slot = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1)
    table = tables_ptr + sequence * table_stride
    start, end = split * length, tl.minimum(num_cached, (split + 1) * length)
    blocks = _find_tile(table, start, end, T, BLOCK, QUANT)
    if STAGES == 0:
        ahead = _load_tile(k_pool_ptr, v_pool_ptr, scales_ptr, blocks, start, end, pool_slot,
                           kv_head, KV, D, HP, DP, BLOCK, T, QUANT)
        blocks = _find_tile(table, start + T, end, T, BLOCK, QUANT)
    norms = load_norm(q_norm_ptr + lane * D, halves, D) + load_norm(k_norm_ptr + lane * D, halves,
                                                                    D)
    angles = load_angles(rope_ptr, num_cached, halves, D)
    row = tl.program_id(2).to(tl.int64)
    wait_for_previous(OVERLAP)
    qkv_ptr += row * (KV * (G + 2) * D)
    q_first, q_second, k_new_first, k_new_second = _load_new_row(qkv_ptr, norms, angles, kv_head,
                                                                 eps, KV, G, D, M, HP)
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    scale_log2 = scale * LOG2_E
    own = split == 0
    block = pool_slot + tl.load(table + num_cached // BLOCK)
    k_new_first, k_new_second, v_new = _store_row(
        k_pool_ptr, v_pool_ptr, scales_ptr, block, num_cached, kv_head, k_new_first, k_new_second,
        qkv_ptr + (KV * (G + 1) + kv_head) * D, KV, D, HP, DP, BLOCK, own, QUANT)
    top, total = _attend_to_itself(q_first, q_second, k_new_first, k_new_second, scale_log2, own, M)
    if QUANT:
        q = _query_bytes(q_first, q_second, M, DP)
        acc = (tl.where(own, v_new[0], 0.0)[:, None] + tl.zeros([HP, M], tl.float32),
               tl.where(own, v_new[1], 0.0)[:, None] + tl.zeros([HP, M], tl.float32))
    else:
        q = (q_first.to(dtype), q_second.to(dtype))
        acc = tl.where(own, v_new, 0.0)[None, :] + tl.zeros([M, DP], tl.float32)
    times = tl.arange(0, T)
    for first in tl.range(start, end, T, num_stages=max(STAGES, 1)):
        if STAGES == 0:
            tile = ahead
            ahead = _load_tile(k_pool_ptr, v_pool_ptr, scales_ptr, blocks, first + T, end,
                               pool_slot, kv_head, KV, D, HP, DP, BLOCK, T, QUANT)
            blocks = _find_tile(table, first + 2 * T, end, T, BLOCK, QUANT)
        else:
            tile = _load_tile(k_pool_ptr, v_pool_ptr, scales_ptr, blocks, first, end, pool_slot,
                              kv_head, KV, D, HP, DP, BLOCK, T, QUANT)
            blocks = _find_tile(table, first + T, end, T, BLOCK, QUANT)
        top, total, acc = _attend_tile(q, tile, first + times < end, scale_log2, top, total, acc,
                                       dtype, QUANT)
    if QUANT:
        acc = whole((tl.trans(acc[0]), tl.trans(acc[1])), M, DP)
    group = row * KV + kv_head
    if SPLIT and (num_active > 1):
        AT_ONCE: tl.constexpr = 16 if STAGES == 0 else 4  # of one sequence, all that are likely
        is_last, summed, weight = add_up_parts(
            acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr, group, split, num_active,
            num_splits, G, GP, M, DP, AT_ONCE)
        _store_attended(out_ptr, summed, weight, group, is_last, G, D, GP, HP, DP, QUANT)
    else:
        _store_attended(out_ptr, acc, total, group, True, G, D, M, HP, DP, QUANT)


@triton.jit(do_not_specialize=["num_rows", "slot", "lane_slots", "num_blocks"])
def store_rows_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, pool_rows_ptr,
                      k_pool_ptr, v_pool_ptr, scales_ptr, q_out_ptr, num_rows, slot, lane_slots,
                      num_blocks, eps, FIRST: tl.constexpr, KV: tl.constexpr, G: tl.constexpr,
                      D: tl.constexpr, GP: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
                      BLOCK: tl.constexpr, QUANT: tl.constexpr, OVERLAP: tl.constexpr):
    """Norm and rotate new rows: KV to the pool, queries to q_out [lanes, rows, KV * G * D].

    qkv: [lanes, rows, (FIRST + 2 * KV) * D] with FIRST query heads (none: keys and values only).
    pool_rows[i] is block * BLOCK + offset of row i. Grid (lanes * rows, KV).
    """
    row, kv_head = tl.program_id(0), tl.program_id(1)
    lane = row // num_rows
    heads, one, halves = tl.arange(0, GP), tl.arange(0, 1), tl.arange(0, HP)
    position = tl.load(positions_ptr + row % num_rows)
    pool_row = tl.load(pool_rows_ptr + row % num_rows)
    cosine, sine = load_angles(rope_ptr, position, halves, D)
    q_norms = load_norm(q_norm_ptr + lane * D, halves, D)
    k_norms = load_norm(k_norm_ptr + lane * D, halves, D)
    source = qkv_ptr + row.to(tl.int64) * ((FIRST + 2 * KV) * D)
    wait_for_previous(OVERLAP)
    if FIRST > 0:
        first, second = load_halves(source + kv_head * G * D, heads, G, halves, D)
        first, second = norm_rotate(first, second, q_norms[0], q_norms[1], cosine, sine, eps, D)
        target = q_out_ptr + row.to(tl.int64) * (KV * G * D) + kv_head * G * D
        store_halves(target, first, second, heads, G, halves, D)
    first, second = load_halves(source + (FIRST + kv_head) * D, one, 1, halves, D)
    first, second = norm_rotate(first, second, k_norms[0], k_norms[1], cosine, sine, eps, D)
    block = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1) + pool_row // BLOCK
    _store_row(k_pool_ptr, v_pool_ptr, scales_ptr, block, pool_row, kv_head, first, second,
               source + (FIRST + KV + kv_head) * D, KV, D, HP, DP, BLOCK, True, QUANT)


@triton.jit
def _attend_rows_tile(q, k_pool_ptr, v_pool_ptr, scales_ptr, blocks, t, end, seen, pool_slot,
                      kv_head, scale_log2, top, total, acc, KV: tl.constexpr, D: tl.constexpr,
                      HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
                      QUANT: tl.constexpr):
    """Fold one tile of cached rows into the sums of a tile of queries, under the mask `seen`."""
    halves, dims = tl.arange(0, HP), tl.arange(0, DP)
    if QUANT:
        dtype: tl.constexpr = q[0].dtype
        at = place_rows(blocks, t, pool_slot, kv_head, KV, BLOCK, D // 2)
        k = load_rows(k_pool_ptr, at, t, end, halves, D // 2)
        v = load_rows(v_pool_ptr, at, t, end, halves, D // 2)
        k_scale, v_scale = split_scales(tl.load(scales_ptr + at // (D // 2), mask=t < end, other=0))
        scores = tl.dot(q[0], tl.trans(widen_lower(k, dtype, QUANT)), input_precision="ieee")
        scores = tl.dot(q[1], tl.trans(widen_upper(k, dtype, QUANT)), scores,
                        input_precision="ieee")
        scores *= k_scale[None, :] * scale_log2
    else:
        dtype: tl.constexpr = q.dtype
        at = place_rows(blocks, t, pool_slot, kv_head, KV, BLOCK, D)
        k = load_rows(k_pool_ptr, at, t, end, dims, D)
        v = load_rows(v_pool_ptr, at, t, end, dims, D)
        v_scale = 1.0
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    scores = tl.where(seen, scores, LOWEST)
    new_top = tl.maximum(top, tl.max(scores, 1))
    keep = tl.exp2(top - new_top)
    weights = tl.where(seen, tl.exp2(scores - new_top[:, None]), 0.0)
    acc = add_values(weights, v_scale, v, acc, keep, dtype, QUANT)
    return new_top, total * keep + tl.sum(weights, 1), acc


@triton.jit(do_not_specialize=[
    "num_new", "max_tiles", "slot", "lane_slots", "num_blocks", "table_stride", "num_splits"
])
def attend_rows_kernel(q_ptr, tiles_ptr, tables_ptr, k_pool_ptr, v_pool_ptr, scales_ptr, out_ptr,
                       part_acc_ptr, part_stats_ptr, counter_ptr, num_new, max_tiles, slot,
                       lane_slots, num_blocks, table_stride, num_splits, scale, KV: tl.constexpr,
                       G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GP: tl.constexpr,
                       HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
                       QUANT: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
                       OVERLAP: tl.constexpr):
    """Causal attention of tiles of new rows over all rows of their sequences in the pool.

    q, out: [lanes, num_new, KV * G * D]. tiles: int32 [4, max_tiles] = first row, number of rows
    (0: unused tile; at most M / GP), position of the first row, sequence. Grid (num_splits, KV,
    lanes * max_tiles). Unused programs end before the previous kernel has.
    """
    split, kv_head = tl.program_id(0), tl.program_id(1)
    lane, tile = tl.program_id(2) // max_tiles, tl.program_id(2) % max_tiles
    start_next(OVERLAP)
    first_row, num_rows = tl.load(tiles_ptr + tile), tl.load(tiles_ptr + max_tiles + tile)
    if num_rows == 0:
        return
    position = tl.load(tiles_ptr + 2 * max_tiles + tile)
    sequence = tl.load(tiles_ptr + 3 * max_tiles + tile)
    num_positions = position + num_rows
    length = split_length(num_positions, num_splits, T)
    num_active = tl.cdiv(num_positions, length)
    if split >= num_active:
        return
    wait_for_previous(OVERLAP)
    queries, halves, times = tl.arange(0, M), tl.arange(0, HP), tl.arange(0, T)
    rows, heads = queries // GP, queries % GP
    dims, exist = find_dims(HP, D, DP, QUANT)
    are_new = ((rows < num_rows) & (heads < G))[:, None]
    inside = are_new & exist[None, :]
    offsets = (lane * num_new + first_row + rows).to(tl.int64)[:, None] * (KV * G * D)
    offsets += ((kv_head * G + heads) * D)[:, None]
    pool_slot = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1)
    top, total = tl.full([M], LOWEST, tl.float32), tl.zeros([M], tl.float32)
    if QUANT:
        of_half = are_new & (halves < D // 2)[None, :]
        q_ptr += offsets + halves[None, :]
        q = (tl.load(q_ptr, mask=of_half, other=0.0), tl.load(q_ptr + D // 2, mask=of_half,
                                                              other=0.0))
        acc = (tl.zeros([M, HP], tl.float32), tl.zeros([M, HP], tl.float32))
    else:
        q = tl.load(q_ptr + offsets + dims[None, :], mask=inside, other=0.0)
        acc = tl.zeros([M, DP], tl.float32)
    table = tables_ptr + sequence * table_stride
    start, end = split * length, tl.minimum(num_positions, (split + 1) * length)
    for first in tl.range(start, end, T, num_stages=STAGES):
        t = first + times
        seen = (t < end)[None, :] & (t[None, :] <= (position + rows)[:, None])
        top, total, acc = _attend_rows_tile(q, k_pool_ptr, v_pool_ptr, scales_ptr,
                                            find_blocks(table, t, end, BLOCK), t, end, seen,
                                            pool_slot, kv_head, scale * LOG2_E, top, total, acc, KV,
                                            D, HP, DP, BLOCK, QUANT)
    if QUANT:
        acc = whole(acc, M, DP)
    is_last = True
    if SPLIT and (num_active > 1):
        AT_ONCE: tl.constexpr = 4 if M <= 16 else 1  # larger parts have no registers for more
        is_last, acc, total = add_up_parts(
            acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr,
            tl.program_id(2) * KV + kv_head, split, num_active, num_splits, M, M, M, DP, AT_ONCE)
    tl.store(out_ptr + offsets + dims[None, :], (acc / total[:, None]).to(out_ptr.dtype.element_ty),
             mask=inside & is_last)


MAX_SPLITS = 32


@dataclass(frozen=True)
class _Tuning:
    """Split count, positions of a tile, warps and pipeline stages of `attend_decode_kernel`."""

    programs: int
    tile: int
    warps: int
    stages: int


# For up to so many lanes times sequences, as measured on an H200. One sequence's attention is
# latency: as many programs as run at once, which in 16 bits load all at once. Where there are
# several programs for every multiprocessor anyway, smaller ones share it. Tiles of rows compute,
# and adding up their larger parts costs more.
_DECODE = {1: _Tuning(128, 64, 8, 0), 63: _Tuning(256, 128, 8, 2), 127: _Tuning(256, 64, 4, 2)}
_DECODE_8 = {31: _Tuning(384, 128, 4, 2), 127: _Tuning(512, 128, 2, 2)}
_MOST = _Tuning(256, 32, 1, 2)
_ROWS, _ROWS_8 = _Tuning(264, 64, 4, 3), _Tuning(264, 64, 4, 2)
_SMALLEST_DOT = 16
_FEWEST_COLUMNS = 4  # heads, each with two bytes: tensor cores take 8 columns
_LARGEST_TILE = 64  # rows
_PART_VALUES = 1 << 25


@dataclass(frozen=True)
class Pool:
    """The KV pool: keys and values, each [slots, blocks + 1, kv_heads, block_size, head_dim]; or in
    8 bits int16 [..., head_dim / 2] with scales, int32 [slots, blocks + 1, kv_heads, block_size].
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences may own; the one after them takes the writes of padding rows."""
        return self.keys.shape[1] - 1

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the kernels take; they look at scales only where there are some."""
        return self.keys, self.values, self.keys if self.scales is None else self.scales


class PagedAttention:
    """Attention of one network over one pool; all calls share its split scratch memory.

    `rope` is float32 [positions, 2, head_dim / 2], cosines then sines; `max_groups` bounds the
    lanes times tiles, and the lanes times sequences, of a call.
    """

    def __init__(self, config: ModelConfig, pool: Pool, rope: Tensor, max_groups: int):
        self.pool = pool
        self._rope = rope
        self._eps = config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim = config.head_dim
        per_kv = heads // kv_heads
        self._num_heads = heads
        self._padded_heads = next_power_of_2(per_kv)
        in_int8 = pool.scales is not None
        self._decode_rows = max(_FEWEST_COLUMNS if in_int8 else _SMALLEST_DOT, self._padded_heads)
        half = max(_SMALLEST_DOT, next_power_of_2(head_dim // 2))
        quant = (1 if interpreted() else 2) if in_int8 else 0
        padded = 2 * half if quant else max(_SMALLEST_DOT, next_power_of_2(head_dim))
        self._shape = {"KV": kv_heads, "G": per_kv, "D": head_dim, "HP": half, "DP": padded,
                       "BLOCK": pool.block_size, "QUANT": quant}
        largest_part = _LARGEST_TILE * self._padded_heads * self._shape["DP"]
        size = min(_PART_VALUES, MAX_SPLITS * max_groups * kv_heads * largest_part)
        self._parts = torch.empty(size, device=rope.device)
        self._statistics = torch.empty(2 * size // self._shape["DP"], device=rope.device)
        self._counters = torch.zeros(max_groups * kv_heads, dtype=torch.int32, device=rope.device)

    def decode(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, slot: int, lane_slots: int,
               positions: Tensor, tables: Tensor, out: Tensor) -> None:
        """Decode: qkv [lanes, batch, ...] -> out [lanes, batch, heads * head_dim]; writes KV.

        positions [batch] counts the cached rows, tables [batch, blocks] are the block tables. Lane
        i uses KV slot slot + i * lane_slots.
        """
        lanes, batch, _ = out.shape
        tuning = self._decode_tuning(lanes, batch)
        splits = self._num_splits(lanes * batch, lanes * batch, self._decode_rows, tuning.programs)
        grid = (splits, self._shape["KV"], lanes * batch)
        attend_decode_kernel[grid](
            qkv, q_norm, k_norm, self._rope, positions, tables, *self.pool.tensors, out,
            self._parts, self._statistics, self._counters, batch, slot, lane_slots,
            self.pool.num_blocks, tables.stride(0), splits, self._scale, self._eps,
            GP=self._padded_heads, M=self._decode_rows, T=tuning.tile, SPLIT=splits > 1,
            STAGES=tuning.stages, **self._shape, **options(tuning.warps))

    def store(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, slot: int, lane_slots: int,
              positions: Tensor, pool_rows: Tensor, queries: Tensor | None) -> None:
        """Write new rows' KV, and their queries to `queries` [lanes, rows, heads * head_dim].

        qkv [lanes, rows, ...] holds queries, keys and values, or, where `queries` is None, keys and
        values only.
        """
        lanes, rows, _ = qkv.shape
        first = 0 if queries is None else self._num_heads
        store_rows_kernel[(lanes * rows, self._shape["KV"])](
            qkv, q_norm, k_norm, self._rope, positions, pool_rows, *self.pool.tensors,
            qkv if queries is None else queries, rows, slot, lane_slots, self.pool.num_blocks,
            self._eps, FIRST=first, GP=self._padded_heads, **self._shape,
            **options(1))

    def attend(self, queries: Tensor, slot: int, lane_slots: int, tiles: Tensor, tile_rows: int,
               tables: Tensor, out: Tensor) -> None:
        """Causal attention of stored rows: queries, out [lanes, rows, heads * head_dim]."""
        (lanes, num_new, _), max_tiles = queries.shape, tiles.shape[1]
        rows = max(_SMALLEST_DOT, tile_rows * self._padded_heads)
        tuning = _ROWS if self.pool.scales is None else _ROWS_8
        splits = self._num_splits(lanes * triton.cdiv(num_new, tile_rows), lanes * max_tiles, rows,
                                  tuning.programs)
        attend_rows_kernel[(splits, self._shape["KV"], lanes * max_tiles)](
            queries, tiles, tables, *self.pool.tensors, out, self._parts, self._statistics,
            self._counters, num_new, max_tiles, slot, lane_slots, self.pool.num_blocks,
            tables.stride(0), splits, self._scale, M=rows, GP=self._padded_heads, T=tuning.tile,
            SPLIT=splits > 1, STAGES=tuning.stages, **self._shape, **options(tuning.warps))

    def _decode_tuning(self, lanes: int, batch: int) -> _Tuning:
        groups = lanes * batch if batch > 1 else 1  # one sequence's lanes are as one
        tunings = _DECODE if self.pool.scales is None else _DECODE_8
        return next((tuning for most, tuning in tunings.items() if groups <= most), _MOST)

    def _num_splits(self, likely_groups: int, max_groups: int, rows: int,
                    wanted_programs: int) -> int:
        """Splits that give the wanted number of programs, as far as the scratch memory goes."""
        kv_heads = self._shape["KV"]
        possible = self._parts.numel() // (max_groups * kv_heads * rows * self._shape["DP"])
        return max(1, min(MAX_SPLITS, possible, wanted_programs // (likely_groups * kv_heads)))
