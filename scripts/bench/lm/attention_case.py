"""The input of every attention in `scripts.bench.lm.attention`: new rows over a paged pool.

Plain PyTorch on any device: the pool as the runtime lays it out, the new rows' queries, normed and
rotated, their keys and values already in the pool, and what attention in float32 makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.models.network import rotary_tables, rotate

BLOCK_SIZE = 16
CHECKED_SEQUENCES = 8


@dataclass(frozen=True)
class Case:
    """Sequences of a step: `cached[i]` rows in the pool and `new[i]` rows that attend, causally.

    `flex` tells whether FlexAttention is compiled for it.
    """

    name: str
    cached: tuple[int, ...]
    new: tuple[int, ...]
    flex: bool = False

    @property
    def num_rows(self) -> int:
        return sum(self.new)

    @property
    def lengths(self) -> list[int]:
        """Rows of every sequence once the new ones are there."""
        return [cached + new for cached, new in zip(self.cached, self.new, strict=True)]

    @property
    def decodes(self) -> bool:
        return set(self.new) == {1}

    @property
    def starts(self) -> list[int]:
        """The place of every sequence's first new row, and at last the number of rows."""
        return torch.tensor([0, *self.new]).cumsum(0).tolist()


def decode_case(batch: int, context: int, *, flex: bool = False) -> Case:
    return Case(f"decode, batch {batch}, context {context}", (context,) * batch, (1,) * batch, flex)


class Scene:
    """The tensors of one case, with as many KV slots as fit into `pool_bytes`, at most `max_slots`.

    keys, values: [slots, blocks + 1, kv_heads, BLOCK_SIZE, head_dim]; tables [sequences, blocks],
    int32, name blocks in no order; qkv [rows, (heads + 2 * kv_heads) * head_dim]; queries [rows,
    heads, head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        case: Case,
        device: torch.device,
        dtype: torch.dtype,
        *,
        max_slots: int,
        pool_bytes: int,
    ):
        self.config, self.case, self.device = config, case, device
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)

        width = max(-(-length // BLOCK_SIZE) for length in case.lengths)
        self.num_blocks = width * len(case.cached)
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(0))
        self.tables = order.view(-1, width).to(device, torch.int32)
        slot_bytes = 2 * (self.num_blocks + 1) * kv_heads * BLOCK_SIZE * head_dim * dtype.itemsize
        self.num_slots = max(1, min(max_slots, pool_bytes // slot_bytes))
        shape = (self.num_slots, self.num_blocks + 1, kv_heads, BLOCK_SIZE, head_dim)
        self.keys, self.values = normal(*shape), normal(*shape)
        self.qkv = normal(case.num_rows, (heads + 2 * kv_heads) * head_dim)
        self.q_norm, self.k_norm = (1 + 0.1 * normal(1, head_dim) for _ in range(2))
        self.positions = torch.cat(
            [
                torch.arange(cached, cached + new)
                for cached, new in zip(case.cached, case.new, strict=True)
            ]
        ).to(device)
        self.queries = self._write_new_rows()

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one slot that the new rows attend to."""
        row = self.keys.shape[2] * self.keys.shape[4] * self.keys.dtype.itemsize
        return 2 * sum(self.case.lengths) * row

    def _write_new_rows(self) -> Tensor:
        """Keys and values of the new rows into every slot; returns their queries."""
        config, dtype = self.config, self.qkv.dtype
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        q, k, v = self.qkv.view(-1, heads + 2 * kv_heads, head_dim).split(
            [heads, kv_heads, kv_heads], 1
        )
        cos, sin = rotary_tables(self.positions, head_dim, config.rope_theta, torch.float32)
        q, k = (
            rotate(
                F.rms_norm(x.float(), (head_dim,), norm[0].float(), config.rms_norm_eps), cos, sin
            ).to(dtype)
            for x, norm in ((q, self.q_norm), (k, self.k_norm))
        )
        sequences = torch.repeat_interleave(
            torch.arange(len(self.case.new)), torch.tensor(self.case.new)
        ).to(q.device)
        blocks = self.tables[sequences, self.positions // BLOCK_SIZE].long()
        self.keys[:, blocks, :, self.positions % BLOCK_SIZE] = k.unsqueeze(1)
        self.values[:, blocks, :, self.positions % BLOCK_SIZE] = v.unsqueeze(1)
        return q

    @cached_property
    def gather_blocks(self) -> Tensor:
        """Indices [block, kv_head] of all sequences' rows, by head; for equal lengths."""
        kv_heads = self.config.num_key_value_heads
        heads = torch.arange(kv_heads, device=self.device).view(1, -1, 1)
        return (self.tables.long().unsqueeze(1) * kv_heads + heads).flatten()

    def gathered(self, slot: int) -> tuple[Tensor, Tensor]:
        """All keys and values, each [sequences, kv_heads, rows, head_dim]; for equal lengths."""
        (length,) = set(self.case.lengths)
        shape = (len(self.tables), self.config.num_key_value_heads, -1, self.config.head_dim)
        keys, values = (
            pool[slot]
            .view(-1, BLOCK_SIZE * self.config.head_dim)
            .index_select(0, self.gather_blocks)
            .view(shape)[:, :, :length]
            for pool in (self.keys, self.values)
        )
        return keys, values

    @cached_property
    def gather_rows(self) -> Tensor:
        """Indices [block, kv_head, offset] of all sequences' rows, by sequence."""
        places = []
        heads = torch.arange(self.config.num_key_value_heads, device=self.device)
        for table, length in zip(self.tables.long(), self.case.lengths, strict=True):
            t = torch.arange(length, device=self.device)
            block_heads = (table[t // BLOCK_SIZE] * len(heads)).unsqueeze(1) + heads
            places.append(block_heads * BLOCK_SIZE + (t % BLOCK_SIZE).unsqueeze(1))
        return torch.cat(places).flatten()

    def packed(self, slot: int) -> tuple[Tensor, Tensor]:
        """The same for any lengths: each [rows of all sequences, kv_heads, head_dim]."""
        shape = (-1, self.config.num_key_value_heads, self.config.head_dim)
        keys, values = (
            pool[slot].view(-1, shape[2]).index_select(0, self.gather_rows).view(shape)
            for pool in (self.keys, self.values)
        )
        return keys, values

    def error(self, attended: Tensor, slot: int = 0) -> float:
        """Largest difference of [rows, heads, head_dim] to float32 attention, relative.

        At most CHECKED_SEQUENCES sequences are looked at, from the first to the last.
        """
        case, count = self.case, len(self.case.new)
        differences, largest = [], []
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        for index in sorted(
            {round(i * (count - 1) / (CHECKED_SEQUENCES - 1)) for i in range(CHECKED_SEQUENCES)}
        ):
            start, end, length = case.starts[index], case.starts[index + 1], case.lengths[index]
            table = self.tables[index].long()
            k, v = (
                pool[slot, table]
                .transpose(0, 1)
                .flatten(1, 2)[:, :length]
                .float()
                .repeat_interleave(group, 0)
                for pool in (self.keys, self.values)
            )  # [heads, rows, head_dim]
            scores = (
                self.queries[start:end].transpose(0, 1).float() @ k.mT * self.config.head_dim**-0.5
            )
            t = torch.arange(length, device=self.device)
            seen = t <= self.positions[start:end].unsqueeze(1)
            wanted = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
            differences.append((attended[start:end].transpose(0, 1).float() - wanted).abs().max())
            largest.append(wanted.abs().max())
        return (torch.stack(differences).max() / torch.stack(largest).max()).item()
