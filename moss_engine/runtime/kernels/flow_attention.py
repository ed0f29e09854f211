"""Attention of the flow's estimator: queries of a chunk over the notes of prompt and ring. `meta` is described in
`flow_meta`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.runtime.kernels.flow_meta import BRANCHES, field, place, precision
from moss_engine.runtime.kernels.launch import next_power_of_2, options, wait_for_previous


@triton.jit(do_not_specialize=["layer"])
def _attend_kernel(query_ptr, out_ptr, anchor_ptr, meta_ptr, parts_ptr, sums_ptr, arrivals_ptr, layer, queries, chunk,
                   size, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
                   PRECISION: tl.constexpr, OVERLAP: tl.constexpr):
    """Each program mixes every SPLITS-th block of notes for ROWS queries; the last to arrive joins their results."""
    group = tl.program_id(1)
    stream, branch = group // BRANCHES, group % BRANCHES
    columns = tl.arange(0, TILE)
    inside = columns < size
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cells = (group * queries + at[:, None]) * size + columns[None, :]
    wanted = (at < queries)[:, None] & inside[None, :]
    layer = layer.to(tl.int64) * BRANCHES + branch
    wait_for_previous(OVERLAP)
    prompt_frames, seen = field(meta_ptr, stream, 6), field(meta_ptr, stream, 3)
    hole = field(meta_ptr, stream, 2) + field(meta_ptr, stream, 4)
    hole_end = field(meta_ptr, stream, 2) + chunk
    prompt = place(meta_ptr, stream, 5) + layer * prompt_frames * size
    notes = place(meta_ptr, stream, 0) + layer * field(meta_ptr, stream, 1) * size
    query = tl.load(query_ptr + cells, mask=wanted, other=0.0)
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, TILE], tl.float32)
    in_prompt = (prompt_frames + BLOCK - 1) // BLOCK
    blocks = in_prompt + (seen + BLOCK - 1) // BLOCK
    for block in range(tl.program_id(2), blocks, SPLITS):
        is_prompt = block < in_prompt
        rows = tl.where(is_prompt, block, block - in_prompt) * BLOCK + tl.arange(0, BLOCK)
        gap, gap_end = tl.where(is_prompt, prompt_frames, hole), tl.where(is_prompt, prompt_frames, hole_end)
        known = ((rows < gap) | (rows >= gap_end)) & (rows < tl.where(is_prompt, prompt_frames, seen))
        source = tl.where(is_prompt, prompt, notes) + rows * size
        keys = tl.load(anchor_ptr + source[:, None] + columns[None, :], mask=known[:, None] & inside[None, :],
                       other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
        scores = tl.where(known[None, :], scores, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.where(known[None, :], tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(keys.dtype), keys, input_precision=PRECISION)
        best = higher
    if SPLITS == 1:
        tl.store(out_ptr + cells, (mixed * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty), mask=wanted)
    else:
        part = (group * tl.num_programs(0) + tl.program_id(0)) * SPLITS
        within = tl.arange(0, ROWS)
        parts = parts_ptr + within[:, None] * TILE + columns[None, :]
        own = part + tl.program_id(2)
        tl.store(parts + own.to(tl.int64) * ROWS * TILE, mixed)
        tl.store(sums_ptr + own * 2 * ROWS + within, best)
        tl.store(sums_ptr + own * 2 * ROWS + ROWS + within, total)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + part // SPLITS, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            best = tl.full([ROWS], -1e30, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            mixed = tl.zeros([ROWS, TILE], tl.float32)
            for other in tl.static_range(SPLITS):
                theirs = tl.load(sums_ptr + (part + other) * 2 * ROWS + within, cache_modifier=".cg")
                count = tl.load(sums_ptr + (part + other) * 2 * ROWS + ROWS + within, cache_modifier=".cg")
                values = tl.load(parts + (part + other).to(tl.int64) * ROWS * TILE, cache_modifier=".cg")
                higher = tl.maximum(best, theirs)
                shrink, grow = tl.exp(best - higher), tl.exp(theirs - higher)
                total = total * shrink + count * grow
                mixed = mixed * shrink[:, None] + values * grow[:, None]
                best = higher
            tl.store(out_ptr + cells, (mixed * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty), mask=wanted)
            tl.store(arrivals_ptr + part // SPLITS, 0)


class Attention:
    """Attention of chunks over notes, with room for the parts that its programs make; for one shape of queries."""

    def __init__(self, count: int, queries: int, size: int, device: torch.device) -> None:
        self.rows, self.block, self.splits, self.warps = _plan(count)
        tiles = count * triton.cdiv(queries, self.rows)
        self._tile = max(16, next_power_of_2(size))
        room = tiles * self.splits if self.splits > 1 else 0
        self._parts = torch.empty(room, self.rows, self._tile, device=device)
        self._sums = torch.empty(room, 2, self.rows, device=device)
        self._arrivals = torch.zeros(tiles, dtype=torch.int32, device=device)

    def __call__(self, query: Tensor, anchor: Tensor, meta: Tensor, layer: int, frames: int) -> Tensor:
        """query [streams * 2, queries, size] -> the mixtures of prompt and ring rows, of the same shape."""
        count, queries, size = query.shape
        out = torch.empty_like(query)
        _attend_kernel[(triton.cdiv(queries, self.rows), count, self.splits)](
            query, out, anchor, meta, self._parts, self._sums, self._arrivals, layer, queries, frames, size,
            TILE=self._tile, ROWS=self.rows, BLOCK=self.block, SPLITS=self.splits, PRECISION=precision(query),
            **options(self.warps))
        return out


def _plan(count: int) -> tuple[int, int, int, int]:
    """Queries of a program, notes of a block, programs that share a query, warps; for so many groups of queries."""
    if count <= 2:
        return 16, 64, 7, 8
    return (16, 64, 4, 8) if count <= 8 else (16, 64, 1, 8)
