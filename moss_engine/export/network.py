"""The network as TensorRT layers: the mathematics of `models.network`, for one step over a paged pool.

Norms, rotation, softmax and the residual stream are float32, products have the engine's dtype. The pool is only read:
keys and values of the new rows are an output, which the runtime writes into the pool after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from moss_engine.export.ops import Ops, Value
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8_parts import INPUT_SCALE, WEIGHT_SCALE
from moss_engine.runtime.trt_part_tensors import AUDIO_HIDDEN, HIDDEN, LAYERED, TEXT_HIDDEN
from moss_engine.runtime.trt_tensors import AUDIO_LOGITS, LOGITS, NEW_KV, ROTARY, base_dtype

DOWN_SCALE = 64.0
"""float16 ends at 65504, which gated values and their sums reach; they are made smaller before and larger after."""
HIDDEN_SCORE = -40_000.0
"""Added to scores of rows that may not be seen: no float16 overflow, and nothing is left of it after softmax."""
_UNSEEN = 1 << 30

Weight = Callable[[str], Value]
"""A weight by its name: an input of the engine or a constant."""


@dataclass(frozen=True)
class Step:
    """What all layers share. cos, sin [T, 1, head_dim / 2]; mask [B, 1, R * G, K + R] is added to scores; pieces
    [B, kv_heads, M] are a block's pieces of slot 0's keys; q_sizes and kv_sizes are shapes as tensors: [B, R, kv_heads,
    heads of each, head_dim] and [B, R, kv_heads, head_dim]; num_rows is T as a tensor; select the rows [S] that both
    heads want, None where all go on.
    """

    cos: Value
    sin: Value
    mask: Value
    pieces: Value
    pool: Value
    q_sizes: Value
    kv_sizes: Value
    select: Value | None
    num_rows: Value


class Network:
    """Defines the network, or a part of it, with `ops`.

    `inputs` and `weight` give its inputs and parameters; the latter have `dtype`, the pool has `border`. With `turned`,
    matrices of products are [inputs, outputs].
    """

    def __init__(self, ops: Ops, config: ModelConfig, dtype: str, border: str, inputs: Mapping[str, Value],
                 weight: Weight, *, turned: bool = False):
        self._ops = ops
        self._config = config
        self._dtype = base_dtype(dtype)
        self._border = border
        self._weight = weight
        self._down_scale = DOWN_SCALE if dtype == "float16" else 1.0
        self._inputs = inputs
        self._turned = turned
        self._new_kv: list[Value] = []

    def define(self) -> None:
        """Add all layers and mark the outputs of `trt_tensors.outputs`."""
        ops, config = self._ops, self._config
        ids = ops.reshape(self._inputs["ids"], (-1, 2))  # [T, 2]
        step = self._step(self._inputs["ids"], self._inputs["select"])
        x = self._embed(ids)
        slot = 0
        for slot in range(config.num_shared_layers):
            x = self._layer(slot, x, step, is_last=False)
        for branch, name, size in self._heads():
            branch_x = x
            for index in range(config.num_modality_layers):
                slot += 1
                branch_x = self._layer(slot, branch_x, step, is_last=index == config.num_modality_layers - 1)
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
            x = self._layer(slot, x, step, is_last=False)
        ops.output(x, LAYERED)
        self._output_new_kv()

    def define_heads(self) -> None:
        """The part that makes logits of both branches' hidden rows."""
        for (branch, name, size), hidden in zip(self._heads(), (TEXT_HIDDEN, AUDIO_HIDDEN), strict=True):
            self._logits(self._ops.gather(self._inputs[hidden], self._inputs["select"]), branch, name, size)

    def _heads(self) -> tuple[tuple[str, str, int], ...]:
        return (("text", LOGITS, self._config.vocab_size), ("audio", AUDIO_LOGITS, self._config.audio_vocab_size))

    def _logits(self, x: Value, branch: str, name: str, size: int) -> None:
        """Logits of the hidden rows that are wanted: an output."""
        logits = self._product(self._norm(x, f"{branch}.norm"), f"{branch}.head")
        assert logits.shape[-1] == size
        self._ops.output(self._ops.cast(logits, "float32"), name)

    def _output_new_kv(self) -> None:
        self._ops.output(self._ops.cast(self._ops.concatenate(self._new_kv, 0), self._border), NEW_KV)

    def _step(self, sized: Value, select: Value | None) -> Step:
        """`sized` has B and R for its first two sizes."""
        ops, config, inputs = self._ops, self._config, self._inputs
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        cached = ops.reshape(inputs["cached"], (-1, 1))
        row_index = ops.reshape(inputs["row_index"], (1, -1))
        positions = ops.reshape(ops.binary("SUM", cached, row_index), (-1,))  # [T]
        num_rows = ops.num_rows(positions)
        turns = ops.gather(self._weight(ROTARY), positions)  # [T, head_dim]
        half = head_dim // 2
        cos, sin = (ops.reshape(ops.part(turns, start, half, num_rows), (0, 1, half)) for start in (0, half))
        sizes = ops.gather(ops.shape_of(sized), ops.constant([0, 1], "int32"))
        q_sizes, kv_sizes = (ops.concatenate([sizes, ops.constant(rest, ops.size_dtype)], 0)
                             for rest in ([kv_heads, heads // kv_heads, head_dim], [kv_heads, head_dim]))
        return Step(cos, sin, self._mask(cached, row_index), self._pieces(), inputs["kv_pool"], q_sizes, kv_sizes,
                    select, num_rows)

    def _mask(self, cached: Value, row_index: Value) -> Value:
        """A cached row is seen by all, a new one by itself and those behind it, a place without a row by none."""
        ops, group = self._ops, self._config.num_attention_heads // self._config.num_key_value_heads
        past_index = ops.reshape(self._inputs["past_index"], (1, -1))
        past = ops.select(ops.binary("LESS", past_index, cached), ops.scalar(0, cached), ops.scalar(_UNSEEN, cached))
        new = ops.binary("SUM", row_index, ops.binary("PROD", cached, 0))  # [B, R]
        first_to_see = ops.reshape(ops.concatenate([past, new], 1), (0, 1, 1, -1))
        row = ops.binary("SUM", ops.reshape(row_index, (-1, 1)), ops.constant(np.ones((1, group)), "int32"))
        seen = ops.binary("LESS", first_to_see, ops.reshape(row, (1, 1, -1, 1)))  # [B, 1, R * G, K + R]
        nothing = ops.constant(np.zeros((1, 1, 1, 1)), "float32")
        return ops.select(seen, nothing, ops.scalar(HIDDEN_SCORE, nothing))

    def _pieces(self) -> Value:
        ops, config = self._ops, self._config
        kv_heads = config.num_key_value_heads
        first = ops.binary("PROD", self._inputs["tables"], 2 * kv_heads * config.num_layers)  # [B, M]
        first = ops.reshape(first, (0, 1, -1))
        return ops.binary("SUM", first, ops.constant(np.arange(kv_heads).reshape(1, -1, 1), "int32"))

    def _embed(self, ids: Value) -> Value:
        """Select, never sum: [T, 2] -> float32 [T, hidden]."""
        ops = self._ops
        num_rows = ops.num_rows(ids)
        text, audio = (ops.part(ids, channel, 1, num_rows) for channel in range(2))  # [T, 1]
        is_audio = ops.binary("EQUAL", text, self._config.modality_pad_token_id)
        zero = ops.scalar(0, audio)
        audio = ops.select(is_audio, audio, zero)  # the channel that does not count holds anything
        audio_x, text_x = (ops.gather(self._weight(name), ops.reshape(index, (-1,)))
                           for name, index in (("embed.audio", audio), ("embed.text", text)))
        return ops.cast(ops.select(is_audio, audio_x, text_x), "float32")

    def _layer(self, slot: int, x: Value, step: Step, *, is_last: bool) -> Value:
        """x: float32 [T, hidden]. Behind the attention of a branch's last layer only the selected rows go on."""
        ops, config = self._ops, self._config
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        prefix = f"layers.{slot}."
        qkv = self._product(self._norm(x, prefix + "input_norm"), prefix + "qkv")
        q_size, kv_size = heads * head_dim, kv_heads * head_dim
        q, k, v = (ops.reshape(ops.part(qkv, start, size, step.num_rows), (0, size // head_dim, head_dim))
                   for start, size in ((0, q_size), (q_size, kv_size), (q_size + kv_size, kv_size)))
        q = self._rotate(self._head_norm(q, prefix + "q_norm"), step)
        k = self._rotate(self._head_norm(k, prefix + "k_norm"), step)
        q = ops.cast(ops.binary("PROD", q, head_dim**-0.5), self._dtype)
        k = ops.cast(k, self._dtype)
        new = ops.concatenate([k, v], 1)  # [T, 2 * kv_heads, head_dim]
        self._new_kv.append(ops.reshape(new, (1, -1, 2 * kv_heads, head_dim)))
        attended = self._attend(slot, q, k, v, step)
        num_rows = step.num_rows
        if is_last:
            assert step.select is not None
            x, attended = ops.gather(x, step.select), ops.gather(attended, step.select)
            num_rows = ops.num_rows(step.select)
        x = ops.binary("SUM", x, self._linear(attended, prefix + "o"))
        return ops.binary("SUM", x, self._mlp(x, prefix, num_rows))

    def _attend(self, slot: int, q: Value, k: Value, v: Value, step: Step) -> Value:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]."""
        ops, config = self._ops, self._config
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        group = config.num_attention_heads // kv_heads
        q = ops.reshape(q, (-1, -1, kv_heads, group, head_dim), sizes=step.q_sizes)
        q = ops.reshape(ops.transpose(q, (0, 2, 1, 3, 4)), (0, kv_heads, -1, head_dim))  # [B, heads, R * G, size]
        keys, values = (self._rows(slot, which, new, step) for which, new in enumerate((k, v)))
        scores = ops.cast(ops.product(q, keys, transposed=True), "float32")  # [B, kv_heads, R * G, K + R]
        weights = ops.cast(ops.softmax(ops.binary("SUM", scores, step.mask)), self._dtype)
        attended = ops.reshape(ops.product(weights, values, transposed=False), (0, kv_heads, -1, group, head_dim))
        return ops.reshape(ops.transpose(attended, (0, 2, 1, 3, 4)), (-1, kv_heads * group * head_dim))

    def _rows(self, slot: int, which: int, new: Value, step: Step) -> Value:
        """Cached rows' keys (0) or values (1) of a slot, then those of the new rows: [B, kv_heads, K + R, head_dim]."""
        ops, kv_heads, head_dim = self._ops, self._config.num_key_value_heads, self._config.head_dim
        pieces = ops.binary("SUM", step.pieces, (2 * slot + which) * kv_heads)
        past = ops.cast(ops.gather(step.pool, pieces), self._dtype)
        past = ops.reshape(past, (0, kv_heads, -1, head_dim))
        new = ops.transpose(ops.reshape(new, (-1, -1, kv_heads, head_dim), sizes=step.kv_sizes), (0, 2, 1, 3))
        return ops.concatenate([past, new], 2)

    def _mlp(self, x: Value, prefix: str, num_rows: Value) -> Value:
        """Gated by SiLU: float32 [n, hidden] -> float32 [n, hidden]."""
        ops, size = self._ops, self._config.intermediate_size
        both = self._product(self._norm(x, prefix + "mlp_norm"), prefix + "gate_up")
        gate, up = (ops.cast(ops.part(both, start, size, num_rows), "float32") for start in (0, size))
        gated = ops.binary("PROD", ops.binary("PROD", gate, ops.sigmoid(gate)), up)
        if self._down_scale == 1:
            return self._linear(ops.cast(gated, self._dtype), prefix + "down")
        gated = ops.cast(ops.binary("PROD", gated, 1 / self._down_scale), self._dtype)
        return ops.binary("PROD", self._linear(gated, prefix + "down"), self._down_scale)

    def _linear(self, x: Value, name: str) -> Value:
        return self._ops.cast(self._product(x, name), "float32")

    def _product(self, x: Value, name: str) -> Value:
        """[n, inputs] -> [n, outputs] in the engine's dtype; with a float8 weight, x is float8 on its way, too."""
        ops, weight = self._ops, self._weight(name)
        if weight.dtype == "float8_e4m3fn":
            scale = self._weight(name + INPUT_SCALE)
            x = ops.dequantize(ops.quantize(x, scale), scale, self._dtype)
            weight = ops.dequantize(weight, self._weight(name + WEIGHT_SCALE), self._dtype)
        return ops.product(x, weight, transposed=not self._turned)

    def _norm(self, x: Value, name: str) -> Value:
        """RMSNorm over the last axis: float32 [n, hidden] -> [n, hidden] in the engine's dtype."""
        return self._ops.cast(self._scaled(x, self._weight(name)), self._dtype)

    def _head_norm(self, x: Value, name: str) -> Value:
        """RMSNorm of every head: [T, n, head_dim] -> float32 of the same shape."""
        return self._scaled(self._ops.cast(x, "float32"), self._weight(name))

    def _scaled(self, x: Value, weight: Value) -> Value:
        ops = self._ops
        mean = ops.mean_last(ops.binary("PROD", x, x))
        root = ops.unary("SQRT", ops.binary("SUM", mean, self._config.rms_norm_eps))
        weight = ops.cast(ops.reshape(weight, (1,) * (len(x.shape) - 1) + (weight.shape[0],)), "float32")
        return ops.binary("PROD", ops.binary("DIV", x, root), weight)

    def _rotate(self, x: Value, step: Step) -> Value:
        """NeoX: element i turns together with element i + half; x float32 [T, n, head_dim]."""
        ops, half = self._ops, self._config.head_dim // 2
        first, second = (ops.part(x, start, half, step.num_rows) for start in (0, half))
        turned = [ops.binary("SUB", ops.binary("PROD", first, step.cos), ops.binary("PROD", second, step.sin)),
                  ops.binary("SUM", ops.binary("PROD", second, step.cos), ops.binary("PROD", first, step.sin))]
        return ops.concatenate(turned, 2)
