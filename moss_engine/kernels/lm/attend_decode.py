"""Attention of one new row a sequence over the paged KV pool. Query heads of one KV head are
computed together."""

from __future__ import annotations

import triton
import triton.language as tl

from moss_engine.kernels.launch import start_next, wait_for_previous
from moss_engine.kernels.lm.pool_rows import find_blocks, load_half_keys, load_rows, place_rows
from moss_engine.kernels.lm.rotary import (
    load_angles,
    load_halves,
    load_norm,
    norm_rotate,
    store_halves,
)
from moss_engine.kernels.lm.softmax_parts import LOG2_E, LOWEST, add_up_parts, split_length


@triton.jit
def _load_new_row(row_ptr, norms, angles, kv_head, eps, dtype: tl.constexpr, KV: tl.constexpr,
                  G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, HP: tl.constexpr,
                  DP: tl.constexpr):
    """A new row's queries and key of one KV head, normed and rotated in halves, and its value."""
    heads, one, halves, dims = tl.arange(0, M), tl.arange(0, 1), tl.arange(0, HP), tl.arange(0, DP)
    q_first, q_second = load_halves(row_ptr + kv_head * G * D, heads, G, halves, D)
    q_first, q_second = norm_rotate(q_first, q_second, norms[0], norms[1], angles[0], angles[1],
                                    eps, D)
    k_first, k_second = load_halves(row_ptr + (KV * G + kv_head) * D, one, 1, halves, D)
    k_first, k_second = norm_rotate(k_first, k_second, norms[2], norms[3], angles[0], angles[1],
                                    eps, D)
    v_new = tl.load(row_ptr + (KV * (G + 1) + kv_head) * D + dims, mask=dims < D, other=0.0)
    return q_first.to(dtype), q_second.to(dtype), k_first.to(dtype), k_second.to(dtype), v_new.to(
        dtype)


@triton.jit
def _attend_to_itself(q_first, q_second, k_first, k_second, v_new, scale_log2, own, M: tl.constexpr,
                      DP: tl.constexpr):
    """The sums that attention starts with: those of the new row alone where `own`, else of nothing.
    """
    score = tl.sum(q_first.to(tl.float32) * k_first.to(tl.float32), 1)
    score += tl.sum(q_second.to(tl.float32) * k_second.to(tl.float32), 1)
    top = tl.where(own, score * scale_log2, LOWEST)
    total = tl.where(own, 1.0, 0.0) + tl.zeros([M], tl.float32)
    acc = tl.where(own, v_new.to(tl.float32), 0.0)[None, :] + tl.zeros([M, DP], tl.float32)
    return top, total, acc


@triton.jit
def _attend_tile(q_first, q_second, k_first, k_second, v, inside, scale_log2, top, total, acc):
    """Take one tile of cached rows into the sums of a decoding row's heads."""
    scores = tl.dot(q_first, k_first, input_precision="ieee")
    scores = tl.dot(q_second, k_second, scores, input_precision="ieee")
    scores = tl.where(inside[None, :], scores * scale_log2, LOWEST)
    new_top = tl.maximum(top, tl.max(scores, 1))
    keep = tl.exp2(top - new_top)
    weights = tl.exp2(scores - new_top[:, None])
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return new_top, total * keep + tl.sum(weights, 1), acc


