"""Attention of the flow's estimator: queries of a chunk over the notes of prompt and ring. `meta`
is described in `flow_meta`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.codec.flow_meta import BRANCHES, Chunks, Tiles, field, place, precision
from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous


@triton.jit
def _history(anchor_ptr, prompt, ring, block, in_prompt, prompt_frames, seen, slot, frames, offsets,
             inside, size, BLOCK: tl.constexpr):
    """A block of prompt or ring, and the mask of what a chunk sees: all but its own place."""
    is_prompt = block < in_prompt
    first = tl.where(is_prompt, block, block - in_prompt) * BLOCK
    left = (tl.where(is_prompt, prompt_frames, seen) - first).to(tl.int32)
    gap = tl.where(is_prompt, left, slot - first).to(tl.int32)
    rows = tl.arange(0, BLOCK)
    known = (rows < left) & ((rows < gap) | (rows >= gap + frames))
    start = anchor_ptr + tl.where(is_prompt, prompt, ring) + first * size
    return tl.load(start + offsets, mask=known[:, None] & inside[None, :], other=0.0), known


@triton.jit
def _absorbed(query, notes, known, best, total, mixed, PRECISION: tl.constexpr):
    """The running softmax, to the base 2, with a block of notes more. `best` begins far above what
    stands for a score that does not count, so that such a one weighs nothing."""
    hidden = tl.where(known, 0.0, -1e30)
    scores = tl.dot(query, tl.trans(notes),
                    input_precision=PRECISION) * 1.4426950408889634 + hidden[None, :]
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(notes.dtype), notes, mixed * shrink[:, None],
                   input_precision=PRECISION)
    return higher, total, mixed


@triton.jit(do_not_specialize=["layer"])
def _attend_kernel(query_ptr, parts_ptr, tops_ptr, anchor_ptr, meta_ptr, layer, queries, frames,
                   size, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                   OWN: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
                   OVERLAP: tl.constexpr):
    """A program mixes every SPLITS-th block for ROWS queries; the last also the chunk's own."""
    group, split = tl.program_id(1), tl.program_id(2)
    stream, branch = group // BRANCHES, group % BRANCHES
    columns = tl.arange(0, TILE)
    inside = columns < size
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cells = (group * queries + at[:, None]) * size + columns[None, :]
    wanted = (at < queries)[:, None] & inside[None, :]
    layer = layer.to(tl.int64) * BRANCHES + branch
    prompt_frames, seen = field(meta_ptr, stream, 6), field(meta_ptr, stream, 3)
    slot, valid = field(meta_ptr, stream, 2), field(meta_ptr, stream, 4)
    prompt = place(meta_ptr, stream, 5) + layer * prompt_frames * size
    ring = place(meta_ptr, stream, 0) + layer * field(meta_ptr, stream, 1) * size
    in_prompt = (prompt_frames + BLOCK - 1) // BLOCK
    blocks = (in_prompt + (seen + BLOCK - 1) // BLOCK).to(tl.int32)
    offsets = tl.arange(0, BLOCK)[:, None] * size + columns[None, :]
    # earlier runs wrote the history, so that it can be read while the previous kernel is still busy
    if SPLITS > 1:
        notes, known = _history(anchor_ptr, prompt, ring, split, in_prompt, prompt_frames, seen,
                                slot, frames, offsets, inside, size, BLOCK)
    wait_for_previous(OVERLAP)
    query = tl.load(query_ptr + cells, mask=wanted, other=0.0)
    best = tl.full([ROWS], -1e20, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, TILE], tl.float32)
    if split == SPLITS - 1:
        steps = tl.arange(0, OWN)
        source = ring + (slot + steps) * size
        own = tl.load(anchor_ptr + source[:, None] + columns[None, :],
                      mask=(steps < valid)[:, None] & inside[None, :], other=0.0)
        best, total, mixed = _absorbed(query, own, steps < valid, best, total, mixed, PRECISION)
    for block in range(split, blocks, SPLITS):
        if SPLITS == 1:
            notes, known = _history(anchor_ptr, prompt, ring, block, in_prompt, prompt_frames, seen,
                                    slot, frames, offsets, inside, size, BLOCK)
        best, total, mixed = _absorbed(query, notes, known, best, total, mixed, PRECISION)
        if SPLITS > 1:
            notes, known = _history(anchor_ptr, prompt, ring, block + SPLITS, in_prompt,
                                    prompt_frames, seen, slot, frames, offsets, inside, size, BLOCK)
    mixed = mixed / tl.maximum(total, 1e-30)[:, None]
    own_part = split * tl.num_programs(1) * queries
    tl.store(parts_ptr + own_part.to(tl.int64) * size + cells, mixed.to(parts_ptr.dtype.element_ty),
             mask=wanted)
    if SPLITS > 1:
        top = tl.where(total > 0.0, best + tl.log2(tl.maximum(total, 1e-30)), -1e30)
        tl.store(tops_ptr + own_part + group * queries + at, top, mask=at < queries)


def attend(query: Tensor, chunks: Chunks, layer: int, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """query [streams * 2, queries, size] over `layer`'s notes -> parts of mixtures.

    Mixtures are [splits, all queries, size]; beside them the binary logarithms of their weights'
    sums, [splits, all queries].
    """
    groups, queries, size = query.shape
    parts = query.new_empty(tiles.parts, groups * queries, size)
    tops = torch.empty(tiles.parts, groups * queries, device=query.device)
    _attend_kernel[(triton.cdiv(queries, tiles.rows), groups, tiles.parts)](
        query, parts, tops, chunks.anchor, chunks.meta, layer, queries, chunks.frames, size,
        TILE=max(16, next_power_of_2(size)), ROWS=tiles.rows, BLOCK=tiles.cols,
        OWN=max(16, next_power_of_2(chunks.frames)), SPLITS=tiles.parts, PRECISION=precision(query),
        **options(tiles.warps, tiles.stages))
    return parts, tops
