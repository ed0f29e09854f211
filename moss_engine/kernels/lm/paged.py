"""Attention over the paged KV pool as functions of tensors; owns shapes and scratch.

Own kernels rather than a library's, because the decode kernel norms, rotates and writes the new row
itself, reads the block tables on the device, so that a captured graph needs no planning by the
host, and loads before the kernel ahead of it has ended. How they compare with FlashInfer's and
torch's is in docs/full_size.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from moss_engine.kernels.launch import next_power_of_2, options
from moss_engine.kernels.lm.attend_decode import attend_decode_kernel
from moss_engine.kernels.lm.attend_rows import attend_rows_kernel, store_rows_kernel
from moss_engine.models.config import ModelConfig

MAX_SPLITS = 32


@dataclass(frozen=True)
class _Tuning:
    """Split count, positions of a tile, warps and pipeline stages of `attend_decode_kernel`."""

    programs: int
    tile: int
    warps: int
    stages: int


# One sequence's attention is latency: as many programs as run at once, all of which load at once.
# Where there are several programs for every multiprocessor anyway, two smaller ones share it. Tiles
# of rows compute, and adding up their larger parts costs more.
_ALONE, _FEW = _Tuning(128, 64, 8, 0), _Tuning(256, 128, 8, 3)
_MANY, _ROWS = _Tuning(256, 64, 4, 3), _Tuning(264, 64, 4, 3)
_FEWEST_MANY = 64  # lanes times sequences
_SMALLEST_DOT = 16
_LARGEST_TILE = 64  # rows
_PART_VALUES = 1 << 25


@dataclass(frozen=True)
class Pool:
    """The KV pool: keys and values, each [slots, blocks + 1, kv_heads, block_size, head_dim]."""

    keys: Tensor
    values: Tensor

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences may own; the one after them takes the writes of padding rows."""
        return self.keys.shape[1] - 1

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]


class PagedAttention:
    """Attention of one network over one pool; all calls share its split scratch memory.

    `rope` is float32 [positions, 2, head_dim / 2], cosines then sines; `max_groups` bounds the
    lanes times tiles, and the lanes times sequences, of a call.
    """

    def __init__(self, config: ModelConfig, pool: Pool, rope: Tensor, max_groups: int):
        self.pool = pool
        self._rope = rope
        self._eps = config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim = config.head_dim
        per_kv = heads // kv_heads
        self._num_heads = heads
        self._padded_heads = next_power_of_2(per_kv)
        self._decode_rows = max(_SMALLEST_DOT, self._padded_heads)
        self._shape = {"KV": kv_heads, "G": per_kv, "D": head_dim, "BLOCK": pool.block_size,
                       "DP": max(_SMALLEST_DOT, next_power_of_2(head_dim))}
        self._half = max(_SMALLEST_DOT, next_power_of_2(head_dim // 2))
        largest_part = _LARGEST_TILE * self._padded_heads * self._shape["DP"]
        size = min(_PART_VALUES, MAX_SPLITS * max_groups * kv_heads * largest_part)
        self._parts = torch.empty(size, device=rope.device)
        self._statistics = torch.empty(2 * size // self._shape["DP"], device=rope.device)
        self._counters = torch.zeros(max_groups * kv_heads, dtype=torch.int32, device=rope.device)

    def decode(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, slot: int, lane_slots: int,
               positions: Tensor, tables: Tensor, out: Tensor) -> None:
        """Decode: qkv [lanes, batch, ...] -> out [lanes, batch, heads * head_dim]; writes KV.

        positions [batch] counts the cached rows, tables [batch, blocks] are the block tables. Lane
        i uses KV slot slot + i * lane_slots.
        """
        lanes, batch, _ = out.shape
        tuning = _ALONE if batch == 1 else _FEW if lanes * batch < _FEWEST_MANY else _MANY
        splits = self._num_splits(lanes * batch, lanes * batch, self._decode_rows, tuning.programs)
        grid = (splits, self._shape["KV"], lanes * batch)
        attend_decode_kernel[grid](
            qkv, q_norm, k_norm, self._rope, positions, tables, self.pool.keys, self.pool.values,
            out, self._parts,
            self._statistics, self._counters, batch, slot, lane_slots, self.pool.num_blocks,
            tables.stride(0), splits, self._scale, self._eps, M=self._decode_rows, HP=self._half,
            T=tuning.tile, SPLIT=splits > 1, STAGES=tuning.stages, **self._shape, **options(
                tuning.warps))

    def store(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, slot: int, lane_slots: int,
              positions: Tensor, pool_rows: Tensor, queries: Tensor | None) -> None:
        """Write new rows' KV, and their queries to `queries` [lanes, rows, heads * head_dim].

        qkv [lanes, rows, ...] holds queries, keys and values, or, where `queries` is None, keys and
        values only.
        """
        lanes, rows, _ = qkv.shape
        first = 0 if queries is None else self._num_heads
        store_rows_kernel[(lanes * rows, self._shape["KV"])](
            qkv, q_norm, k_norm, self._rope, positions, pool_rows, self.pool.keys, self.pool.values,
            qkv if queries is None else queries, rows, slot, lane_slots, self.pool.num_blocks,
            self._eps, FIRST=first, GP=self._padded_heads, HP=self._half, **self._shape,
            **options(1))

    def attend(self, queries: Tensor, slot: int, lane_slots: int, tiles: Tensor, tile_rows: int,
               tables: Tensor, out: Tensor) -> None:
        """Causal attention of stored rows: queries, out [lanes, rows, heads * head_dim]."""
        (lanes, num_new, _), max_tiles = queries.shape, tiles.shape[1]
        rows = max(_SMALLEST_DOT, tile_rows * self._padded_heads)
        splits = self._num_splits(lanes * triton.cdiv(num_new, tile_rows), lanes * max_tiles, rows,
                                  _ROWS.programs)
        attend_rows_kernel[(splits, self._shape["KV"], lanes * max_tiles)](
            queries, tiles, tables, self.pool.keys, self.pool.values, out, self._parts,
            self._statistics,
            self._counters, num_new, max_tiles, slot, lane_slots, self.pool.num_blocks,
            tables.stride(0), splits, self._scale, M=rows, GP=self._padded_heads, T=_ROWS.tile,
            SPLIT=splits > 1, STAGES=_ROWS.stages, **self._shape, **options(_ROWS.warps))

    def _num_splits(self, likely_groups: int, max_groups: int, rows: int,
                    wanted_programs: int) -> int:
        """Splits that give the wanted number of programs, as far as the scratch memory goes."""
        kv_heads = self._shape["KV"]
        possible = self._parts.numel() // (max_groups * kv_heads * rows * self._shape["DP"])
        return max(1, min(MAX_SPLITS, possible, wanted_programs // (likely_groups * kv_heads)))
