"""One transformer layer as TensorRT layers: attention over a paged pool, gated MLP, norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moss_engine.export.ops import Ops, Value
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE
from moss_engine.runtime.tensorrt.tensors import base_dtype

DOWN_SCALE = 64.0
"""Gated values reach float16's end, 65504: they are scaled down before `down` and up after it."""

Weight = Callable[[str], Value]
"""A weight by its name: an input of the engine or a constant."""


@dataclass(frozen=True)
class Step:
    """What the layers of one step share.

    cos, sin [T, 1, head_dim / 2]; mask [B, 1, R * G, K + R] is added to scores; tiles [B, kv_heads,
    M] are a block's tiles of slot 0's keys; q_sizes and kv_sizes are shapes as tensors: [B, R,
    kv_heads, heads of each, head_dim] and [B, R, kv_heads, head_dim]; num_rows is T as a tensor;
    select the rows [S] that both heads want, None where all go on.
    """

    cos: Value
    sin: Value
    mask: Value
    tiles: Value
    pool: Value
    q_sizes: Value
    kv_sizes: Value
    select: Value | None
    num_rows: Value


class Layers:
    """Adds layers to a network; the keys and values that they make are kept in `new_kv`."""

    def __init__(
        self, ops: Ops, config: ModelConfig, dtype: str, weight: Weight, *, transposed: bool
    ):
        self._ops = ops
        self._config = config
        self._dtype = base_dtype(dtype)
        self._weight = weight
        self._down_scale = DOWN_SCALE if dtype == "float16" else 1.0
        self._transposed = transposed
        self.new_kv: list[Value] = []

    def layer(self, slot: int, x: Value, step: Step, *, is_last: bool) -> Value:
        """x: float32 [T, hidden]. Behind the attention of a branch's last layer only the selected
        rows go on."""
        ops, config = self._ops, self._config
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        prefix = f"layers.{slot}."
        qkv = self.product(self.norm(x, prefix + "input_norm"), prefix + "qkv")
        q_size, kv_size = heads * head_dim, kv_heads * head_dim
        q, k, v = (
            ops.reshape(ops.part(qkv, start, size, step.num_rows), (0, size // head_dim, head_dim))
            for start, size in ((0, q_size), (q_size, kv_size), (q_size + kv_size, kv_size))
        )
        q = self._rotate(self._head_norm(q, prefix + "q_norm"), step)
        k = self._rotate(self._head_norm(k, prefix + "k_norm"), step)
        q = ops.cast(ops.binary("PROD", q, head_dim**-0.5), self._dtype)
        k = ops.cast(k, self._dtype)
        new = ops.concatenate([k, v], 1)  # [T, 2 * kv_heads, head_dim]
        self.new_kv.append(ops.reshape(new, (1, -1, 2 * kv_heads, head_dim)))
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
        q = ops.reshape(
            ops.transpose(q, (0, 2, 1, 3, 4)), (0, kv_heads, -1, head_dim)
        )  # [B, heads, R * G, size]
        keys, values = (self._rows(slot, which, new, step) for which, new in enumerate((k, v)))
        scores = ops.cast(
            ops.product(q, keys, transposed=True), "float32"
        )  # [B, kv_heads, R * G, K + R]
        weights = ops.cast(ops.softmax(ops.binary("SUM", scores, step.mask)), self._dtype)
        attended = ops.reshape(
            ops.product(weights, values, transposed=False), (0, kv_heads, -1, group, head_dim)
        )
        return ops.reshape(
            ops.transpose(attended, (0, 2, 1, 3, 4)), (-1, kv_heads * group * head_dim)
        )

    def _rows(self, slot: int, which: int, new: Value, step: Step) -> Value:
        """Keys (0) or values (1) of a slot, cached and new: [B, kv_heads, K + R, head_dim]."""
        ops, kv_heads, head_dim = self._ops, self._config.num_key_value_heads, self._config.head_dim
        tiles = ops.binary("SUM", step.tiles, (2 * slot + which) * kv_heads)
        past = ops.cast(ops.gather(step.pool, tiles), self._dtype)
        past = ops.reshape(past, (0, kv_heads, -1, head_dim))
        new = ops.transpose(
            ops.reshape(new, (-1, -1, kv_heads, head_dim), sizes=step.kv_sizes), (0, 2, 1, 3)
        )
        return ops.concatenate([past, new], 2)

    def _mlp(self, x: Value, prefix: str, num_rows: Value) -> Value:
        """Gated by SiLU: float32 [n, hidden] -> float32 [n, hidden]."""
        ops, size = self._ops, self._config.intermediate_size
        both = self.product(self.norm(x, prefix + "mlp_norm"), prefix + "gate_up")
        gate, up = (
            ops.cast(ops.part(both, start, size, num_rows), "float32") for start in (0, size)
        )
        gated = ops.binary("PROD", ops.binary("PROD", gate, ops.sigmoid(gate)), up)
        if self._down_scale == 1:
            return self._linear(ops.cast(gated, self._dtype), prefix + "down")
        gated = ops.cast(ops.binary("PROD", gated, 1 / self._down_scale), self._dtype)
        return ops.binary("PROD", self._linear(gated, prefix + "down"), self._down_scale)

    def _linear(self, x: Value, name: str) -> Value:
        return self._ops.cast(self.product(x, name), "float32")

    def product(self, x: Value, name: str) -> Value:
        """[n, inputs] -> [n, outputs] in the engine's dtype.

        With a float8 weight, x is rounded to float8 first.
        """
        ops, weight = self._ops, self._weight(name)
        if weight.dtype == "float8_e4m3fn":
            scale = self._weight(name + INPUT_SCALE)
            x = ops.dequantize(ops.quantize(x, scale), scale, self._dtype)
            weight = ops.dequantize(weight, self._weight(name + WEIGHT_SCALE), self._dtype)
        return ops.product(x, weight, transposed=not self._transposed)

    def norm(self, x: Value, name: str) -> Value:
        """RMSNorm over the last axis: float32 [n, hidden] -> [n, hidden] in the engine's dtype."""
        return self._ops.cast(self._scaled(x, self._weight(name)), self._dtype)

    def _head_norm(self, x: Value, name: str) -> Value:
        """RMSNorm of every head: [T, n, head_dim] -> float32 of the same shape."""
        return self._scaled(self._ops.cast(x, "float32"), self._weight(name))

    def _scaled(self, x: Value, weight: Value) -> Value:
        ops = self._ops
        mean = ops.mean_last(ops.binary("PROD", x, x))
        root = ops.unary("SQRT", ops.binary("SUM", mean, self._config.rms_norm_eps))
        weight = ops.cast(
            ops.reshape(weight, (1,) * (len(x.shape) - 1) + (weight.shape[0],)), "float32"
        )
        return ops.binary("PROD", ops.binary("DIV", x, root), weight)

    def _rotate(self, x: Value, step: Step) -> Value:
        """NeoX: element i is rotated with element i + half; x float32 [T, n, head_dim]."""
        ops, half = self._ops, self._config.head_dim // 2
        first, second = (ops.part(x, start, half, step.num_rows) for start in (0, half))
        rotated = [
            ops.binary(
                "SUB", ops.binary("PROD", first, step.cos), ops.binary("PROD", second, step.sin)
            ),
            ops.binary(
                "SUM", ops.binary("PROD", second, step.cos), ops.binary("PROD", first, step.sin)
            ),
        ]
        return ops.concatenate(rotated, 2)
