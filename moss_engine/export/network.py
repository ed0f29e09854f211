"""The network as TensorRT layers, for one step over a paged pool.

The mathematics is that of `models.network`. Norms, rotation, softmax and the residual stream are
float32, products have the engine's dtype. The pool is only read: keys and values of the new rows
are an output, which the runtime writes into the pool after the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moss_engine.export.layer import Layers, Step, Weight
from moss_engine.export.ops import Ops, Value
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.tensorrt.part_tensors import AUDIO_HIDDEN, HIDDEN, LAYERED, TEXT_HIDDEN
from moss_engine.runtime.tensorrt.tensors import AUDIO_LOGITS, LOGITS, NEW_KV, ROTARY

MASKED_SCORE = -40_000.0
"""Added to scores of masked rows: within float16's range, and zero after softmax."""
_UNSEEN = 1 << 30


class Network:
    """Defines the network, or a part of it, with `ops`.

    `inputs` and `weight` give its inputs and parameters; the latter have `dtype`, the pool has
    `io_dtype`. With `transposed`, matrices of products are [inputs, outputs].
    """

    def __init__(
        self,
        ops: Ops,
        config: ModelConfig,
        dtype: str,
        io_dtype: str,
        inputs: Mapping[str, Value],
        weight: Weight,
        *,
        transposed: bool = False,
    ):
        self._ops = ops
        self._config = config
        self._io_dtype = io_dtype
        self._weight = weight
        self._inputs = inputs
        self._layers = Layers(ops, config, dtype, weight, transposed=transposed)

    def define(self) -> None:
        """Add all layers and mark the outputs that `runtime.tensorrt.tensors.outputs` names."""
        ops, config = self._ops, self._config
        ids = ops.reshape(self._inputs["ids"], (-1, 2))  # [T, 2]
        step = self._step(self._inputs["ids"], self._inputs["select"])
        x = self._embed(ids)
        slot = 0
        for slot in range(config.num_shared_layers):
            x = self._layers.layer(slot, x, step, is_last=False)
        for branch, name, size in self._heads():
            branch_x = x
            for index in range(config.num_modality_layers):
                slot += 1
                branch_x = self._layers.layer(
                    slot, branch_x, step, is_last=index == config.num_modality_layers - 1
                )
            self._logits(branch_x, branch, name, size)
        self._output_new_kv()

    def define_embed(self) -> None:
        """The part that makes hidden rows of ids."""
        ops = self._ops
        ops.output(self._embed(ops.reshape(self._inputs["ids"], (-1, 2))), HIDDEN)

    def define_layers(self, count: int) -> None:
        """The part of `count` layers, those of slots 0, 1, ... of the pool that it is given."""
        ops, hidden = self._ops, self._inputs[HIDDEN]
        step = self._step(hidden, None)
        x = ops.reshape(hidden, (-1, self._config.hidden_size))
        for slot in range(count):
            x = self._layers.layer(slot, x, step, is_last=False)
        ops.output(x, LAYERED)
        self._output_new_kv()

    def define_heads(self) -> None:
        """The part that makes logits of both branches' hidden rows."""
        for (branch, name, size), hidden in zip(
            self._heads(), (TEXT_HIDDEN, AUDIO_HIDDEN), strict=True
        ):
            self._logits(
                self._ops.gather(self._inputs[hidden], self._inputs["select"]), branch, name, size
            )

    def _heads(self) -> tuple[tuple[str, str, int], ...]:
        return (
            ("text", LOGITS, self._config.vocab_size),
            ("audio", AUDIO_LOGITS, self._config.audio_vocab_size),
        )

    def _logits(self, x: Value, branch: str, name: str, size: int) -> None:
        """Logits of the hidden rows that are wanted: an output."""
        logits = self._layers.product(self._layers.norm(x, f"{branch}.norm"), f"{branch}.head")
        assert logits.shape[-1] == size
        self._ops.output(self._ops.cast(logits, "float32"), name)

    def _output_new_kv(self) -> None:
        self._ops.output(
            self._ops.cast(self._ops.concatenate(self._layers.new_kv, 0), self._io_dtype), NEW_KV
        )

    def _step(self, sized: Value, select: Value | None) -> Step:
        """`sized` has B and R for its first two sizes."""
        ops, config, inputs = self._ops, self._config, self._inputs
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        cached = ops.reshape(inputs["cached"], (-1, 1))
        row_index = ops.reshape(inputs["row_index"], (1, -1))
        positions = ops.reshape(ops.binary("SUM", cached, row_index), (-1,))  # [T]
        num_rows = ops.num_rows(positions)
        angles = ops.gather(self._weight(ROTARY), positions)  # [T, head_dim]
        half = head_dim // 2
        cos, sin = (
            ops.reshape(ops.part(angles, start, half, num_rows), (0, 1, half))
            for start in (0, half)
        )
        sizes = ops.gather(ops.shape_of(sized), ops.constant([0, 1], "int32"))
        q_sizes, kv_sizes = (
            ops.concatenate([sizes, ops.constant(rest, ops.size_dtype)], 0)
            for rest in ([kv_heads, heads // kv_heads, head_dim], [kv_heads, head_dim])
        )
        return Step(
            cos,
            sin,
            self._mask(cached, row_index),
            self._tiles(),
            inputs["kv_pool"],
            q_sizes,
            kv_sizes,
            select,
            num_rows,
        )

    def _mask(self, cached: Value, row_index: Value) -> Value:
        """Causal mask: cached rows are visible to all, new rows to themselves and later ones."""
        ops, group = self._ops, self._config.num_attention_heads // self._config.num_key_value_heads
        past_index = ops.reshape(self._inputs["past_index"], (1, -1))
        past = ops.select(
            ops.binary("LESS", past_index, cached),
            ops.scalar(0, cached),
            ops.scalar(_UNSEEN, cached),
        )
        new = ops.binary("SUM", row_index, ops.binary("PROD", cached, 0))  # [B, R]
        first_to_see = ops.reshape(ops.concatenate([past, new], 1), (0, 1, 1, -1))
        row = ops.binary(
            "SUM", ops.reshape(row_index, (-1, 1)), ops.constant(np.ones((1, group)), "int32")
        )
        seen = ops.binary(
            "LESS", first_to_see, ops.reshape(row, (1, 1, -1, 1))
        )  # [B, 1, R * G, K + R]
        nothing = ops.constant(np.zeros((1, 1, 1, 1)), "float32")
        return ops.select(seen, nothing, ops.scalar(MASKED_SCORE, nothing))

    def _tiles(self) -> Value:
        ops, config = self._ops, self._config
        kv_heads = config.num_key_value_heads
        first = ops.binary(
            "PROD", self._inputs["tables"], 2 * kv_heads * config.num_layers
        )  # [B, M]
        first = ops.reshape(first, (0, 1, -1))
        return ops.binary(
            "SUM", first, ops.constant(np.arange(kv_heads).reshape(1, -1, 1), "int32")
        )

    def _embed(self, ids: Value) -> Value:
        """Select, never sum: [T, 2] -> float32 [T, hidden]."""
        ops = self._ops
        num_rows = ops.num_rows(ids)
        text, audio = (ops.part(ids, channel, 1, num_rows) for channel in range(2))  # [T, 1]
        is_audio = ops.binary("EQUAL", text, self._config.modality_pad_token_id)
        zero = ops.scalar(0, audio)
        audio = ops.select(is_audio, audio, zero)  # the channel that does not count holds anything
        audio_x, text_x = (
            ops.gather(self._weight(name), ops.reshape(index, (-1,)))
            for name, index in (("embed.audio", audio), ("embed.text", text))
        )
        return ops.cast(ops.select(is_audio, audio_x, text_x), "float32")
