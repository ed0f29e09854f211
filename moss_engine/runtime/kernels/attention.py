"""Attention over the paged KV pool, for one new row a sequence and for tiles of new rows.

The pool is two tensors [slots, blocks + 1, kv_heads, block_size, head_dim]; the block after the last one takes what
padding rows write. Query heads of one KV head are computed together. Where too few programs would run, the
cached positions are split over several, and the one that finishes last adds the parts up, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moss_engine.runtime.kernels.launch import start_next, wait_for_previous

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-1e30)


@triton.jit
def load_norm(weight_ptr, dims, D: tl.constexpr):
    """The norm's weights for both halves of a head: float32 [1, D / 2] each."""
    HALF: tl.constexpr = D // 2
    first = tl.load(weight_ptr + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    second = tl.load(weight_ptr + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    return first[None, :], second[None, :]


@triton.jit
def load_angles(rope_ptr, position, dims, D: tl.constexpr):
    """Cosines and sines of one position: float32 [1, D / 2] each; rope_ptr is float32 [positions, 2, D / 2]."""
    HALF: tl.constexpr = D // 2
    at = rope_ptr + position * D + dims
    cosine = tl.load(at, mask=dims < HALF, other=0.0)
    sine = tl.load(at + HALF, mask=dims < HALF, other=0.0)
    return cosine[None, :], sine[None, :]


@triton.jit
def norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D: tl.constexpr):
    """RMSNorm over a head, then NeoX rotary embedding, on its two halves (float32 [heads, D / 2] each)."""
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    inverse_rms = tl.rsqrt(squares / D + eps)[:, None]
    first *= inverse_rms * norm_first
    second *= inverse_rms * norm_second
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _split_length(num_positions, num_splits, T: tl.constexpr):
    """Positions one split attends to: whole tiles of T."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_positions, num_splits), T), 1) * T


@triton.jit
def _find_blocks(table_ptr, t, end, BLOCK: tl.constexpr):
    return tl.load(table_ptr + t // BLOCK, mask=t < end, other=0)


@triton.jit
def _place_rows(blocks, t, pool_slot, kv_head, KV: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr):
    """Offsets into the pool of positions t, which lie in `blocks`."""
    return ((pool_slot + blocks) * KV + kv_head) * (BLOCK * D) + (t % BLOCK) * D


@triton.jit
def _load_rows(pool_ptr, at, t, end, dims, D: tl.constexpr):
    """[T, dims] of keys or values; zeros from `end` on."""
    return tl.load(pool_ptr + at[:, None] + dims[None, :], mask=(t < end)[:, None] & (dims < D)[None, :], other=0.0)


@triton.jit
def _load_half_keys(pool_ptr, at, t, end, halves, D: tl.constexpr):
    """[D / 2, T] of keys, transposed."""
    inside = (t < end)[None, :] & (halves < D // 2)[:, None]
    return tl.load(pool_ptr + at[None, :] + halves[:, None], mask=inside, other=0.0)


@triton.jit
def _add_up_parts(acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr, group, split, num_active,
                  num_splits, M: tl.constexpr, DP: tl.constexpr):
    """Store this split's part; in the program that arrives last return (True, the sum over all parts)."""
    rows = tl.arange(0, M)
    columns = tl.arange(0, DP)
    tile = rows[:, None] * DP + columns[None, :]
    base = group.to(tl.int64) * num_splits
    tl.store(part_acc_ptr + (base + split) * M * DP + tile, acc)
    tl.store(part_stats_ptr + (base + split) * 2 * M + rows, top)
    tl.store(part_stats_ptr + (base + split) * 2 * M + M + rows, total)
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr + group, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == num_active - 1
    if is_last:
        tl.store(counter_ptr + group, 0)
        acc = tl.zeros([M, DP], tl.float32)
        total = tl.zeros([M], tl.float32)
        top = tl.full([M], _LOWEST, tl.float32)
        for part in tl.range(0, num_active):
            part_top = tl.load(part_stats_ptr + (base + part) * 2 * M + rows)
            part_total = tl.load(part_stats_ptr + (base + part) * 2 * M + M + rows)
            new_top = tl.maximum(top, part_top)
            keep, add = tl.exp2(top - new_top), tl.exp2(part_top - new_top)
            acc = acc * keep[:, None] + tl.load(part_acc_ptr + (base + part) * M * DP + tile) * add[:, None]
            total = total * keep + part_total * add
            top = new_top
    return is_last, acc, total


@triton.jit
def _attend_tile(q_first, q_second, k_first, k_second, v, inside, scale_log2, top, total, acc):
    """Take one tile of cached rows into the sums of a decoding row's heads."""
    scores = tl.dot(q_first, k_first, input_precision="ieee")
    scores = tl.dot(q_second, k_second, scores, input_precision="ieee")
    scores = tl.where(inside[None, :], scores * scale_log2, _LOWEST)
    new_top = tl.maximum(top, tl.max(scores, 1))
    keep = tl.exp2(top - new_top)
    weights = tl.exp2(scores - new_top[:, None])
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return new_top, total * keep + tl.sum(weights, 1), acc


@triton.jit(do_not_specialize=["batch", "slot", "lane_slots", "num_blocks", "table_stride", "num_splits"])
def attend_decode_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, tables_ptr, k_pool_ptr, v_pool_ptr,
                         out_ptr, part_acc_ptr, part_stats_ptr, counter_ptr, batch, slot, lane_slots, num_blocks,
                         table_stride, num_splits, scale, eps, KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
                         M: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
                         SPLIT: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr):
    """One new row a sequence, straight from the qkv product: norms, rotary embedding, KV write and attention.

    qkv: [lanes, batch, (KV * G + 2 * KV) * D]; positions[i] counts the cached rows of sequence i; out: [lanes, batch,
    KV * G * D]. Grid (num_splits, KV, lanes * batch); SPLIT tells whether there is more than one. The first split also
    attends to the new row itself. Positions, tables and cached rows are read before the previous kernel has ended: a
    kernel of the same step must not write them.

    Where there is little to read (STAGES 0), a split's first tile is loaded before the previous kernel has ended, every
    other one tile ahead of its use, and block numbers one ahead of that; otherwise STAGES tiles are on their way.
    """
    HALF: tl.constexpr = D // 2
    split, kv_head = tl.program_id(0), tl.program_id(1)
    lane, sequence = tl.program_id(2) // batch, tl.program_id(2) % batch
    start_next(OVERLAP)
    num_cached = tl.load(positions_ptr + sequence)
    length = _split_length(num_cached, num_splits, T)
    num_active = tl.maximum(tl.cdiv(num_cached, length), 1)
    if split >= num_active:
        return
    heads, halves, dims, times = tl.arange(0, M), tl.arange(0, HP), tl.arange(0, DP), tl.arange(0, T)
    pool_dtype = k_pool_ptr.dtype.element_ty
    pool_slot = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1)

    table = tables_ptr + sequence * table_stride
    start, end = split * length, tl.minimum(num_cached, (split + 1) * length)
    if STAGES == 0:
        t = start + times
        at = _place_rows(_find_blocks(table, t, end, BLOCK), t, pool_slot, kv_head, KV, BLOCK, D)
        k_first_tile = _load_half_keys(k_pool_ptr, at, t, end, halves, D)
        k_second_tile = _load_half_keys(k_pool_ptr + HALF, at, t, end, halves, D)
        v_tile = _load_rows(v_pool_ptr, at, t, end, dims, D)
        blocks = _find_blocks(table, t + T, end, BLOCK)
    q_norm_first, q_norm_second = load_norm(q_norm_ptr + lane * D, halves, D)
    k_norm_first, k_norm_second = load_norm(k_norm_ptr + lane * D, halves, D)
    cosine, sine = load_angles(rope_ptr, num_cached, halves, D)
    wait_for_previous(OVERLAP)

    row = qkv_ptr + tl.program_id(2).to(tl.int64) * (KV * (G + 2) * D)
    q_at = row + ((kv_head * G + heads) * D)[:, None] + halves[None, :]
    q_inside = (heads < G)[:, None] & (halves < HALF)[None, :]
    q_first = tl.load(q_at, mask=q_inside, other=0.0).to(tl.float32)
    q_second = tl.load(q_at + HALF, mask=q_inside, other=0.0).to(tl.float32)
    q_first, q_second = norm_rotate(q_first, q_second, q_norm_first, q_norm_second, cosine, sine, eps, D)
    q_first, q_second = q_first.to(pool_dtype), q_second.to(pool_dtype)
    k_at = row + (KV * G + kv_head) * D + halves[None, :] + tl.arange(0, 1)[:, None]
    k_inside = (halves < HALF)[None, :]
    k_first = tl.load(k_at, mask=k_inside, other=0.0).to(tl.float32)
    k_second = tl.load(k_at + HALF, mask=k_inside, other=0.0).to(tl.float32)
    k_first, k_second = norm_rotate(k_first, k_second, k_norm_first, k_norm_second, cosine, sine, eps, D)
    k_first, k_second = k_first.to(pool_dtype), k_second.to(pool_dtype)
    v_new = tl.load(row + (KV * (G + 1) + kv_head) * D + dims, mask=dims < D, other=0.0).to(pool_dtype)

    scale_log2 = scale * _LOG2_E
    own = split == 0
    new_score = tl.sum(q_first.to(tl.float32) * k_first.to(tl.float32), 1)
    new_score += tl.sum(q_second.to(tl.float32) * k_second.to(tl.float32), 1)
    top = tl.where(own, new_score * scale_log2, _LOWEST)
    total = tl.where(own, 1.0, 0.0) + tl.zeros([M], tl.float32)
    acc = tl.where(own, v_new.to(tl.float32), 0.0)[None, :] + tl.zeros([M, DP], tl.float32)
    if own:
        block = tl.load(tables_ptr + sequence * table_stride + num_cached // BLOCK)
        new_at = ((pool_slot + block) * KV + kv_head) * BLOCK * D + (num_cached % BLOCK) * D
        tl.store(k_pool_ptr + new_at + halves[None, :] + tl.arange(0, 1)[:, None], k_first, mask=k_inside)
        tl.store(k_pool_ptr + new_at + HALF + halves[None, :] + tl.arange(0, 1)[:, None], k_second, mask=k_inside)
        tl.store(v_pool_ptr + new_at + dims, v_new, mask=dims < D)

    if STAGES == 0:
        for tile in tl.range(start, end, T, num_stages=1):
            t_next = tile + T + times
            at = _place_rows(blocks, t_next, pool_slot, kv_head, KV, BLOCK, D)
            k_first_next = _load_half_keys(k_pool_ptr, at, t_next, end, halves, D)
            k_second_next = _load_half_keys(k_pool_ptr + HALF, at, t_next, end, halves, D)
            v_next = _load_rows(v_pool_ptr, at, t_next, end, dims, D)
            blocks = _find_blocks(table, t_next + T, end, BLOCK)
            top, total, acc = _attend_tile(q_first, q_second, k_first_tile, k_second_tile, v_tile, tile + times < end,
                                           scale_log2, top, total, acc)
            k_first_tile, k_second_tile, v_tile = k_first_next, k_second_next, v_next
    else:
        for tile in tl.range(start, end, T, num_stages=STAGES):
            t = tile + times
            at = _place_rows(_find_blocks(table, t, end, BLOCK), t, pool_slot, kv_head, KV, BLOCK, D)
            k_first_tile = _load_half_keys(k_pool_ptr, at, t, end, halves, D)
            k_second_tile = _load_half_keys(k_pool_ptr + HALF, at, t, end, halves, D)
            v_tile = _load_rows(v_pool_ptr, at, t, end, dims, D)
            top, total, acc = _attend_tile(q_first, q_second, k_first_tile, k_second_tile, v_tile, t < end, scale_log2,
                                           top, total, acc)

    out_at = out_ptr + (tl.program_id(2).to(tl.int64) * KV + kv_head) * G * D + heads[:, None] * D + dims[None, :]
    out_inside = (heads < G)[:, None] & (dims < D)[None, :]
    if SPLIT and (num_active > 1):
        group = tl.program_id(2) * KV + kv_head
        is_last, acc, total = _add_up_parts(acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr, group, split,
                                            num_active, num_splits, M, DP)
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_inside & is_last)
    else:
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_inside)