@triton.jit
def _load_tile(k_pool_ptr, v_pool_ptr, blocks, t, end, pool_slot, kv_head, KV: tl.constexpr,
               D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr):
    """Cached rows t: both halves of the keys, transposed, and values."""
    halves, dims = tl.arange(0, HP), tl.arange(0, DP)
    at = place_rows(blocks, t, pool_slot, kv_head, KV, BLOCK, D)
    return (load_half_keys(k_pool_ptr, at, t, end, halves, D),
            load_half_keys(k_pool_ptr + D // 2, at, t, end, halves, D),
            load_rows(v_pool_ptr, at, t, end, dims, D))


@triton.jit
def _load_ahead(k_pool_ptr, v_pool_ptr, table, pool_slot, kv_head, start, end, KV: tl.constexpr,
                D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
                T: tl.constexpr):
    """The first tile of start..end, and where the second lies."""
    t = start + tl.arange(0, T)
    blocks = find_blocks(table, t, end, BLOCK)
    ahead = _load_tile(k_pool_ptr, v_pool_ptr, blocks, t, end, pool_slot, kv_head, KV, D, HP, DP,
                       BLOCK)
    return ahead, find_blocks(table, t + T, end, BLOCK)


@triton.jit
def _attend_ahead(q_first, q_second, ahead, blocks, k_pool_ptr, v_pool_ptr, table, pool_slot,
                  kv_head, start, end, scale_log2, top, total, acc, KV: tl.constexpr,
                  D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
                  T: tl.constexpr):
    """Attend to start..end; the first tile is `ahead`, the second's `blocks` are known."""
    times = tl.arange(0, T)
    for tile in tl.range(start, end, T, num_stages=1):
        t = tile + T + times
        then = _load_tile(k_pool_ptr, v_pool_ptr, blocks, t, end, pool_slot, kv_head, KV, D, HP, DP,
                          BLOCK)
        blocks = find_blocks(table, t + T, end, BLOCK)
        top, total, acc = _attend_tile(q_first, q_second, ahead[0], ahead[1], ahead[2], tile + times
                                       < end, scale_log2, top, total, acc)
        ahead = then
    return top, total, acc


@triton.jit
def _attend_staged(q_first, q_second, k_pool_ptr, v_pool_ptr, table, pool_slot, kv_head, start, end,
                   scale_log2, top, total, acc, KV: tl.constexpr, D: tl.constexpr, HP: tl.constexpr,
                   DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr):
    """Attend to start..end with STAGES tiles on their way."""
    times = tl.arange(0, T)
    for tile in tl.range(start, end, T, num_stages=STAGES):
        t = tile + times
        k_first, k_second, v = _load_tile(k_pool_ptr, v_pool_ptr, find_blocks(table, t, end, BLOCK),
                                          t, end, pool_slot, kv_head, KV, D, HP, DP, BLOCK)
        top, total, acc = _attend_tile(q_first, q_second, k_first, k_second, v, t < end, scale_log2,
                                       top, total, acc)
    return top, total, acc


@triton.jit
def _store_new_row(k_pool_ptr, v_pool_ptr, table, num_cached, pool_slot, kv_head, k_first, k_second,
                   v, KV: tl.constexpr, D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
                   BLOCK: tl.constexpr):
    """A new row's key, in halves, and its value to their places in the pool."""
    halves, dims = tl.arange(0, HP), tl.arange(0, DP)
    block = tl.load(table + num_cached // BLOCK)
    at = place_rows(block, num_cached, pool_slot, kv_head, KV, BLOCK, D)
    store_halves(k_pool_ptr + at, k_first, k_second, tl.arange(0, 1), 1, halves, D)
    tl.store(v_pool_ptr + at + dims, v, mask=dims < D)


@triton.jit
def _store_attended(out_ptr, acc, total, row, is_wanted, G: tl.constexpr, D: tl.constexpr,
                    M: tl.constexpr, DP: tl.constexpr):
    """The weighted mean of values for each head of one KV head, where this program has all of it.
    """
    heads, dims = tl.arange(0, M), tl.arange(0, DP)
    inside = (heads < G)[:, None] & (dims < D)[None, :] & is_wanted
    at = out_ptr + row * G * D + heads[:, None] * D + dims[None, :]
    tl.store(at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["batch", "slot", "lane_slots", "num_blocks", "table_stride", "num_splits"])
def attend_decode_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, tables_ptr,
                         k_pool_ptr, v_pool_ptr, out_ptr, part_acc_ptr, part_stats_ptr, counter_ptr,
                         batch, slot, lane_slots, num_blocks, table_stride, num_splits, scale, eps,
                         KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
                         HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
                         SPLIT: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr):
    """Decode attention straight from the qkv product: norms, rotary, KV write, attention.

    qkv: [lanes, batch, (KV * G + 2 * KV) * D]; positions[i] counts the cached rows of sequence i;
    out: [lanes, batch, KV * G * D]. Grid (num_splits, KV, lanes * batch); SPLIT tells whether there
    is more than one. The first split also attends to the new row itself. Positions, tables and
    cached rows are read before the previous kernel has ended: no kernel of the step writes them.

    Where there is little to read (STAGES 0), a split's first tile is loaded before the previous
    kernel has ended, every other one tile ahead of its use, and block numbers one ahead of that;
    otherwise STAGES tiles are on their way.
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
    if STAGES == 0:
        ahead, blocks = _load_ahead(k_pool_ptr, v_pool_ptr, table, pool_slot, kv_head, start, end,
                                    KV, D, HP, DP, BLOCK, T)
    norms = load_norm(q_norm_ptr + lane * D, halves, D) + load_norm(k_norm_ptr + lane * D, halves,
                                                                    D)
    angles = load_angles(rope_ptr, num_cached, halves, D)
    row = tl.program_id(2).to(tl.int64)
    wait_for_previous(OVERLAP)
    q_first, q_second, k_new_first, k_new_second, v_new = _load_new_row(
        qkv_ptr + row * (KV * (G + 2) * D), norms, angles, kv_head, eps,
        k_pool_ptr.dtype.element_ty, KV, G, D, M, HP, DP)
    scale_log2 = scale * LOG2_E
    top, total, acc = _attend_to_itself(q_first, q_second, k_new_first, k_new_second, v_new,
                                        scale_log2, split == 0, M, DP)
    if split == 0:
        _store_new_row(k_pool_ptr, v_pool_ptr, table, num_cached, pool_slot, kv_head, k_new_first,
                       k_new_second, v_new, KV, D, HP, DP, BLOCK)
    if STAGES == 0:
        top, total, acc = _attend_ahead(q_first, q_second, ahead, blocks, k_pool_ptr, v_pool_ptr,
                                        table, pool_slot, kv_head, start, end, scale_log2, top,
                                        total, acc, KV, D, HP, DP, BLOCK, T)
    else:
        top, total, acc = _attend_staged(q_first, q_second, k_pool_ptr, v_pool_ptr, table,
                                         pool_slot, kv_head, start, end, scale_log2, top, total,
                                         acc, KV, D, HP, DP, BLOCK, T, STAGES)
    is_last = True
    if SPLIT and (num_active > 1):
        is_last, acc, total = add_up_parts(
            acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr,
            tl.program_id(2) * KV + kv_head, split, num_active, num_splits, M, DP)
    _store_attended(out_ptr, acc, total, row * KV + kv_head, is_last, G, D, M, DP)
