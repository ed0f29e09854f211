"""The paged KV pool of a TensorRT engine, and the way of new keys and values into it."""

from __future__ import annotations

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.tensorrt.part_tensors import new_kv_values
from moss_engine.runtime.tensorrt.tensors import pool_shape


class KVPool:
    """`tiles` is what the engine reads, `new_kv` what it writes: keys and values of the new rows,
    of `num_layers` layers after another at aligned addresses."""

    def __init__(
        self,
        config: ModelConfig,
        limits: Limits,
        dtype: torch.dtype,
        num_layers: int,
        device: torch.device,
    ):
        self._config = config
        self._block_size = limits.block_size
        self._num_layers = num_layers
        self._heads = config.num_layers * 2 * config.num_key_value_heads
        num_tiles, *tile = pool_shape(config, limits)
        # a part of an engine gets the pool from its first layer on, in the shape of the whole
        tiles = torch.zeros(num_tiles + self._heads, *tile, dtype=dtype, device=device)
        self.tiles = tiles[:num_tiles]
        self._layer_heads = (
            torch.arange(self._heads, device=device).view(config.num_layers, 1, -1)
            * limits.block_size
        )
        rows = max(limits.max_batch, limits.max_step_rows)
        _, stride = new_kv_values(config, num_layers, rows, dtype.itemsize)
        self.new_kv = torch.empty(
            config.num_layers // num_layers * stride, dtype=dtype, device=device
        )

    def write(self, pool_rows: Tensor) -> None:
        """Put the new rows' keys and values to their places, block * block_size + offset [rows]:
        tiles of a block lie one after another, head by head."""
        config, block_size = self._config, self._block_size
        num_rows, rows = len(pool_rows), pool_rows.long()
        first = rows // block_size * (self._heads * block_size) + rows % block_size
        places = (
            first.view(1, -1, 1) + self._layer_heads
        ).flatten()  # [layers * rows * 2 * kv_heads]
        values, stride = new_kv_values(config, self._num_layers, num_rows, self.new_kv.itemsize)
        new = self.new_kv[: config.num_layers // self._num_layers * stride].view(-1, stride)
        self.tiles.view(-1, config.head_dim).index_copy_(
            0, places, new[:, :values].reshape(-1, config.head_dim)
        )
