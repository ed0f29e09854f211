"""One pass of the network over the merged weights, as a fixed sequence of kernels on fixed buffers.

Nothing here looks at a value on the device or depends on one on the host, so every function can be captured in a CUDA
graph. Two programs cover all batches: `decode` runs one new row of every sequence up to the logits; `fill` runs many
rows up to the last branch layer, of which only keys and values are needed, and `finish` then runs that layer and the
heads for the rows whose logits are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Logits
from moss_engine.runtime.cuda_products import Products
from moss_engine.runtime.cuda_weights import LayerWeights, Stack, Weights
from moss_engine.runtime.kernels.paged import PagedAttention
from moss_engine.runtime.kernels.rows import embed


@dataclass(frozen=True)
class RowsInput:
    """Rows of several sequences, one after another: all int32 on the device.

    ids [rows, 2]; positions [rows]; pool_rows [rows] = block * block_size + offset; tiles [4, max_tiles] as in
    `attend_rows_kernel`, of at most `tile_rows` rows each; tables [sequences, blocks].
    """

    ids: Tensor
    positions: Tensor
    pool_rows: Tensor
    tiles: Tensor
    tile_rows: int
    tables: Tensor


class CudaNetwork:
    """The network's kernels and their scratch memory, which is shared by all batch sizes."""

    def __init__(self, config: ModelConfig, weights: Weights, attention: PagedAttention, max_rows: int):
        self._config = config
        self._weights = weights
        self._attention = attention
        self._products = Products(weights, max_rows, config.rms_norm_eps)
        q_size = config.num_attention_heads * config.head_dim
        self._sizes = {"x": config.hidden_size, "qkv": q_size + 2 * config.num_key_value_heads * config.head_dim,
                       "queries": q_size, "attended": q_size, "gated": config.intermediate_size}
        table = weights.text_table
        self._buffers = {name: torch.empty(2 * max_rows * size, dtype=table.dtype, device=table.device)
                         for name, size in self._sizes.items()}
        # both branches' rows; `finish` reads them whatever number of rows `fill` had
        self._branch_x = torch.empty(2, max_rows, config.hidden_size, dtype=table.dtype, device=table.device)

    def decode(self, ids: Tensor, positions: Tensor, tables: Tensor, logits: Logits) -> None:
        """One new row of every sequence: ids [batch, 2], positions [batch] its number of cached rows, tables [batch,
        blocks], all int32 -> logits, float32.
        """
        weights = self._weights
        x = self._embed(ids)
        self._decode_layers(weights.trunk, 0, x, positions, tables)
        branch_x = self._branch_x.flatten()[: 2 * x.numel()].view(2, *x.shape[1:])
        branch_x.copy_(x.expand_as(branch_x))
        self._decode_layers(weights.branches, 0, branch_x, positions, tables)
        self._heads(branch_x, logits)

    def fill(self, rows: RowsInput) -> None:
        """Write the KV of all rows, and keep the last branch layer's input for `finish`."""
        weights = self._weights
        x = self._embed(rows.ids)
        for index, layer in enumerate(weights.trunk.layers):
            self._fill_layer(layer, weights.trunk.first_slot + index, x, rows)
        branch_x = self._branch_x[:, : len(rows.positions)]
        branch_x.copy_(x.expand_as(branch_x))
        branches = weights.branches
        for lane in range(branches.lanes):
            *before_last, last = (layer.lane(lane) for layer in branches.layers)
            slot = branches.first_slot + lane * branches.lane_slots
            for index, layer in enumerate(before_last):
                self._fill_layer(layer, slot + index, branch_x[lane : lane + 1], rows)
            self._fill_keys_values(last, slot + len(before_last), branch_x[lane : lane + 1], rows)

    def finish(self, select: Tensor, positions: Tensor, tables: Tensor, logits: Logits) -> None:
        """After `fill`: the last branch layer and the heads for the rows whose indices are in `select` [batch].

        positions and tables are those of the selected rows' sequences; the rows' KV is computed a second time.
        """
        branches = self._weights.branches
        x = self._buffer("x", 2, len(select))
        torch.index_select(self._branch_x, 1, select, out=x)
        self._decode_layers(branches, len(branches.layers) - 1, x, positions, tables)
        self._heads(x, logits)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self._buffer("x", 1, len(ids))
        embed(ids, self._weights.text_table, self._weights.audio_table, self._config.modality_pad_token_id, x[0])
        return x

    def _decode_layers(self, stack: Stack, first_layer: int, x: Tensor, positions: Tensor, tables: Tensor) -> None:
        """x [lanes, batch, hidden] through the layers from `first_layer` on, in place."""
        lanes, batch, _ = x.shape
        qkv, attended = self._buffer("qkv", lanes, batch), self._buffer("attended", lanes, batch)
        gated = self._buffer("gated", lanes, batch)
        for index, layer in enumerate(stack.layers[first_layer:], start=stack.first_slot + first_layer):
            self._products.normed(x, layer.input_norm, layer.qkv, qkv)
            self._attention.decode(qkv, layer.q_norm, layer.k_norm, index, stack.lane_slots, positions, tables,
                                   attended)
            self._products.added(attended, layer.o, x)
            self._products.gated(x, layer.post_norm, layer.gate_up, gated)
            self._products.added(gated, layer.down, x)

    def _fill_layer(self, layer: LayerWeights, slot: int, x: Tensor, rows: RowsInput) -> None:
        """x [1, rows, hidden] through a layer of one lane, in place."""
        num_rows = x.shape[1]
        qkv, queries = self._buffer("qkv", 1, num_rows), self._buffer("queries", 1, num_rows)
        attended, gated = self._buffer("attended", 1, num_rows), self._buffer("gated", 1, num_rows)
        self._products.normed(x, layer.input_norm, layer.qkv, qkv)
        self._attention.store(qkv[0], layer.q_norm, layer.k_norm, slot, rows.positions, rows.pool_rows, queries[0])
        self._attention.attend(queries[0], slot, rows.tiles, rows.tile_rows, rows.tables, attended[0])
        self._products.added(attended, layer.o, x)
        self._products.gated(x, layer.post_norm, layer.gate_up, gated)
        self._products.added(gated, layer.down, x)

    def _fill_keys_values(self, layer: LayerWeights, slot: int, x: Tensor, rows: RowsInput) -> None:
        """Only the keys and values of a layer of one lane for x [1, rows, hidden]."""
        num_rows, q_size = x.shape[1], self._sizes["queries"]
        size = self._sizes["qkv"] - q_size
        keys_values = self._buffers["qkv"][: num_rows * size].view(1, num_rows, size)
        self._products.normed(x, layer.input_norm, layer.qkv.outputs(q_size, q_size + size), keys_values)
        self._attention.store(keys_values[0], layer.q_norm, layer.k_norm, slot, rows.positions, rows.pool_rows, None)

    def _heads(self, x: Tensor, logits: Logits) -> None:
        weights, vocab_size = self._weights, self._config.vocab_size
        end = vocab_size + self._config.audio_vocab_size
        heads = (weights.heads.outputs(0, vocab_size), weights.heads.outputs(vocab_size, end))
        for lane, (head, out) in enumerate(zip(heads, logits, strict=True)):
            self._products.normed(x[lane : lane + 1], weights.final_norm[lane : lane + 1], head, out.unsqueeze(0))

    def _buffer(self, name: str, lanes: int, rows: int) -> Tensor:
        size = self._sizes[name]
        return self._buffers[name][: lanes * rows * size].view(lanes, rows, size)
