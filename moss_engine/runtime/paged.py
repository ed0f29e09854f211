"""Paged KV in plain torch: one pool of blocks, and the attention of one step over it.

Keys and values of a row lie side by side, so that a layer writes and gathers both with one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import ScheduledSequence


class KVPool:
    """Blocks of every layer: `rows[slot]` is [num_blocks * block_size, 2 * kv_heads, head_dim], keys before values.

    Memory of a CPU pool is taken by the system as blocks are first written.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device):
        shape = (config.num_layers, num_blocks * block_size, 2 * config.num_key_value_heads, config.head_dim)
        if device.type == "cpu" and dtype is torch.float32:
            pool = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            pool = torch.zeros(shape, dtype=dtype, device=device)
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.rows = list(pool)
        self._blocks = [layer.view(num_blocks, block_size, *shape[2:]) for layer in pool]

    def gather(self, slot: int, blocks: Tensor) -> Tensor:
        """blocks: [n] -> [n * block_size, 2 * kv_heads, head_dim]."""
        return self._blocks[slot].index_select(0, blocks).flatten(0, 1)


def pool_positions(sequence: ScheduledSequence, block_size: int) -> list[int]:
    """Where in the pool the sequence's uncached rows go."""
    table, start = sequence.block_table, sequence.num_cached
    return [table[p // block_size] * block_size + p % block_size for p in range(start, start + len(sequence.rows))]


@dataclass(frozen=True)
class _Span:
    """Packed rows `start .. end` which attend together.

    They are one sequence's new rows, or one row each of `num_sequences` decoding sequences. `kv` selects the live rows
    of the pool: a slice where a sequence's blocks follow each other, otherwise a tensor of blocks, those of each
    sequence padded to an equal number. `length` counts live rows; `mask` is True where a row may attend, None
    where it may attend to all of them.
    """

    start: int
    end: int
    num_sequences: int
    kv: slice | Tensor
    length: int
    mask: Tensor | None


class PagedAttention:
    """The attention of one step (`PackedAttend`): writes the new rows' keys and values, then reads the live blocks.

    `sequences` are in packed order, decoding ones (one row each) first. These attend one by one on a CPU, where every
    sequence costs its own work and nothing for the others' length, and all at once on a GPU.
    """

    def __init__(self, pool: KVPool, sequences: Sequence[ScheduledSequence], num_decode: int):
        self._pool = pool
        self._positions = torch.tensor([p for s in sequences for p in pool_positions(s, pool.block_size)],
                                       device=pool.device)
        self._spans = []
        start = 0
        if num_decode > 1 and pool.device.type != "cpu":
            self._spans.append(self._decode_span(sequences[:num_decode]))
            sequences, start = sequences[num_decode:], num_decode
        for sequence in sequences:
            self._spans.append(self._sequence_span(sequence, start))
            start += len(sequence.rows)

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor:
        q, kv = q.to(self._pool.dtype), kv.to(self._pool.dtype)
        self._pool.rows[slot].index_copy_(0, self._positions, kv)
        attended = [self._attend(span, slot, q[span.start : span.end]) for span in self._spans]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend(self, span: _Span, slot: int, q: Tensor) -> Tensor:
        kv = self._pool.rows[slot][span.kv] if isinstance(span.kv, slice) else self._pool.gather(slot, span.kv)
        kv = kv.view(span.num_sequences, -1, *kv.shape[1:])[:, : span.length].transpose(1, 2)
        keys, values = kv.chunk(2, dim=1)  # each [sequences, kv_heads, length, head_dim]
        num_rows, _, head_dim = q.shape
        if num_rows == span.num_sequences:  # the query heads of one kv head take the place of query rows
            q = q.view(num_rows, keys.shape[1], -1, head_dim)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=span.mask).reshape(num_rows, -1)
        attended = F.scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=span.mask,
                                                  enable_gqa=True)
        return attended.squeeze(0).transpose(0, 1).reshape(num_rows, -1)

    def _sequence_span(self, sequence: ScheduledSequence, start: int) -> _Span:
        num_rows, block_size, device = len(sequence.rows), self._pool.block_size, self._pool.device
        length = sequence.num_cached + num_rows
        table = sequence.block_table[: -(-length // block_size)]
        kv: slice | Tensor
        if table == tuple(range(table[0], table[0] + len(table))):
            kv = slice(table[0] * block_size, table[0] * block_size + length)
        else:
            kv = torch.tensor(table, device=device)
        mask = None
        if num_rows > 1:
            mask = torch.ones(num_rows, length, dtype=torch.bool, device=device).tril(sequence.num_cached)
        return _Span(start, start + num_rows, 1, kv, length, mask)

    def _decode_span(self, sequences: Sequence[ScheduledSequence]) -> _Span:
        block_size, device = self._pool.block_size, self._pool.device
        lengths = [sequence.num_cached + 1 for sequence in sequences]
        num_blocks = -(-max(lengths) // block_size)
        tables = [(*s.block_table[:num_blocks], *[0] * (num_blocks - len(s.block_table))) for s in sequences]
        live = torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
        return _Span(0, len(sequences), len(sequences), torch.tensor(tables, device=device).flatten(), max(lengths),
                     live[:, None, None])