@triton.jit(do_not_specialize=["num_rows", "slot", "lane_slots", "num_blocks"])
def store_rows_kernel(qkv_ptr, q_norm_ptr, k_norm_ptr, rope_ptr, positions_ptr, pool_rows_ptr, k_pool_ptr, v_pool_ptr,
                      q_out_ptr, num_rows, slot, lane_slots, num_blocks, eps, FIRST: tl.constexpr, KV: tl.constexpr,
                      G: tl.constexpr, D: tl.constexpr, GP: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
                      BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Norm and rotate new rows; keys and values go to the pool, queries to q_out [lanes, rows, KV * G * D].

    qkv: [lanes, rows, (FIRST + 2 * KV) * D] with FIRST query heads (none: keys and values only). pool_rows[i] is block
    * BLOCK + offset of row i. Grid (lanes * rows, KV).
    """
    HALF: tl.constexpr = D // 2
    row, kv_head = tl.program_id(0), tl.program_id(1)
    lane = row // num_rows
    wait_for_previous(OVERLAP)
    heads, halves, dims = tl.arange(0, GP), tl.arange(0, HP), tl.arange(0, DP)
    position = tl.load(positions_ptr + row % num_rows)
    pool_row = tl.load(pool_rows_ptr + row % num_rows)
    cosine, sine = load_angles(rope_ptr, position, halves, D)
    source = qkv_ptr + row.to(tl.int64) * ((FIRST + 2 * KV) * D)
    if FIRST > 0:
        inside = (heads < G)[:, None] & (halves < HALF)[None, :]
        offsets = ((kv_head * G + heads) * D)[:, None] + halves[None, :]
        first = tl.load(source + offsets, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + offsets + HALF, mask=inside, other=0.0).to(tl.float32)
        norm_first, norm_second = load_norm(q_norm_ptr + lane * D, halves, D)
        first, second = norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D)
        target = q_out_ptr + row.to(tl.int64) * (KV * G * D) + offsets
        tl.store(target, first.to(q_out_ptr.dtype.element_ty), mask=inside)
        tl.store(target + HALF, second.to(q_out_ptr.dtype.element_ty), mask=inside)
    one = tl.arange(0, 1)
    k_at = source + (FIRST + kv_head) * D + halves[None, :] + one[:, None]
    k_inside = (halves < HALF)[None, :]
    first = tl.load(k_at, mask=k_inside, other=0.0).to(tl.float32)
    second = tl.load(k_at + HALF, mask=k_inside, other=0.0).to(tl.float32)
    norm_first, norm_second = load_norm(k_norm_ptr + lane * D, halves, D)
    first, second = norm_rotate(first, second, norm_first, norm_second, cosine, sine, eps, D)
    v = tl.load(source + (FIRST + KV + kv_head) * D + dims, mask=dims < D, other=0.0)
    block = (slot + lane * lane_slots).to(tl.int64) * (num_blocks + 1) + pool_row // BLOCK
    at = (block * KV + kv_head) * BLOCK * D + (pool_row % BLOCK) * D
    dtype = k_pool_ptr.dtype.element_ty
    tl.store(k_pool_ptr + at + halves[None, :] + one[:, None], first.to(dtype), mask=k_inside)
    tl.store(k_pool_ptr + at + HALF + halves[None, :] + one[:, None], second.to(dtype), mask=k_inside)
    tl.store(v_pool_ptr + at + dims, v.to(dtype), mask=dims < D)


@triton.jit(do_not_specialize=["num_new", "max_tiles", "slot", "lane_slots", "num_blocks", "table_stride",
                               "num_splits"])
def attend_rows_kernel(q_ptr, tiles_ptr, tables_ptr, k_pool_ptr, v_pool_ptr, out_ptr, part_acc_ptr, part_stats_ptr,
                       counter_ptr, num_new, max_tiles, slot, lane_slots, num_blocks, table_stride, num_splits, scale,
                       KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GP: tl.constexpr,
                       DP: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr, SPLIT: tl.constexpr,
                       STAGES: tl.constexpr, OVERLAP: tl.constexpr):
    """Causal attention of tiles of new rows over everything their sequences have in the pool, the rows included.

    q, out: [lanes, num_new, KV * G * D]. tiles: int32 [4, max_tiles] = first row, number of rows (0: unused tile; at
    most M / GP), position of the first row, sequence. Grid (num_splits, KV, lanes * max_tiles).
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
    length = _split_length(num_positions, num_splits, T)
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
    scale_log2 = scale * _LOG2_E
    top = tl.full([M], _LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DP], tl.float32)
    table = tables_ptr + sequence * table_stride
    start, end = split * length, tl.minimum(num_positions, (split + 1) * length)
    for first in tl.range(start, end, T, num_stages=STAGES):
        t = first + times
        at = _place_rows(_find_blocks(table, t, end, BLOCK), t, pool_slot, kv_head, KV, BLOCK, D)
        k_tile = _load_rows(k_pool_ptr, at, t, end, dims, D)
        v_tile = _load_rows(v_pool_ptr, at, t, end, dims, D)
        scores = tl.dot(q, tl.trans(k_tile), input_precision="ieee") * scale_log2
        seen = (t < end)[None, :] & (t[None, :] <= (position + rows)[:, None])
        scores = tl.where(seen, scores, _LOWEST)
        new_top = tl.maximum(top, tl.max(scores, 1))
        keep = tl.exp2(top - new_top)
        weights = tl.where(seen, tl.exp2(scores - new_top[:, None]), 0.0)
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc * keep[:, None], input_precision="ieee")
        total = total * keep + tl.sum(weights, 1)
        top = new_top
    if SPLIT and (num_active > 1):
        group = tl.program_id(2) * KV + kv_head
        is_last, acc, total = _add_up_parts(acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr, group, split,
                                            num_active, num_splits, M, DP)
        tl.store(out_ptr + offsets, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside & is_last)
    else:
        tl.store(out_ptr + offsets, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
