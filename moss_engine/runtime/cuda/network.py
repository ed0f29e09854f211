"""One pass of the network over the merged weights, as a fixed sequence of kernels on fixed buffers.

Nothing here looks at a value on the device or depends on one on the host, so every function can be
captured in a CUDA graph. Two programs cover all batches: `decode` runs one new row of every
sequence up to the logits; `fill` runs many rows up to the last branch layer, of which only keys and
values are needed, and `finish` then runs that layer and the heads for the rows whose logits are
wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.kernels.lm.attention import PagedAttention
from moss_engine.kernels.lm.rows import embed, repeat_rows
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Logits
from moss_engine.runtime.cuda.products import Products
from moss_engine.runtime.cuda.weights import LayerWeights, Stack, Weights


@dataclass(frozen=True)
class DecodeInput:
    """One new row of every sequence: all int32 on the device.

    ids [batch, 2]; positions [batch] counts the cached rows; pool_rows [batch] as in `RowsInput`;
    tables [batch, blocks].
    """

    ids: Tensor
    positions: Tensor
    pool_rows: Tensor
    tables: Tensor


@dataclass(frozen=True)
class RowsInput:
    """Rows of several sequences, one after another: all int32 on the device.

    ids [rows, 2]; positions [rows]; pool_rows [rows] = block * block_size + offset; tiles [4,
    max_tiles] as in `attend_rows_kernel`, of at most `tile_rows` rows each; tables [sequences,
    blocks].
    """

    ids: Tensor
    positions: Tensor
    pool_rows: Tensor
    tiles: Tensor
    tile_rows: int
    tables: Tensor


@dataclass(frozen=True)
class FinishInput:
    """Rows of a `fill` whose logits are wanted: all int32 on the device.

    select [lanes, rows] are their places among both branches' rows; positions [rows] and tables
    [rows, blocks] those of their sequences.
    """

    select: Tensor
    positions: Tensor
    tables: Tensor


class CudaNetwork:
    """The network's kernels and their scratch memory, which is shared by all batch sizes."""

    def __init__(
        self, config: ModelConfig, weights: Weights, attention: PagedAttention, max_rows: int
    ):
        self._config = config
        self._weights = weights
        self._text, self._audio = (
            weights.branches.lane(lane) for lane in range(weights.branches.lanes)
        )
        self._attention = attention
        self._products = Products(weights, max_rows, config.rms_norm_eps)
        q_size = config.num_attention_heads * config.head_dim
        self._sizes = {
            "x": config.hidden_size,
            "qkv": q_size + 2 * config.num_key_value_heads * config.head_dim,
            "queries": q_size,
            "attended": q_size,
            "gated": config.intermediate_size,
        }
        table = weights.text_table
        self._buffers = {
            name: torch.empty(2 * max_rows * size, dtype=table.dtype, device=table.device)
            for name, size in self._sizes.items()
        }
        # both branches' rows, one branch after the other; what `fill` leaves here `finish` reads
        self._branch_x = torch.empty(
            2 * max_rows, config.hidden_size, dtype=table.dtype, device=table.device
        )

    def decode(self, step: DecodeInput, logits: Logits, *, text_logits: bool) -> None:
        """One new row of every sequence -> logits, float32; those of text only with
        `text_logits`."""
        x = self._embed(step.ids)
        self._decode_layers(self._weights.trunk, x, step)
        branch_x = self._spread(x)
        if text_logits:
            self._decode_layers(self._weights.branches, branch_x, step)
            self._head(0, branch_x[:1], logits.text)
        else:
            self._decode_layers(self._weights.branches.before_last(), branch_x, step)
            self._fill_keys_values(self._text.last(), branch_x[:1], step)
            self._decode_layers(self._audio.last(), branch_x[1:], step)
        self._head(1, branch_x[1:], logits.audio)

    def fill(self, rows: RowsInput) -> None:
        """Write the KV of all rows, and keep the last branch layer's input for `finish`."""
        x = self._embed(rows.ids)
        self._fill_layers(self._weights.trunk, x, rows)
        branch_x = self._spread(x)
        self._fill_layers(self._weights.branches.before_last(), branch_x, rows)
        self._fill_keys_values(self._weights.branches.last(), branch_x, rows)

    def finish(self, step: FinishInput, logits: Logits, *, text_logits: bool) -> None:
        """After `fill`: the last branch layer and the heads for the selected rows; their KV is
        computed once more."""
        first = 0 if text_logits else 1
        select = step.select[first:]
        x = self._buffer("x", *select.shape)
        # torch's own kernel, not one that is launched dependently: it begins when all that `fill`
        # wrote can be read
        torch.index_select(self._branch_x, 0, select.flatten(), out=x.flatten(0, 1))
        self._decode_layers((self._audio if first else self._weights.branches).last(), x, step)
        if not first:
            self._head(0, x[:1], logits.text)
        self._head(1, x[-1:], logits.audio)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self._buffer("x", 1, len(ids))
        embed(
            ids,
            self._weights.text_table,
            self._weights.audio_table,
            self._config.modality_pad_token_id,
            x[0],
        )
        return x

    def _spread(self, x: Tensor) -> Tensor:
        """[1, rows, hidden] -> both branches' own copy [2, rows, hidden]."""
        rows = 2 * x.shape[1]
        repeat_rows(x[0], self._branch_x[:rows])
        return self._branch_x[:rows].view(2, *x.shape[1:])

    def _decode_layers(self, stack: Stack, x: Tensor, step: DecodeInput | FinishInput) -> None:
        """x [lanes, batch, hidden] through all layers, in place."""

        def attend(slot: int, layer: LayerWeights, qkv: Tensor, attended: Tensor) -> None:
            self._attention.decode(
                qkv,
                layer.q_norm,
                layer.k_norm,
                slot,
                stack.lane_slots,
                step.positions,
                step.tables,
                attended,
            )

        self._layers(stack, x, attend)

    def _fill_layers(self, stack: Stack, x: Tensor, rows: RowsInput) -> None:
        """x [lanes, rows, hidden] through all layers, in place."""
        queries = self._buffer("queries", *x.shape[:2])

        def attend(slot: int, layer: LayerWeights, qkv: Tensor, attended: Tensor) -> None:
            self._attention.store(
                qkv,
                layer.q_norm,
                layer.k_norm,
                slot,
                stack.lane_slots,
                rows.positions,
                rows.pool_rows,
                queries,
            )
            self._attention.attend(
                queries, slot, stack.lane_slots, rows.tiles, rows.tile_rows, rows.tables, attended
            )

        self._layers(stack, x, attend)

    def _layers(
        self, stack: Stack, x: Tensor, attend: Callable[[int, LayerWeights, Tensor, Tensor], None]
    ) -> None:
        lanes, num_rows, _ = x.shape
        qkv, attended, gated = (
            self._buffer(name, lanes, num_rows) for name in ("qkv", "attended", "gated")
        )
        for slot, layer in enumerate(stack.layers, start=stack.first_slot):
            self._products(x, layer.qkv, qkv, norm=layer.input_norm)
            attend(slot, layer, qkv, attended)
            self._products(attended, layer.o, x, residual=x)
            self._products(x, layer.gate_up, gated, norm=layer.mlp_norm, gated=True)
            self._products(gated, layer.down, x, residual=x)

    def _fill_keys_values(self, stack: Stack, x: Tensor, step: DecodeInput | RowsInput) -> None:
        """Only the keys and values of a stack's only layer for x [lanes, rows, hidden]."""
        (layer,) = stack.layers
        lanes, num_rows, _ = x.shape
        q_size = self._sizes["queries"]
        size = self._sizes["qkv"] - q_size
        keys_values = self._buffers["qkv"][: lanes * num_rows * size].view(lanes, num_rows, size)
        linear = layer.qkv.outputs(q_size, q_size + size)
        self._products(x, linear, keys_values, norm=layer.input_norm)
        self._attention.store(
            keys_values,
            layer.q_norm,
            layer.k_norm,
            stack.first_slot,
            stack.lane_slots,
            step.positions,
            step.pool_rows,
            None,
        )

    def _head(self, lane: int, x: Tensor, out: Tensor) -> None:
        """The head of one branch: x [1, rows, hidden] -> out [rows, vocabulary]."""
        weights, start = self._weights, (0, self._config.vocab_size)[lane]
        linear = weights.heads.outputs(start, start + out.shape[1])
        norm = weights.final_norm[lane : lane + 1]
        self._products(x, linear, out.unsqueeze(0), norm=norm)

    def _buffer(self, name: str, lanes: int, rows: int) -> Tensor:
        size = self._sizes[name]
        return self._buffers[name][: lanes * rows * size].view(lanes, rows, size)
