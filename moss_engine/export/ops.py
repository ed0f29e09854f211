"""The layers of a TensorRT network as functions of typed values, the same for every release.

A `Value` carries the type and shape that it must have. Releases that type networks strongly follow
from the inputs; for older ones every layer is told its precision, which the build obeys. Sizes
known at run time only are -1; layers that need them take them from tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.runtime.tensorrt.library import Library
from moss_engine.runtime.tensorrt.tensors import TensorSpec

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Value:
    tensor: Any
    dtype: str
    shape: tuple[int, ...]


class Ops:
    """Adds layers to `network`. Constants' memory is kept until the network is built."""

    def __init__(self, library: Library, network: Any):
        self.library = library
        self._trt = library.module
        self._network = network
        self._kept: list[Any] = []
        self._sizes: dict[tuple[int, tuple[int, ...]], Value] = {}

    @property
    def size_dtype(self) -> str:
        """The type of sizes as tensors."""
        return "int64" if self.library.strongly_typed else "int32"

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
        if not self.library.strongly_typed:
            value.tensor.dtype = self.type_of(value.dtype)

    def constant(self, values: Any, dtype: str) -> Value:
        """From numbers: numpy array or list."""
        array = np.ascontiguousarray(values, dtype=np.dtype(dtype))
        self._kept.append(array)
        layer = self._network.add_constant(array.shape, self._trt.Weights(array))
        return self._typed(layer, dtype, array.shape)

    def weight(self, tensor: Tensor) -> Value:
        """From a tensor in CPU memory."""
        tensor = tensor.contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype in ("float32", "float16"):
            return self.constant(tensor.numpy(), dtype)  # the one form that every release has
        self._kept.append(tensor)
        weights = self._trt.Weights(self.type_of(dtype), tensor.data_ptr(), tensor.numel())
        return self._typed(
            self._network.add_constant(tuple(tensor.shape), weights), dtype, tuple(tensor.shape)
        )

    def scalar(self, value: float, like: Value) -> Value:
        """One number that can be combined with `like`."""
        shape = (1,) * len(like.shape)
        if like.dtype == "bfloat16":
            return self.weight(torch.full(shape, value, dtype=torch.bfloat16))
        return self.constant(np.full(shape, value), like.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        layer = self._network.add_cast(x.tensor, self.type_of(dtype))
        return self._typed(layer, dtype, x.shape, precise=False)

    def binary(self, operation: str, a: Value, b: Value | float) -> Value:
        """operation: SUM, SUB, PROD, DIV, LESS or EQUAL, broadcasting sizes of one."""
        if not isinstance(b, Value):
            b = self.scalar(b, a)
        assert a.dtype == b.dtype and len(a.shape) == len(b.shape), (operation, a, b)
        operation_type = getattr(self._trt.ElementWiseOperation, operation)
        layer = self._network.add_elementwise(a.tensor, b.tensor, operation_type)
        dtype = "bool" if operation in ("LESS", "EQUAL") else a.dtype
        return self._typed(layer, dtype, broadcast(a.shape, b.shape))

    def square_root(self, x: Value) -> Value:
        layer = self._network.add_unary(x.tensor, self._trt.UnaryOperation.SQRT)
        return self._typed(layer, x.dtype, x.shape)

    def sigmoid(self, x: Value) -> Value:
        layer = self._network.add_activation(x.tensor, self._trt.ActivationType.SIGMOID)
        return self._typed(layer, x.dtype, x.shape)

    def mean_last(self, x: Value) -> Value:
        """Over the last axis, which stays with size one."""
        axes = 1 << (len(x.shape) - 1)
        layer = self._network.add_reduce(x.tensor, self._trt.ReduceOperation.AVG, axes, True)
        return self._typed(layer, x.dtype, (*x.shape[:-1], 1))

    def softmax(self, x: Value) -> Value:
        layer = self._network.add_softmax(x.tensor)
        layer.axes = 1 << (len(x.shape) - 1)
        return self._typed(layer, x.dtype, x.shape)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        layer = self._network.add_select(condition.tensor, a.tensor, b.tensor)
        return self._typed(layer, a.dtype, broadcast(condition.shape, broadcast(a.shape, b.shape)))

    def product(self, a: Value, b: Value, *, transposed: bool) -> Value:
        """Matrix product over the last two axes; with `transposed`, b is [..., outputs, inputs]."""
        form = self._trt.MatrixOperation
        b_form = form.TRANSPOSE if transposed else form.NONE
        layer = self._network.add_matrix_multiply(a.tensor, form.NONE, b.tensor, b_form)
        size = b.shape[-2] if transposed else b.shape[-1]
        leading = broadcast(a.shape[:-2], b.shape[:-2])
        return self._typed(layer, a.dtype, (*leading, a.shape[-2], size))

    def quantize(self, x: Value, scale: Value) -> Value:
        """To float8: x / scale, rounded and cut off at the largest; scale [1] is a constant."""
        number = self.cast(self.reshape(scale, ()), x.dtype)
        float8 = self.type_of("float8_e4m3fn")
        layer = self._network.add_quantize(x.tensor, number.tensor, float8)
        return self._typed(layer, "float8_e4m3fn", x.shape)

    def dequantize(self, x: Value, scale: Value, dtype: str) -> Value:
        """float8 times scale."""
        number = self.cast(self.reshape(scale, ()), dtype)
        layer = self._network.add_dequantize(x.tensor, number.tensor, self.type_of(dtype))
        return self._typed(layer, dtype, x.shape)

    def gather(self, data: Value, indices: Value) -> Value:
        """data [n, ...] at indices [...] of its first axis."""
        layer = self._network.add_gather(data.tensor, indices.tensor, 0)
        return self._typed(layer, data.dtype, (*indices.shape, *data.shape[1:]), precise=False)

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        layer = self._network.add_concatenation([value.tensor for value in values])
        axis %= len(values[0].shape)
        layer.axis = axis
        sizes = [value.shape[axis] for value in values]
        shape = list(values[0].shape)
        shape[axis] = -1 if -1 in sizes else sum(sizes)
        return self._typed(layer, values[0].dtype, tuple(shape), precise=False)

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
        return self._typed(layer, x.dtype, shape, precise=False)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        layer = self._network.add_shuffle(x.tensor)
        layer.first_transpose = self._trt.Permutation(order)
        return self._typed(layer, x.dtype, tuple(x.shape[i] for i in order), precise=False)

    def part(self, x: Value, start: int, size: int, num_rows: Value) -> Value:
        """A slice of the last axis of x [rows, ..., n]; `num_rows` is a tensor."""
        shape = (*x.shape[:-1], size)
        starts = (0,) * (len(shape) - 1) + (start,)
        sizes = self._sizes_of(num_rows, shape[1:])
        layer = self._network.add_slice(x.tensor, starts, (1,) * len(shape), (1,) * len(shape))
        layer.set_input(2, sizes.tensor)
        return self._typed(layer, x.dtype, shape, precise=False)

    def shape_of(self, x: Value) -> Value:
        shape = self._network.add_shape(x.tensor).get_output(0)
        return Value(shape, self.size_dtype, (len(x.shape),))

    def num_rows(self, x: Value) -> Value:
        """The size of the first axis, as a tensor [1]."""
        return self.gather(self.shape_of(x), self.constant([0], "int32"))

    def _sizes_of(self, num_rows: Value, rest: tuple[int, ...]) -> Value:
        key = (id(num_rows.tensor), rest)
        if key not in self._sizes:
            self._sizes[key] = self.concatenate([num_rows, self.constant(rest, self.size_dtype)], 0)
        return self._sizes[key]

    def _typed(
        self, layer: Any, dtype: str, shape: tuple[int, ...], *, precise: bool = True
    ) -> Value:
        """The layer's output; `precise` where the layer computes rather than moves."""
        if not self.library.strongly_typed and dtype in _FLOATS:
            if precise:
                layer.precision = self.type_of(dtype)
            layer.set_output_type(0, self.type_of(dtype))
        return Value(layer.get_output(0), dtype, tuple(shape))


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of two broadcast shapes of equal rank; -1 is a size known at run time only."""
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
