"""TensorRT-LLM's attention plugin as its contract has it, in torch on the CPU.

It gets nothing but the engine's named tensors. It finds keys and values in the pool by pointer
arithmetic, so that a wrong length, type, offset, table, pointer or copy changes the logits, or is
refused as the library refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

CONTEXT, GENERATION = 0, 1


class Refused(Exception):
    """What the plugin, or the device, would not do."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Refused(reason)


@dataclass
class Plugin:
    """Attributes of the plugin that are fixed at build time. `memory` is what may be read and
    written by address; what lies on a GPU is brought here for the length of a call. `slots` are
    those of the layers so far.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens_per_block: int
    dtype: torch.dtype
    memory: list[Tensor] = field(default_factory=list, compare=False)
    slots: list[int] = field(default_factory=list, compare=False)
    _mirrors: list[Tensor] = field(default_factory=list, compare=False)

    def begin(self) -> None:
        self._mirrors = [tensor.cpu() for tensor in self.memory]

    def end(self) -> None:
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            if mirror is not tensor:
                tensor.copy_(mirror)

    def at(self, address: int, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] of the memory at an address."""
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            start = address - tensor.data_ptr()
            if start >= 0 and start + num_bytes <= tensor.nbytes:
                return mirror.view(-1).view(torch.uint8)[start : start + num_bytes]
        raise Refused("an illegal address")

    def attend(
        self, slot: int, qkv: Tensor, named: Mapping[str, Tensor], cos_sin: Tensor
    ) -> Tensor:
        """qkv [T, (heads + 2 kv_heads) * head_dim], normed but not rotated; cos_sin [positions,
        head_dim / 2, 2]."""
        require(not named["host_sink_token_length"].any(), "sink tokens")
        require(not named["cache_indirection"].any(), "another beam's cache")
        require(named["cache_indirection"].shape[1] == 1, "more than one beam")
        window = min(
            int(named["host_max_attention_window_sizes"][slot]), named["cache_indirection"].shape[2]
        )
        kinds = named["host_request_types"].tolist()
        num_context = kinds.count(CONTEXT)
        require(
            kinds == [CONTEXT] * num_context + [GENERATION] * (len(kinds) - num_context),
            "context comes first",
        )
        context_rows = int(named["host_context_lengths"][:num_context].sum())
        require(
            context_rows + len(kinds) - num_context == len(qkv), "lengths and packed rows differ"
        )
        pool = _Pool(self, slot, named)
        attended, start = [], 0
        for b, kind in enumerate(kinds):
            num_rows, first = self._rows_of(b, kind, named)
            total = int(named["sequence_length"][b])
            require(num_rows > 0 and total <= len(cos_sin), "a length")
            require(start + num_rows <= len(qkv), "rows that are not there")
            rows = qkv[start : start + num_rows].unflatten(1, (-1, self.head_dim)).float()
            start += num_rows
            positions = torch.arange(first, first + num_rows)
            require(first >= 0 and int(positions[-1]) < len(cos_sin), "a position")
            q, k, v = rows.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            q, k = _rotate(q, cos_sin[positions]), _rotate(k, cos_sin[positions])
            pool.write(named["kv_cache_block_offsets"], b, positions, k, v)
            table = "host_kv_cache_block_offsets" if kind == CONTEXT else "kv_cache_block_offsets"
            seen = torch.arange(max(0, total - window), total)
            keys, values = pool.read(named[table], b, seen)
            last = total - num_rows + torch.arange(num_rows).unsqueeze(1)
            hidden = torch.zeros(num_rows, len(seen)).masked_fill_(seen > last, -torch.inf)
            attended.append(
                F.scaled_dot_product_attention(
                    q.transpose(0, 1),
                    keys.transpose(0, 1),
                    values.transpose(0, 1),
                    attn_mask=hidden,
                    enable_gqa=True,
                )
                .transpose(0, 1)
                .flatten(1)
            )
        return torch.cat(attended).to(qkv.dtype)

    @staticmethod
    def _rows_of(b: int, kind: int, named: Mapping[str, Tensor]) -> tuple[int, int]:
        """How many rows a sequence has in this call, and the position of the first."""
        past, prompt = (
            int(named["host_past_key_value_lengths"][b]),
            int(named["context_lengths"][b]),
        )
        if kind == CONTEXT:
            return prompt, past - prompt
        require(1 <= prompt <= past, "a prompt longer than the cache")
        return 1, past


class _Pool:
    """Keys and values of one layer, by address."""

    def __init__(self, plugin: Plugin, slot: int, named: Mapping[str, Tensor]):
        self._plugin = plugin
        pool, place = map(int, named["host_kv_cache_pool_mapping"][slot])
        pointers = named["host_kv_cache_pool_pointers"]
        require(pool < len(pointers), "a pool that is not there")
        require(
            any(t.data_ptr() == int(pointers[pool][0]) for t in plugin.memory),
            "a pool that begins elsewhere",
        )
        require(int(pointers[pool][1]) == 0, "a secondary pool where there is none")
        self._pool = pool
        self._block_bytes = (
            plugin.num_kv_heads * plugin.tokens_per_block * plugin.head_dim * plugin.dtype.itemsize
        )
        self._base = int(pointers[pool][0]) + place * 2 * self._block_bytes

    def write(
        self, tables: Tensor, b: int, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        for i, position in enumerate(positions.tolist()):
            for which, rows in enumerate((keys, values)):
                self._block(tables, b, which, position)[
                    :, position % self._plugin.tokens_per_block
                ] = rows[i]

    def read(self, tables: Tensor, b: int, positions: Tensor) -> list[Tensor]:
        """Keys and values of consecutive positions, each float32 [rows, kv_heads, head_dim]."""
        size, first, end = self._plugin.tokens_per_block, int(positions[0]), int(positions[-1]) + 1
        starts = range(first // size * size, end, size)
        rows = [
            torch.cat([self._block(tables, b, which, start).transpose(0, 1) for start in starts])
            for which in (0, 1)
        ]
        return [which[first - starts[0] : end - starts[0]].float() for which in rows]

    def _block(self, tables: Tensor, b: int, which: int, position: int) -> Tensor:
        """[kv_heads, tokens_per_block, head_dim] of the block that holds a position."""
        plugin = self._plugin
        table = tables[self._pool][b]
        index = position // plugin.tokens_per_block
        require(index < table.shape[1], "a position beyond the block table")
        key, value = int(table[0, index]), int(table[1, index])
        require(key >= 0 and value >= 0, "an offset into the secondary pool")
        require(value == key + 1, "values do not lie behind keys")
        address = self._base + (key, value)[which] * self._block_bytes
        shape = (plugin.num_kv_heads, plugin.tokens_per_block, plugin.head_dim)
        return plugin.at(address, self._block_bytes).view(plugin.dtype).view(shape)


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """NeoX: x [rows, heads, head_dim]; element i turns with element i + half."""
    cos, sin = cos_sin.unsqueeze(1).unbind(-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
