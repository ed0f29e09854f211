"""New rows of a prefill: their way into the paged KV pool, and their attention over it.

Query heads of one KV head are computed together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moss_engine.kernels.launch import wait_for_previous
from moss_engine.kernels.lm.pool_rows import find_blocks, load_rows, place_rows
from moss_engine.kernels.lm.rotary import (
    load_angles,
    load_halves,
    load_norm,
    norm_rotate,
    store_halves,
)
from moss_engine.kernels.lm.softmax_parts import LOG2_E, LOWEST, add_up_parts, split_length


@triton.jit(do_not_specialize=["num_rows", "slot", "lane_slots", "num_blocks"])
def store_rows_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, pool_rows_ptr,
                      k_pool_ptr, v_pool_ptr, q_out_ptr, num_rows, slot, lane_slots, num_blocks,
                      eps, FIRST: tl.constexpr, KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
                      GP: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
                      OVERLAP: tl.constexpr):
    """Norm and rotate new rows: KV to the pool, queries to q_out [lanes, rows, KV * G * D].

    qkv: [lanes, rows, (FIRST + 2 * KV) * D] with FIRST query heads (none: keys and values only).
    pool_rows[i] is block * BLOCK + offset of row i. Grid (lanes * rows, KV).
    """
    row, kv_head = tl.program_id(0), tl.program_id(1)
    lane = row // num_rows
    wait_for_previous(OVERLAP)
    heads, one, halves, dims = tl.arange(0, GP), tl.arange(0, 1), tl.arange(0, HP), tl.arange(0, DP)
    position = tl.load(positions_ptr + row % num_rows)
    pool_row = tl.load(pool_rows_ptr + row % num_rows)
    cosine, sine = load_angles(rope_ptr, position, halves, D)
    source = qkv_ptr + row.to(tl.int64) * ((FIRST + 2 * KV) * D)
    if FIRST > 0:
        first, second = load_halves(source + kv_head * G * D, heads, G, halves, D)
        norm_first, norm_second = load_norm(q_norm_ptr + lane * D, halves, D)
        first, second = norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D)
        target = q_out_ptr + row.to(tl.int64) * (KV * G * D) + kv_head * G * D
        store_halves(target, first, second, heads, G, halves, D)
    first, second = load_halves(source + (FIRST + kv_head) * D, one, 1, halves, D)
    norm_first, norm_second = load_norm(k_norm_ptr + lane * D, halves, D)
    first, second = norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D)
    v = tl.load(source + (FIRST + KV + kv_head) * D + dims, mask=dims < D, other=0.0)
    pool_slot = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1)
    at = place_rows(pool_row // BLOCK, pool_row, pool_slot, kv_head, KV, BLOCK, D)
    store_halves(k_pool_ptr + at, first, second, one, 1, halves, D)
    tl.store(v_pool_ptr + at + dims, v.to(v_pool_ptr.dtype.element_ty), mask=dims < D)


@triton.jit
def _attend_tile(q, k, v, seen, scale_log2, top, total, acc):
    """Fold one tile of cached rows into the sums of a tile of queries, under the mask `seen`."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    scores = tl.where(seen, scores, LOWEST)
    new_top = tl.maximum(top, tl.max(scores, 1))
    keep = tl.exp2(top - new_top)
    weights = tl.where(seen, tl.exp2(scores - new_top[:, None]), 0.0)
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return new_top, total * keep + tl.sum(weights, 1), acc


@triton.jit(do_not_specialize=[
    "num_new", "max_tiles", "slot", "lane_slots", "num_blocks", "table_stride", "num_splits"
])
def attend_rows_kernel(q_ptr, tiles_ptr, tables_ptr, k_pool_ptr, v_pool_ptr, out_ptr, part_acc_ptr,
                       part_stats_ptr, counter_ptr, num_new, max_tiles, slot, lane_slots,
                       num_blocks, table_stride, num_splits, scale, KV: tl.constexpr,
                       G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GP: tl.constexpr,
                       DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr, SPLIT: tl.constexpr,
                       STAGES: tl.constexpr, OVERLAP: tl.constexpr):
    """Causal attention of tiles of new rows over all rows of their sequences in the pool.

    q, out: [lanes, num_new, KV * G * D]. tiles: int32 [4, max_tiles] = first row, number of rows
    (0: unused tile; at most M / GP), position of the first row, sequence. Grid (num_splits, KV,
    lanes * max_tiles).
    """
    split, kv_head = tl.program_id(0), tl.program_id(1)
    lane, tile = tl.program_id(2) // max_tiles, tl.program_id(2) % max_tiles
    wait_for_previous(OVERLAP)
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
    queries, dims, times = tl.arange(0, M), tl.arange(0, DP), tl.arange(0, T)
    rows, heads = queries // GP, queries % GP
    inside = ((rows < num_rows) & (heads < G))[:, None] & (dims < D)[None, :]
    offsets = (lane * num_new + first_row + rows).to(tl.int64)[:, None] * (KV * G * D)
    offsets += ((kv_head * G + heads) * D)[:, None] + dims[None, :]
    q = tl.load(q_ptr + offsets, mask=inside, other=0.0)
    pool_slot = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1)
    top = tl.full([M], LOWEST, tl.float32)
    total, acc = tl.zeros([M], tl.float32), tl.zeros([M, DP], tl.float32)
    table = tables_ptr + sequence * table_stride
    start, end = split * length, tl.minimum(num_positions, (split + 1) * length)
    for first in tl.range(start, end, T, num_stages=STAGES):
        t = first + times
        at = place_rows(find_blocks(table, t, end, BLOCK), t, pool_slot, kv_head, KV, BLOCK, D)
        k = load_rows(k_pool_ptr, at, t, end, dims, D)
        v = load_rows(v_pool_ptr, at, t, end, dims, D)
        seen = (t < end)[None, :] & (t[None, :] <= (position + rows)[:, None])
        top, total, acc = _attend_tile(q, k, v, seen, scale * LOG2_E, top, total, acc)
    is_last = True
    if SPLIT and (num_active > 1):
        is_last, acc, total = add_up_parts(
            acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr,
            tl.program_id(2) * KV + kv_head, split, num_active, num_splits, M, DP)
    tl.store(out_ptr + offsets, (acc / total[:, None]).to(out_ptr.dtype.element_ty),
             mask=inside & is_last)
