"""Paged KV in plain torch: one pool of blocks, and the attention of one step over it.

Keys and values of a row lie side by side, so that a layer writes and gathers both with one
operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import ScheduledSequence

PADDING = 16
"""Rows are padded to whole vectors of the widest unit, where the sums of a kernel keep their order.
"""
MAX_PADDING = 256
"""Reading so many rows in vain costs less than a call of their own."""


class KVPool:
    """Blocks of every layer: `tensor` is [slots, num_blocks * block_size, 2 * kv_heads, head_dim],
    keys before values; `rows[slot]` is one layer's."""

    def __init__(self, tensor: Tensor, block_size: int):
        self.tensor, self.block_size = tensor, block_size
        self.rows = tensor.unbind()
        self.dtype, self.device = tensor.dtype, tensor.device


def make_pool(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVPool:
    """An empty pool. Memory of a CPU pool is taken by the system as blocks are first written."""
    shape = (
        config.num_layers,
        num_blocks * block_size,
        2 * config.num_key_value_heads,
        config.head_dim,
    )
    if device.type == "cpu" and dtype is torch.float32:
        return KVPool(torch.from_numpy(np.zeros(shape, dtype=np.float32)), block_size)
    return KVPool(torch.zeros(shape, dtype=dtype, device=device), block_size)


class _Part(NamedTuple):
    """Rows of a step that attend together: one row each of several sequences, or the new rows of
    one sequence.

    `num_live` rows are gathered for them. `mask` is what is added to the scores: 0, or -infinity
    where a row may not attend.
    """

    num_rows: int
    num_live: int
    one_row_each: bool
    mask: Tensor


class DecodeRows(NamedTuple):
    """The attention of one row each of several sequences, as tensors.

    Where in the pool the new rows lie, int64 [sequences], and the live rows, int64 [sequences *
    length]; and the mask [sequences, 1, 1, length].
    """

    new: Tensor
    live: Tensor
    mask: Tensor


class GatheredAttention:
    """The attention of one step (`PackedAttend`): writes the new rows' keys and values, then reads
    the live rows."""

    def __init__(self, pool: KVPool, parts: Sequence[_Part], new_rows: Tensor, live: Tensor):
        self._pool, self._parts = pool, parts
        self._new_rows, self._live = new_rows, live

    @classmethod
    def of_sequences(
        cls, pool: KVPool, sequences: Sequence[ScheduledSequence], num_decode: int
    ) -> GatheredAttention:
        """`sequences` are in packed order: the `num_decode` decoding ones (one row each) first, by
        length.

        Decoding sequences of similar length attend in one call, padded; whole vectors of padding do
        not change a sequence's rounding.
        """
        parts, live, new, start = [], [], [], 0
        for end in [
            *_decode_ends(sequences[:num_decode]),
            *range(num_decode + 1, len(sequences) + 1),
        ]:
            group = sequences[start:end]
            length = group[-1].num_cached + len(group[-1].rows)
            if end <= num_decode:
                length = -(-length // PADDING) * PADDING
            for sequence in group:
                rows = _pool_rows(sequence, length, pool.block_size)
                live.append(rows)
                new.append(rows[sequence.num_cached : sequence.num_cached + len(sequence.rows)])
            num_rows, one_row_each = sum(len(s.rows) for s in group), len(group[0].rows) == 1
            parts.append(
                _Part(num_rows, len(group) * length, one_row_each, _mask(pool, group, length))
            )
            start = end
        new_rows, live_rows = (
            torch.from_numpy(np.concatenate(rows)).to(pool.device) for rows in (new, live)
        )
        return cls(pool, parts, new_rows, live_rows)

    @classmethod
    def of_decode_rows(cls, pool: KVPool, rows: DecodeRows) -> GatheredAttention:
        part = _Part(rows.new.shape[0], rows.live.shape[0], True, rows.mask)
        return cls(pool, [part], rows.new, rows.live)

    @property
    def decode_rows(self) -> DecodeRows | None:
        """The whole of it where all rows are decode rows that attend in one call."""
        part = self._parts[0]
        if len(self._parts) > 1 or not part.one_row_each:
            return None
        return DecodeRows(self._new_rows, self._live, part.mask)

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor:
        rows = self._pool.rows[slot]
        rows.index_copy_(0, self._new_rows, kv.to(rows.dtype))
        live, queries = rows.index_select(0, self._live), q.to(rows.dtype)
        if len(self._parts) == 1:
            return _attend(self._parts[0], queries, live)
        work = zip(
            self._parts,
            queries.split([part.num_rows for part in self._parts]),
            live.split([part.num_live for part in self._parts]),
            strict=True,
        )
        return torch.cat([_attend(*one) for one in work])


def _mask(pool: KVPool, group: Sequence[ScheduledSequence], length: int) -> Tensor:
    """[sequences, 1, 1, length] for one row each, [rows, length] for the rows of one sequence."""
    if len(group[0].rows) == 1:
        last = np.array([sequence.num_cached for sequence in group])[:, None, None, None]
    else:
        last = group[0].num_cached + np.arange(len(group[0].rows))[:, None]
    mask = np.where(np.arange(length) > last, np.float32(-np.inf), np.float32(0))
    return torch.from_numpy(mask).to(pool.device, pool.dtype)


def _attend(part: _Part, q: Tensor, live: Tensor) -> Tensor:
    """q: [rows, heads, head_dim]; live: [live rows, 2 * kv_heads, head_dim]."""
    num_sequences = q.shape[0] if part.one_row_each else 1
    keys, values = live.unflatten(0, (num_sequences, -1)).transpose(1, 2).chunk(2, dim=1)
    if not part.one_row_each:
        q = q.transpose(0, 1).unsqueeze(0)
        attended = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=part.mask, enable_gqa=True
        )
        return attended.squeeze(0).transpose(0, 1).flatten(1)
    # the query heads of one kv head take the place of query rows
    q = q.unflatten(1, (keys.shape[1], -1))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=part.mask).flatten(1)


def _pool_rows(sequence: ScheduledSequence, length: int, block_size: int) -> np.ndarray:
    """Where in the pool the sequence's first `length` rows lie: int64 [length].

    Places behind its last row are those of its first one, so that nobody's stale values are ever
    read.
    """
    positions = np.arange(length, dtype=np.int64)
    positions[sequence.num_cached + len(sequence.rows) :] = 0
    blocks = np.array(sequence.block_table, dtype=np.int64)
    return blocks[positions // block_size] * block_size + positions % block_size


def _decode_ends(sequences: Sequence[ScheduledSequence]) -> list[int]:
    """Where to cut sequences of ascending length so that nobody in a group is padded by more than
    MAX_PADDING rows."""
    ends, first = [], 0
    for i, sequence in enumerate(sequences):
        if sequence.num_cached - sequences[first].num_cached > MAX_PADDING:
            ends.append(i)
            first = i
    return [*ends, len(sequences)] if sequences else []
