"""Attention in parts: positions split over several programs, and their parts added up.

They are split where too few programs would run. Each keeps the sum of its weighted values, the
largest score and the sum of weights; the program that finishes last adds the parts up, always in
the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)


@triton.jit
def split_length(num_positions, num_splits, T: tl.constexpr):
    """Positions one split attends to: whole tiles of T."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_positions, num_splits), T), 1) * T


@triton.jit
def add_up_parts(acc, top, total, part_acc_ptr, part_stats_ptr, counter_ptr, group, split,
                 num_active, num_splits, M: tl.constexpr, DP: tl.constexpr):
    """Store this split's part; the last program to arrive returns (True, the sum of all)."""
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
        top = tl.full([M], LOWEST, tl.float32)
        for part in tl.range(0, num_active):
            part_top = tl.load(part_stats_ptr + (base + part) * 2 * M + rows)
            part_total = tl.load(part_stats_ptr + (base + part) * 2 * M + M + rows)
            new_top = tl.maximum(top, part_top)
            keep, add = tl.exp2(top - new_top), tl.exp2(part_top - new_top)
            acc = acc * keep[:, None] + tl.load(part_acc_ptr +
                                                (base + part) * M * DP + tile) * add[:, None]
            total = total * keep + part_total * add
            top = new_top
    return is_last, acc, total
