"""The network as TensorRT layers, for one step.

`Ops` makes the layers. Each takes and gives a `Value`, which carries its type and shape, because
the network is strongly typed. A size that is known at run time only is -1; layers that need it take
it from a tensor.

The mathematics is that of `models.network`. Norms, rotation, softmax and the residual stream are
float32; products have the engine's dtype. The attention can be exchanged: `PagedAttention`, below,
reads the pool of cached rows; TensorRT-LLM has a plugin instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE
from moss_engine.runtime.tensorrt.engine import Library
from moss_engine.runtime.tensorrt.tensors import (
    AUDIO_HIDDEN,
    AUDIO_LOGITS,
    HIDDEN,
    LAYERED,
    LOGITS,
    NEW_KV,
    TEXT_HIDDEN,
    EngineTensors,
    TensorSpec,
)

SIZE_DTYPE = "int64"
"""The type of sizes as tensors."""


@dataclass(frozen=True)
class Value:
    tensor: Any
    dtype: str
    shape: tuple[int, ...]


def _output(layer: Any, dtype: str, shape: tuple[int, ...]) -> Value:
    return Value(layer.get_output(0), dtype, tuple(shape))


class Ops:
    """Adds layers to `network`. Constants' memory is kept until the network is built."""

    def __init__(self, library: Library, network: Any):
        self._trt = library.module
        self._network = network
        self._kept: list[Any] = []
        self._sizes: dict[tuple[int, tuple[int, ...]], Value] = {}

    def type_of(self, dtype: str) -> Any:
        return getattr(self._trt, "fp8" if dtype == "float8_e4m3fn" else dtype)

    def input(self, name: str, spec: TensorSpec) -> Value:
        tensor = self._network.add_input(name, self.type_of(spec.dtype), spec.shape)
        for axis, size in enumerate(spec.sizes):
            if size:
                tensor.set_dimension_name(axis, size)
        return Value(tensor, spec.dtype, spec.shape)

    def output(self, value: Value, name: str) -> None:
        """Mark the value as an output, of its own type."""
        value.tensor.name = name
        self._network.mark_output(value.tensor)

    def constant(self, values: Any, dtype: str) -> Value:
        """From numbers: numpy array or list."""
        array = np.ascontiguousarray(values, dtype=np.dtype(dtype))
        self._kept.append(array)
        layer = self._network.add_constant(array.shape, self._trt.Weights(array))
        return _output(layer, dtype, array.shape)

    def weight(self, tensor: Tensor) -> Value:
        """From a tensor in CPU memory."""
        tensor = tensor.contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "float32":
            return self.constant(tensor.numpy(), dtype)
        self._kept.append(tensor)
        weights = self._trt.Weights(self.type_of(dtype), tensor.data_ptr(), tensor.numel())
        return _output(
            self._network.add_constant(tuple(tensor.shape), weights), dtype, tuple(tensor.shape)
        )

    def scalar(self, value: float, like: Value) -> Value:
        """One number, of the type and rank of `like`."""
        shape = (1,) * len(like.shape)
        if like.dtype == "bfloat16":
            return self.weight(torch.full(shape, value, dtype=torch.bfloat16))
        return self.constant(np.full(shape, value), like.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        layer = self._network.add_cast(x.tensor, self.type_of(dtype))
        return _output(layer, dtype, x.shape)

    def binary(self, operation: str, a: Value, b: Value | float) -> Value:
        """operation: SUM, SUB, PROD, DIV, LESS or EQUAL, broadcasting sizes of one."""
        if not isinstance(b, Value):
            b = self.scalar(b, a)
        assert a.dtype == b.dtype and len(a.shape) == len(b.shape), (operation, a, b)
        operation_type = getattr(self._trt.ElementWiseOperation, operation)
        layer = self._network.add_elementwise(a.tensor, b.tensor, operation_type)
        dtype = "bool" if operation in ("LESS", "EQUAL") else a.dtype
        return _output(layer, dtype, broadcast(a.shape, b.shape))

    def square_root(self, x: Value) -> Value:
        layer = self._network.add_unary(x.tensor, self._trt.UnaryOperation.SQRT)
        return _output(layer, x.dtype, x.shape)

    def sigmoid(self, x: Value) -> Value:
        layer = self._network.add_activation(x.tensor, self._trt.ActivationType.SIGMOID)
        return _output(layer, x.dtype, x.shape)

    def mean_last(self, x: Value) -> Value:
        """Over the last axis, which stays with size one."""
        axes = 1 << (len(x.shape) - 1)
        layer = self._network.add_reduce(x.tensor, self._trt.ReduceOperation.AVG, axes, True)
        return _output(layer, x.dtype, (*x.shape[:-1], 1))

    def softmax(self, x: Value) -> Value:
        layer = self._network.add_softmax(x.tensor)
        layer.axes = 1 << (len(x.shape) - 1)
        return _output(layer, x.dtype, x.shape)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        layer = self._network.add_select(condition.tensor, a.tensor, b.tensor)
        return _output(layer, a.dtype, broadcast(condition.shape, broadcast(a.shape, b.shape)))

    def product(self, a: Value, b: Value, *, transposed: bool) -> Value:
        """Matrix product over the last two axes; with `transposed`, b is [..., outputs, inputs]."""
        form = self._trt.MatrixOperation
        b_form = form.TRANSPOSE if transposed else form.NONE
        layer = self._network.add_matrix_multiply(a.tensor, form.NONE, b.tensor, b_form)
        size = b.shape[-2] if transposed else b.shape[-1]
        leading = broadcast(a.shape[:-2], b.shape[:-2])
        return _output(layer, a.dtype, (*leading, a.shape[-2], size))

    def quantize(self, x: Value, scale: Value) -> Value:
        """To float8: x / scale, rounded and cut off at the largest; scale [1] is a constant."""
        number = self.cast(self.reshape(scale, ()), x.dtype)
        float8 = self.type_of("float8_e4m3fn")
        layer = self._network.add_quantize(x.tensor, number.tensor, float8)
        return _output(layer, "float8_e4m3fn", x.shape)

    def dequantize(self, x: Value, scale: Value, dtype: str) -> Value:
        """float8 times scale."""
        number = self.cast(self.reshape(scale, ()), dtype)
        layer = self._network.add_dequantize(x.tensor, number.tensor, self.type_of(dtype))
        return _output(layer, dtype, x.shape)

    def gather(self, data: Value, indices: Value) -> Value:
        """data [n, ...] at indices [...] of its first axis."""
        layer = self._network.add_gather(data.tensor, indices.tensor, 0)
        return _output(layer, data.dtype, (*indices.shape, *data.shape[1:]))

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        layer = self._network.add_concatenation([value.tensor for value in values])
        axis %= len(values[0].shape)
        layer.axis = axis
        sizes = [value.shape[axis] for value in values]
        shape = list(values[0].shape)
        shape[axis] = -1 if -1 in sizes else sum(sizes)
        return _output(layer, values[0].dtype, tuple(shape))

    def reshape(self, x: Value, shape: tuple[int, ...], *, sizes: Value | None = None) -> Value:
        """Reshape; at most one size of `shape` is -1, and 0 keeps the size in its place.

        More unknown sizes come from the tensor `sizes`, which `shape` only describes.
        """
        layer = self._network.add_shuffle(x.tensor)
        if sizes is None:
            layer.reshape_dims = shape
        else:
            layer.set_input(1, sizes.tensor)
        shape = tuple(x.shape[i] if size == 0 else size for i, size in enumerate(shape))
        return _output(layer, x.dtype, shape)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        layer = self._network.add_shuffle(x.tensor)
        layer.first_transpose = self._trt.Permutation(order)
        return _output(layer, x.dtype, tuple(x.shape[i] for i in order))

    def part(self, x: Value, start: int, size: int, num_rows: Value) -> Value:
        """A slice of the last axis of x [rows, ..., n]; `num_rows` is a tensor."""
        shape = (*x.shape[:-1], size)
        starts = (0,) * (len(shape) - 1) + (start,)
        sizes = self._sizes_of(num_rows, shape[1:])
        layer = self._network.add_slice(x.tensor, starts, (1,) * len(shape), (1,) * len(shape))
        layer.set_input(2, sizes.tensor)
        return _output(layer, x.dtype, shape)

    def shape_of(self, x: Value) -> Value:
        shape = self._network.add_shape(x.tensor).get_output(0)
        return Value(shape, SIZE_DTYPE, (len(x.shape),))

    def num_rows(self, x: Value) -> Value:
        """The size of the first axis, as a tensor [1]."""
        return self.gather(self.shape_of(x), self.constant([0], "int32"))

    def _sizes_of(self, num_rows: Value, rest: tuple[int, ...]) -> Value:
        key = (id(num_rows.tensor), rest)
        if key not in self._sizes:
            self._sizes[key] = self.concatenate([num_rows, self.constant(rest, SIZE_DTYPE)], 0)
        return self._sizes[key]


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of two broadcast shapes of equal rank; -1 is a size known at run time only."""
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


MASKED_SCORE = -40_000.0
"""What is added to the scores of masked rows, which makes them zero after softmax."""
_UNSEEN = 1 << 30
Weight = Callable[[str], Value]
"""A weight by its name: an input of the engine or a constant."""


class Attention(Protocol):
    """The attention of one step's layers."""

    def attend(self, slot: int, q: Value, k: Value, v: Value) -> Value:
        """q float32 [T, heads, head_dim] and k float32 [T, kv_heads, head_dim], normed but not
        rotated, v [T, kv_heads, head_dim] -> [T, heads * head_dim]."""
        ...


class Network:
    """Defines the network, or a part of it, with `ops`.

    `weight` gives its parameters, which have `dtype`.
    """

    def __init__(self, ops: Ops, tensors: EngineTensors, weight: Weight):
        self._ops = ops
        self._config = tensors.config
        self._dtype = tensors.io_dtype
        self._weight = weight

    def define(self, inputs: Mapping[str, Value], attention: Attention) -> None:
        """All layers, from ids to the logits of the selected rows."""
        ids = self._ops.reshape(inputs["ids"], (-1, 2))  # [T, 2]
        num_rows = self._ops.num_rows(ids)
        x = self._embed(ids, num_rows)
        slot = 0
        for slot in range(self._config.num_shared_layers):
            x = self._layer(slot, x, num_rows, attention)
        for branch, name, size in self._heads():
            branch_x = x
            for index in range(self._config.num_modality_layers):
                slot += 1
                is_last = index == self._config.num_modality_layers - 1
                select = inputs["select"] if is_last else None
                branch_x = self._layer(slot, branch_x, num_rows, attention, select)
            self._logits(branch_x, branch, name, size)

    def define_embed(self, inputs: Mapping[str, Value]) -> None:
        """Define the part that turns ids into hidden rows."""
        ops = self._ops
        ids = ops.reshape(inputs["ids"], (-1, 2))
        ops.output(self._embed(ids, ops.num_rows(ids)), HIDDEN)

    def define_layers(self, inputs: Mapping[str, Value], count: int, attention: Attention) -> None:
        """Define a part of `count` layers, which use slots 0, 1, ... of the pool they are given."""
        x = self._ops.reshape(inputs[HIDDEN], (-1, self._config.hidden_size))
        num_rows = self._ops.num_rows(x)
        for slot in range(count):
            x = self._layer(slot, x, num_rows, attention)
        self._ops.output(x, LAYERED)

    def define_heads(self, inputs: Mapping[str, Value]) -> None:
        """Define the part that turns both branches' hidden rows into logits."""
        for head, hidden in zip(self._heads(), (TEXT_HIDDEN, AUDIO_HIDDEN), strict=True):
            self._logits(self._ops.gather(inputs[hidden], inputs["select"]), *head)

    def _heads(self) -> tuple[tuple[str, str, int], ...]:
        return (
            ("text", LOGITS, self._config.vocab_size),
            ("audio", AUDIO_LOGITS, self._config.audio_vocab_size),
        )

    def _logits(self, x: Value, branch: str, name: str, size: int) -> None:
        """Make the logits of the wanted hidden rows an output."""
        logits = self._product(self._norm(x, f"{branch}.norm"), f"{branch}.head")
        assert logits.shape[-1] == size
        self._ops.output(self._ops.cast(logits, "float32"), name)

    def _embed(self, ids: Value, num_rows: Value) -> Value:
        """Select, never sum: [T, 2] -> float32 [T, hidden]."""
        ops = self._ops
        text, audio = (ops.part(ids, channel, 1, num_rows) for channel in range(2))  # [T, 1]
        is_audio = ops.binary("EQUAL", text, self._config.modality_pad_token_id)
        zero = ops.scalar(0, audio)
        audio = ops.select(is_audio, audio, zero)  # the channel that does not count holds anything
        audio_x, text_x = (
            ops.gather(self._weight(name), ops.reshape(index, (-1,)))
            for name, index in (("embed.audio", audio), ("embed.text", text))
        )
        return ops.cast(ops.select(is_audio, audio_x, text_x), "float32")

    def _layer(
        self,
        slot: int,
        x: Value,
        num_rows: Value,
        attention: Attention,
        select: Value | None = None,
    ) -> Value:
        """x: float32 [T, hidden]. With `select`, only these rows go on behind the attention."""
        ops, config, prefix = self._ops, self._config, f"layers.{slot}."
        head_dim = config.head_dim
        q_size = config.num_attention_heads * head_dim
        kv_size = config.num_key_value_heads * head_dim
        qkv = self._product(self._norm(x, prefix + "input_norm"), prefix + "qkv")
        q, k, v = (
            ops.reshape(ops.part(qkv, start, size, num_rows), (0, size // head_dim, head_dim))
            for start, size in ((0, q_size), (q_size, kv_size), (q_size + kv_size, kv_size))
        )
        q, k = (
            self._scaled(ops.cast(heads, "float32"), self._weight(prefix + name))
            for heads, name in ((q, "q_norm"), (k, "k_norm"))
        )
        attended = attention.attend(slot, q, k, v)
        if select is not None:
            x, attended = ops.gather(x, select), ops.gather(attended, select)
            num_rows = ops.num_rows(select)
        x = ops.binary("SUM", x, ops.cast(self._product(attended, prefix + "o"), "float32"))
        return ops.binary("SUM", x, self._mlp(x, prefix, num_rows))

    def _mlp(self, x: Value, prefix: str, num_rows: Value) -> Value:
        """Gated by SiLU: float32 [n, hidden] -> float32 [n, hidden]."""
        ops, size = self._ops, self._config.intermediate_size
        both = self._product(self._norm(x, prefix + "mlp_norm"), prefix + "gate_up")
        gate, up = (
            ops.cast(ops.part(both, start, size, num_rows), "float32") for start in (0, size)
        )
        gated = ops.binary("PROD", ops.binary("PROD", gate, ops.sigmoid(gate)), up)
        return ops.cast(self._product(ops.cast(gated, self._dtype), prefix + "down"), "float32")

    def _product(self, x: Value, name: str) -> Value:
        """[n, inputs] -> [n, outputs] in the engine's dtype. With a float8 weight, x is rounded to
        float8 first."""
        ops, weight = self._ops, self._weight(name)
        if weight.dtype == "float8_e4m3fn":
            scale = self._weight(name + INPUT_SCALE)
            x = ops.dequantize(ops.quantize(x, scale), scale, self._dtype)
            weight = ops.dequantize(weight, self._weight(name + WEIGHT_SCALE), self._dtype)
        return ops.product(x, weight, transposed=True)

    def _norm(self, x: Value, name: str) -> Value:
        """RMSNorm over the last axis: float32 [n, hidden] -> [n, hidden] in the engine's dtype."""
        return self._ops.cast(self._scaled(x, self._weight(name)), self._dtype)

    def _scaled(self, x: Value, weight: Value) -> Value:
        ops = self._ops
        mean = ops.mean_last(ops.binary("PROD", x, x))
        root = ops.square_root(ops.binary("SUM", mean, self._config.rms_norm_eps))
        weight = ops.cast(
            ops.reshape(weight, (1,) * (len(x.shape) - 1) + (weight.shape[0],)), "float32"
        )
        return ops.binary("PROD", ops.binary("DIV", x, root), weight)


class PagedAttention:
    """Attention over cached rows, gathered from the pool by block tables, and the step's own. The
    pool is only read: keys and values of the new rows are an output, which the runtime writes into
    the pool after the step.
    """

    def __init__(
        self,
        ops: Ops,
        tensors: EngineTensors,
        inputs: Mapping[str, Value],
        rotary: Value,
        sized: Value,
    ):
        """The first two sizes of `sized` are B and R."""
        self._ops = ops
        self._config = config = tensors.config
        self._dtype = tensors.io_dtype
        self._pool = inputs["kv_pool"]
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        cached = ops.reshape(inputs["cached"], (-1, 1))
        row_index = ops.reshape(inputs["row_index"], (1, -1))
        positions = ops.reshape(ops.binary("SUM", cached, row_index), (-1,))  # [T]
        self._num_rows = ops.num_rows(positions)
        angles, half = ops.gather(rotary, positions), head_dim // 2  # [T, head_dim]
        self._cos, self._sin = (
            ops.reshape(ops.part(angles, start, half, self._num_rows), (0, 1, half))
            for start in (0, half)
        )
        sizes = ops.gather(ops.shape_of(sized), ops.constant([0, 1], "int32"))
        group = config.num_attention_heads // kv_heads
        # [B, R, kv_heads, heads of each, head_dim] and [B, R, kv_heads, head_dim]
        self._q_sizes, self._kv_sizes = (
            ops.concatenate([sizes, ops.constant(rest, SIZE_DTYPE)], 0)
            for rest in ([kv_heads, group, head_dim], [kv_heads, head_dim])
        )
        self._mask = self._causal_mask(inputs["past_index"], cached, row_index)
        self._tiles = self._first_tiles(inputs["tables"])
        self._new_kv: list[Value] = []

    def attend(self, slot: int, q: Value, k: Value, v: Value) -> Value:
        """See `Attention`."""
        ops, config = self._ops, self._config
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        group = config.num_attention_heads // kv_heads
        q = ops.cast(ops.binary("PROD", self._rotate(q), head_dim**-0.5), self._dtype)
        k = ops.cast(self._rotate(k), self._dtype)
        new = ops.concatenate([k, v], 1)  # [T, 2 * kv_heads, head_dim]
        self._new_kv.append(ops.reshape(new, (1, -1, 2 * kv_heads, head_dim)))
        q = ops.reshape(q, (-1, -1, kv_heads, group, head_dim), sizes=self._q_sizes)
        q = ops.transpose(q, (0, 2, 1, 3, 4))
        q = ops.reshape(q, (0, kv_heads, -1, head_dim))  # [B, kv_heads, R * G, head_dim]
        keys, values = (self._rows(slot, which, new) for which, new in enumerate((k, v)))
        scores = ops.product(q, keys, transposed=True)
        scores = ops.binary("SUM", ops.cast(scores, "float32"), self._mask)
        weights = ops.cast(ops.softmax(scores), self._dtype)  # [B, kv_heads, R * G, K + R]
        attended = ops.product(weights, values, transposed=False)
        attended = ops.reshape(attended, (0, kv_heads, -1, group, head_dim))
        attended = ops.transpose(attended, (0, 2, 1, 3, 4))
        return ops.reshape(attended, (-1, kv_heads * group * head_dim))

    def output_new_kv(self) -> None:
        """Make the keys and values of all layers so far an output."""
        self._ops.output(self._ops.concatenate(self._new_kv, 0), NEW_KV)

    def _rows(self, slot: int, which: int, new: Value) -> Value:
        """Keys (0) or values (1) of a slot, cached and new: [B, kv_heads, K + R, head_dim]."""
        ops, kv_heads, head_dim = self._ops, self._config.num_key_value_heads, self._config.head_dim
        tiles = ops.binary("SUM", self._tiles, (2 * slot + which) * kv_heads)
        past = ops.cast(ops.gather(self._pool, tiles), self._dtype)
        past = ops.reshape(past, (0, kv_heads, -1, head_dim))
        new = ops.reshape(new, (-1, -1, kv_heads, head_dim), sizes=self._kv_sizes)
        return ops.concatenate([past, ops.transpose(new, (0, 2, 1, 3))], 2)

    def _rotate(self, x: Value) -> Value:
        """NeoX: element i is rotated with element i + half; x float32 [T, n, head_dim]."""
        ops, half = self._ops, self._config.head_dim // 2
        first, second = (ops.part(x, start, half, self._num_rows) for start in (0, half))
        products = [
            (operation, ops.binary("PROD", one, self._cos), ops.binary("PROD", other, self._sin))
            for operation, one, other in (("SUB", first, second), ("SUM", second, first))
        ]
        return ops.concatenate([ops.binary(*product) for product in products], 2)

    def _causal_mask(self, past_index: Value, cached: Value, row_index: Value) -> Value:
        """[B, 1, R * G, K + R], added to scores: cached rows are visible to all, new rows to
        themselves and later ones."""
        ops, group = self._ops, self._config.num_attention_heads // self._config.num_key_value_heads
        past = ops.select(
            ops.binary("LESS", ops.reshape(past_index, (1, -1)), cached),
            ops.scalar(0, cached),
            ops.scalar(_UNSEEN, cached),
        )
        new = ops.binary("SUM", row_index, ops.binary("PROD", cached, 0))  # [B, R]
        first_to_see = ops.reshape(ops.concatenate([past, new], 1), (0, 1, 1, -1))
        row = ops.binary(
            "SUM", ops.reshape(row_index, (-1, 1)), ops.constant(np.ones((1, group)), "int32")
        )
        seen = ops.binary("LESS", first_to_see, ops.reshape(row, (1, 1, -1, 1)))
        nothing = ops.constant(np.zeros((1, 1, 1, 1)), "float32")
        return ops.select(seen, nothing, ops.scalar(MASKED_SCORE, nothing))

    def _first_tiles(self, tables: Value) -> Value:
        """A block's tiles of slot 0's keys: [B, kv_heads, M]."""
        ops, kv_heads = self._ops, self._config.num_key_value_heads
        first = ops.binary("PROD", tables, 2 * kv_heads * self._config.num_layers)  # [B, M]
        heads = ops.constant(np.arange(kv_heads).reshape(1, -1, 1), "int32")
        return ops.binary("SUM", ops.reshape(first, (0, 1, -1)), heads)
