"""Where rows of the paged KV pool lie, and how kernels load them.

The pool is two tensors [slots, blocks + 1, kv_heads, block_size, head_dim]. The block after the
last one takes what padding rows write.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
                   mask=(t < end)[:, None] & (dims < D)[None, :], other=0.0)


@triton.jit
def load_half_keys(pool_ptr, at, t, end, halves, D: tl.constexpr):
    """[D / 2, T] of keys, transposed."""
    inside = (t < end)[None, :] & (halves < D // 2)[:, None]
    return tl.load(pool_ptr + at[None, :] + halves[:, None], mask=inside, other=0.0)
