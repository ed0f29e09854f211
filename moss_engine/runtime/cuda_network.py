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
from moss_engine.runtime.cuda_weights import LayerWeights, Linear, Stack, Weights
from moss_engine.runtime.kernels.matvec import MAX_ROWS, matvec
from moss_engine.runtime.kernels.paged import PagedAttention
from moss_engine.runtime.kernels.rows import embed, gate, rms_norm


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
        self._eps = config.rms_norm_eps
        self._products = Products(weights, max_rows)
        table = weights.text_table
        q_size = config.num_attention_heads * config.head_dim
        self._sizes = {"x": config.hidden_size, "branch_x": config.hidden_size, "normed": config.hidden_size,
                       "qkv": q_size + 2 * config.num_key_value_heads * config.head_dim, "queries": q_size,
                       "attended": q_size, "gate_up": 2 * config.intermediate_size,
                       "gated": config.intermediate_size}
        self._buffers = {name: torch.empty(2 * max_rows * size, dtype=table.dtype, device=table.device)
                         for name, size in self._sizes.items()}
        # [lanes, rows, hidden] for any number of rows, so that `finish` need not know how many `fill` had
        self._filled = torch.empty(2, max_rows, config.hidden_size, dtype=table.dtype, device=table.device)

    def decode(self, ids: Tensor, positions: Tensor, tables: Tensor, logits: Logits) -> None:
        """One new row of every sequence: ids [batch, 2], positions [batch] its number of cached rows, tables [batch,
        blocks], all int32 -> logits, float32.
        """
        weights = self._weights
        x = self._buffer("x", 1, len(positions))
        embed(ids, weights.text_table, weights.audio_table, self._config.modality_pad_token_id, x[0])
        x = self._decode_layers(weights.trunk, weights.trunk.layers, x, positions, tables)
        branch_x = self._buffer("branch_x", 2, len(positions))
        branch_x.copy_(x.expand_as(branch_x))
        branch_x = self._decode_layers(weights.branches, weights.branches.layers, branch_x, positions, tables)
        self._heads(branch_x, logits)

    def fill(self, rows: RowsInput) -> None:
        """Write the KV of all rows, and keep the last branch layer's input for `finish`."""
        weights = self._weights
        x = self._buffer("x", 1, len(rows.positions))
        embed(rows.ids, weights.text_table, weights.audio_table, self._config.modality_pad_token_id, x[0])
        for index, layer in enumerate(weights.trunk.layers):
            self._fill_layer(layer, 0, weights.trunk.first_slot + index, x[0], rows)
        branch_x = self._filled[:, : len(rows.positions)]
        branch_x.copy_(x.expand_as(branch_x))
        last = len(weights.branches.layers) - 1
        for lane in range(2):
            first_slot = weights.branches.first_slot + lane * weights.branches.lane_slots
            for index, layer in enumerate(weights.branches.layers[:last]):
                self._fill_layer(layer, lane, first_slot + index, branch_x[lane], rows)
            self._fill_keys_values(weights.branches.layers[last], lane, first_slot + last, branch_x[lane], rows)

    def finish(self, select: Tensor, positions: Tensor, tables: Tensor, logits: Logits) -> None:
        """After `fill`: the last branch layer and the heads for the rows whose indices are in `select` [batch].

        positions and tables are those of the selected rows' sequences; the rows' KV is computed a second time.
        """
        branches = self._weights.branches
        x = self._buffer("x", 2, len(select))
        torch.index_select(self._filled, 1, select, out=x)
        last = len(branches.layers) - 1
        x = self._decode_layers(branches, branches.layers[last:], x, positions, tables, last)
        self._heads(x, logits)

    def _fill_layer(self, layer: LayerWeights, lane: int, slot: int, x: Tensor, rows: RowsInput) -> None:
        """x [rows, hidden] through one layer of one lane, in place."""
        num_rows = len(x)
        normed, qkv = self._buffer("normed", 1, num_rows), self._buffer("qkv", 1, num_rows)
        queries, attended = self._buffer("queries", 1, num_rows), self._buffer("attended", 1, num_rows)
        gate_up, gated = self._buffer("gate_up", 1, num_rows), self._buffer("gated", 1, num_rows)
        rms_norm(x.unsqueeze(0), layer.input_norm[lane : lane + 1], self._eps, normed)
        self._products.product(normed[0], layer.qkv, lane, qkv[0])
        self._attention.store(qkv[0], layer.q_norm[lane], layer.k_norm[lane], slot, rows.positions, rows.pool_rows,
                              queries[0])
        self._attention.attend(queries[0], slot, rows.tiles, rows.tile_rows, rows.tables, attended[0])
        self._products.add_product(attended[0], layer.o, lane, x)
        rms_norm(x.unsqueeze(0), layer.post_norm[lane : lane + 1], self._eps, normed)
        self._products.product(normed[0], layer.gate_up, lane, gate_up[0])
        gate(gate_up, gated)
        self._products.add_product(gated[0], layer.down, lane, x)

    def _fill_keys_values(self, layer: LayerWeights, lane: int, slot: int, x: Tensor, rows: RowsInput) -> None:
        """Only the keys and values of one layer of one lane for x [rows, hidden]."""
        num_rows, q_size = len(x), self._sizes["queries"]
        normed = self._buffer("normed", 1, num_rows)
        rms_norm(x.unsqueeze(0), layer.input_norm[lane : lane + 1], self._eps, normed)
        size = self._sizes["qkv"] - q_size
        keys_values = self._buffers["qkv"][: num_rows * size].view(num_rows, size)
        self._products.product(normed[0], layer.qkv.outputs(q_size, q_size + size), lane, keys_values)
        self._attention.store(keys_values, layer.q_norm[lane], layer.k_norm[lane], slot, rows.positions,
                              rows.pool_rows, None)

    def _decode_layers(self, stack: Stack, layers: tuple[LayerWeights, ...], x: Tensor, positions: Tensor,
                       tables: Tensor, first_layer: int = 0) -> Tensor:
        lanes, batch, _ = x.shape
        qkv, attended = self._buffer("qkv", lanes, batch), self._buffer("attended", lanes, batch)
        gated = self._buffer("gated", lanes, batch)
        for index, layer in enumerate(layers):
            self._project(x, layer.input_norm, layer.qkv, qkv)
            self._attention.decode(qkv, layer.q_norm, layer.k_norm, stack.first_slot + first_layer + index,
                                   stack.lane_slots, positions, tables, attended)
            self._add_product(attended, layer.o, x)
            self._gate_up(x, layer, gated)
            self._add_product(gated, layer.down, x)
        return x

    def _project(self, x: Tensor, norm: Tensor, linear: Linear, out: Tensor) -> None:
        """out = linear(norm(x)), all [lanes, rows, ...]."""
        lanes, rows, _ = x.shape
        if rows <= MAX_ROWS:
            matvec(x, linear.weight, out, scale=linear.scale, norm=norm, eps=self._eps)
            return
        normed = self._buffer("normed", lanes, rows)
        rms_norm(x, norm, self._eps, normed)
        for lane in range(lanes):
            self._products.product(normed[lane], linear, lane, out[lane])

    def _gate_up(self, x: Tensor, layer: LayerWeights, gated: Tensor) -> None:
        lanes, rows, _ = x.shape
        if rows <= MAX_ROWS:
            matvec(x, layer.gate_up.weight, gated, scale=layer.gate_up.scale, norm=layer.post_norm, eps=self._eps,
                   gated=True)
            return
        gate_up = self._buffer("gate_up", lanes, rows)
        self._project(x, layer.post_norm, layer.gate_up, gate_up)
        gate(gate_up, gated)

    def _add_product(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        """out += linear(x), all [lanes, rows, ...]."""
        if x.shape[1] <= MAX_ROWS:
            matvec(x, linear.weight, out, scale=linear.scale, residual=out)
            return
        for lane in range(x.shape[0]):
            self._products.add_product(x[lane], linear, lane, out[lane])

    def _heads(self, x: Tensor, logits: Logits) -> None:
        weights, vocab_size = self._weights, self._config.vocab_size
        end = vocab_size + self._config.audio_vocab_size
        heads = (weights.heads.outputs(0, vocab_size), weights.heads.outputs(vocab_size, end))
        for lane, (head, out) in enumerate(zip(heads, logits, strict=True)):
            states, norm = x[lane : lane + 1], weights.final_norm[lane : lane + 1]
            if x.shape[1] <= MAX_ROWS:
                matvec(states, head.weight, out.unsqueeze(0), scale=head.scale, norm=norm, eps=self._eps)
                continue
            normed = self._buffer("normed", 1, x.shape[1])
            rms_norm(states, norm, self._eps, normed)
            self._products.product_float32(normed[0], head, out)

    def _buffer(self, name: str, lanes: int, rows: int) -> Tensor:
        size = self._sizes[name]
        return self._buffers[name][: lanes * rows * size].view(lanes, rows, size)

