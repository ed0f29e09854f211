"""TensorRT-LLM's attention plugin as its contract has it, in torch on the CPU.

It gets nothing but the engine's named tensors, and finds keys and values in the pool by pointer
arithmetic: a wrong length, type, offset, table or pointer changes the logits, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

CONTEXT, GENERATION = 0, 1


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

    def __enter__(self) -> None:
        self._mirrors = [tensor.cpu() for tensor in self.memory]

    def __exit__(self, *error: object) -> None:
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            tensor.copy_(mirror)

    def attend(
        self, slot: int, qkv: Tensor, named: Mapping[str, Tensor], cos_sin: Tensor
    ) -> Tensor:
        """qkv [T, (heads + 2 kv_heads) * head_dim], normed but not rotated; cos_sin [positions,
        head_dim / 2, 2]."""
        assert not named["host_sink_token_length"].any() and not named["cache_indirection"].any()
        assert named["cache_indirection"].shape[1] == 1, "more than one beam"
        capacity = named["cache_indirection"].shape[2]
        window = min(int(named["host_max_attention_window_sizes"][slot]), capacity)
        kinds = named["host_request_types"].tolist()
        assert kinds == sorted(kinds), "context comes first"
        context_rows = int(named["host_context_lengths"][: kinds.count(CONTEXT)].sum())
        assert context_rows + kinds.count(GENERATION) == len(qkv), "lengths and rows differ"
        attended, start = [], 0
        for b, kind in enumerate(kinds):
            past = int(named["host_past_key_value_lengths"][b])
            prompt, total = int(named["context_lengths"][b]), int(named["sequence_length"][b])
            num_rows, first = (prompt, past - prompt) if kind == CONTEXT else (1, past)
            assert num_rows > 0 and 0 < prompt <= past and total <= len(cos_sin), "a length"
            rows = qkv[start : start + num_rows].unflatten(1, (-1, self.head_dim)).float()
            start += num_rows
            positions = torch.arange(first, first + num_rows)
            q, k, v = rows.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            q, k = _rotate(q, cos_sin[positions]), _rotate(k, cos_sin[positions])
            for row, position in enumerate(positions.tolist()):
                for which, new in enumerate((k, v)):
                    block = self._block(slot, named, "kv_cache_block_offsets", b, which, position)
                    block[:, position % self.tokens_per_block] = new[row]
            table = "host_kv_cache_block_offsets" if kind == CONTEXT else "kv_cache_block_offsets"
            seen = range(max(0, total - window), total)
            keys, values = (
                torch.stack([
                    self._block(slot, named, table, b, which, at)[:, at % self.tokens_per_block]
                    for at in seen
                ]).float()
                for which in (0, 1)
            )  # fmt: skip
            last = total - num_rows + torch.arange(num_rows).unsqueeze(1)
            hidden = torch.tensor(seen) > last
            mask = torch.zeros(num_rows, len(seen)).masked_fill_(hidden, -torch.inf)
            q, keys, values = (heads.transpose(0, 1) for heads in (q, keys, values))
            found = F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)
            attended.append(found.transpose(0, 1).flatten(1))
        return torch.cat(attended).to(qkv.dtype)

    def _block(
        self, slot: int, named: Mapping[str, Tensor], table: str, b: int, which: int, position: int
    ) -> Tensor:
        """[kv_heads, tokens_per_block, head_dim] of a layer's block that holds a position, keys (0)
        or values (1)."""
        pool, place = map(int, named["host_kv_cache_pool_mapping"][slot])
        pointer, secondary = map(int, named["host_kv_cache_pool_pointers"][pool])
        assert secondary == 0, "a secondary pool where there is none"
        shape = (self.num_kv_heads, self.tokens_per_block, self.head_dim)
        num_bytes = shape[0] * shape[1] * shape[2] * self.dtype.itemsize
        key, value = named[table][pool][b][:, position // self.tokens_per_block].tolist()
        assert key >= 0 and value == key + 1, "values do not lie behind keys of the primary pool"
        address = pointer + (place * 2 + (key, value)[which]) * num_bytes
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            start = address - tensor.data_ptr()
            if tensor.data_ptr() == pointer and start + num_bytes <= tensor.nbytes:
                found = mirror.view(-1).view(torch.uint8)[start : start + num_bytes]
                return found.view(self.dtype).view(shape)
        raise AssertionError("an illegal address")


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """NeoX: x [rows, heads, head_dim]; element i turns with element i + half."""
    cos, sin = cos_sin.unsqueeze(1).unbind(-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
