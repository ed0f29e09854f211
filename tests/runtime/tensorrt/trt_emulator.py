"""A stand-in for the TensorRT package: networks are recorded layer by layer, and run in torch on
the CPU.

What it takes from the runtime is what TensorRT takes: a plan's bytes, shapes and addresses by name,
a profile. It reads inputs from those addresses and writes outputs to them, so that a wrong binding,
type or shape changes the logits.
"""

from __future__ import annotations

import ctypes
import io
import math
import pickle
from collections.abc import Sequence
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.runtime.tensorrt.trt_emulator_layers import run_layer

__version__ = "10.16.1.11"
RECORDED = "recorded network"


class _Type(Enum):
    FLOAT = "float32"
    HALF = "float16"
    BF16 = "bfloat16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    FP8 = "float8_e4m3fn"


float32, float16, bfloat16, int32, int64 = (
    _Type.FLOAT,
    _Type.HALF,
    _Type.BF16,
    _Type.INT32,
    _Type.INT64,
)
fp8 = _Type.FP8
bool = _Type.BOOL  # the name that the package has
ElementWiseOperation = Enum("ElementWiseOperation", "SUM SUB PROD DIV LESS EQUAL")
UnaryOperation = Enum("UnaryOperation", "SQRT")
ActivationType = Enum("ActivationType", "SIGMOID")
ReduceOperation = Enum("ReduceOperation", "AVG")
MatrixOperation = Enum("MatrixOperation", "NONE TRANSPOSE")
TensorIOMode = Enum("TensorIOMode", "INPUT OUTPUT")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
ExecutionContextAllocationStrategy = Enum(
    "ExecutionContextAllocationStrategy", "STATIC USER_MANAGED"
)
NetworkDefinitionCreationFlag = IntEnum(
    "NetworkDefinitionCreationFlag", "EXPLICIT_BATCH STRONGLY_TYPED", start=0
)
Permutation = tuple


class Logger:
    WARNING = 2

    def __init__(self, severity: int):
        self.severity = severity


class Weights:
    def __init__(self, values: Any, address: int = 0, count: int = 0):
        if isinstance(values, _Type):
            self.tensor = _read(address, values.value, (count,))
        else:
            self.tensor = torch.from_numpy(values).clone()


class _Value:
    """A tensor of the network."""

    def __init__(self, index: int):
        self.index = index
        self.name = ""

    def set_dimension_name(self, axis: int, name: str) -> None:
        """Sizes of one name are equal; nothing here depends on it."""


class Layer:
    def __init__(self, network: Network, operation: str, inputs: Sequence[_Value], **settings: Any):
        self.__dict__.update(settings)
        self.operation = operation
        self.inputs = {i: value.index for i, value in enumerate(inputs)}
        self.output = network.value()

    def get_output(self, index: int) -> _Value:
        assert index == 0
        return self.output

    def set_input(self, index: int, value: _Value) -> None:
        self.inputs[index] = value.index

    def settings(self) -> dict[str, Any]:
        known = {"operation", "inputs", "output"}
        return {name: value for name, value in self.__dict__.items() if name not in known}


class Network:
    layer_class = Layer
    size_dtype = "int64"

    def __init__(self) -> None:
        self.num_values = 0
        self.layers: list[Layer] = []
        self.inputs: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        self.outputs: list[_Value] = []

    def value(self) -> _Value:
        self.num_values += 1
        return _Value(self.num_values - 1)

    def _add(self, operation: str, inputs: Sequence[_Value], **settings: Any) -> Layer:
        self.layers.append(self.layer_class(self, operation, inputs, **settings))
        return self.layers[-1]

    def add_input(self, name: str, dtype: _Type, shape: tuple[int, ...]) -> _Value:
        value = self.value()
        self.inputs[name] = value.index, dtype.value, tuple(shape)
        return value

    def mark_output(self, value: _Value) -> None:
        self.outputs.append(value)

    def add_constant(self, shape: tuple[int, ...], weights: Weights) -> Layer:
        return self._add("constant", [], values=weights.tensor.reshape(tuple(shape)))

    def add_cast(self, x: _Value, dtype: _Type) -> Layer:
        return self._add("cast", [x], dtype=dtype.value)

    def add_quantize(self, x: _Value, scale: _Value, dtype: _Type) -> Layer:
        assert dtype is fp8
        return self._add("quantize", [x, scale])

    def add_dequantize(self, x: _Value, scale: _Value, dtype: _Type) -> Layer:
        return self._add("dequantize", [x, scale], dtype=dtype.value)

    def add_elementwise(self, a: _Value, b: _Value, operation: Enum) -> Layer:
        return self._add(operation.name.lower(), [a, b])

    def add_unary(self, x: _Value, operation: Enum) -> Layer:
        return self._add(operation.name.lower(), [x])

    def add_activation(self, x: _Value, operation: Enum) -> Layer:
        return self._add(operation.name.lower(), [x])

    def add_reduce(self, x: _Value, operation: Enum, axes: int, keep_dims: object) -> Layer:
        assert keep_dims is True
        return self._add(operation.name.lower(), [x], axes=axes)

    def add_softmax(self, x: _Value) -> Layer:
        return self._add("softmax", [x], axes=0)

    def add_select(self, condition: _Value, a: _Value, b: _Value) -> Layer:
        return self._add("select", [condition, a, b])

    def add_matrix_multiply(self, a: _Value, a_form: Enum, b: _Value, b_form: Enum) -> Layer:
        assert a_form is MatrixOperation.NONE
        return self._add("product", [a, b], transposed=b_form is MatrixOperation.TRANSPOSE)

    def add_gather(self, data: _Value, indices: _Value, axis: int) -> Layer:
        return self._add("gather", [data, indices], axis=axis)

    def add_concatenation(self, values: Sequence[_Value]) -> Layer:
        return self._add("concatenation", values, axis=0)

    def add_shuffle(self, x: _Value) -> Layer:
        return self._add("shuffle", [x], first_transpose=None, reshape_dims=None)

    def add_slice(
        self, x: _Value, start: Sequence[int], shape: Sequence[int], stride: Sequence[int]
    ) -> Layer:
        assert set(stride) == {1}
        return self._add("slice", [x], start=tuple(start))

    def add_shape(self, x: _Value) -> Layer:
        return self._add("shape", [x], dtype=self.size_dtype)


class _Profile(dict):
    def set_shape(
        self, name: str, low: tuple[int, ...], usual: tuple[int, ...], high: tuple[int, ...]
    ) -> None:
        assert all(a <= b <= c for a, b, c in zip(low, usual, high)), (
            f"{name}: sizes of a profile do not ascend"
        )
        self[name] = [tuple(low), tuple(usual), tuple(high)]


BuilderFlag = Enum("BuilderFlag", "TF32")


class Settings(SimpleNamespace):
    def clear_flag(self, flag: Enum) -> None:
        self.flags.discard(flag)

    def add_optimization_profile(self, profile: _Profile) -> None:
        self.profiles.append(profile)


class _Memory(bytes):
    @property
    def nbytes(self) -> int:
        return len(self)


class Builder:
    def __init__(self, logger: Logger):
        assert isinstance(logger, Logger)

    def create_network(self, flags: int) -> Network:
        assert flags == 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return Network()

    def create_builder_config(self) -> Settings:
        return Settings(profiles=[], flags={BuilderFlag.TF32})

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: Network, settings: Settings) -> _Memory:
        dynamic = {name for name, (_, _, shape) in network.inputs.items() if -1 in shape}
        assert all(profile.keys() == dynamic for profile in settings.profiles), (
            "a profile lacks an input"
        )
        layers = [
            (layer.operation, layer.inputs, layer.output.index, layer.settings())
            for layer in network.layers
        ]
        plan = io.BytesIO()
        outputs = {value.name: value.index for value in network.outputs}
        torch.save((RECORDED, network.inputs, outputs, layers, settings.profiles), plan)
        return _Memory(plan.getvalue())


class Runtime:
    def __init__(self, logger: Logger):
        assert isinstance(logger, Logger)

    def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
        try:
            kind, *parts = torch.load(io.BytesIO(plan), weights_only=False)
        except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError):
            return None
        return self.make_engine(*parts) if kind == RECORDED else None

    @staticmethod
    def make_engine(*parts: Any) -> Engine:
        return Engine(*parts)


class Engine:
    def __init__(self, inputs: dict, outputs: dict, layers: list, profiles: list):
        self.inputs, self.outputs, self.layers, self.profiles = inputs, outputs, layers, profiles
        self.names = [*inputs, *outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(profiles)
        self.device_memory_size_v2 = 1024
        self.output_types = self._output_types()

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> _Type:
        return _Type(self.inputs[name][1] if name in self.inputs else self.output_types[name][0])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.inputs[name][2] if name in self.inputs else self.output_types[name][1]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return self.profiles[profile].get(name) or [self.inputs[name][2]] * 3

    def create_execution_context(self, strategy: Enum) -> Context:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return Context(self)

    def run(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        values = {self.inputs[name][0]: tensor for name, tensor in inputs.items()}
        for operation, sources, target, settings in self.layers:
            taken = [values[index] for _, index in sorted(sources.items())]
            values[target] = run_layer(operation, taken, sorted(sources), settings)
            self.check_type(operation, settings, values[target])
        return {name: values[index] for name, index in self.outputs.items()}

    @staticmethod
    def check_type(operation: str, settings: dict[str, Any], made: Tensor) -> None:
        assert "precision" not in settings, (
            f"{operation}: a strongly typed network has no precisions to be set"
        )

    def _output_types(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """From runs with zeros at several sizes: a size that changes is -1."""
        found: dict[str, list[Tensor]] = {}
        for profile in range(len(self.profiles)):
            for which in (0, 1):
                made = {
                    name: torch.zeros(
                        self.get_tensor_profile_shape(name, profile)[which],
                        dtype=getattr(torch, dtype),
                    )
                    for name, (_, dtype, _) in self.inputs.items()
                }
                for name, tensor in self.run(made).items():
                    found.setdefault(name, []).append(tensor)
        return {
            name: (
                str(runs[0].dtype).removeprefix("torch."),
                tuple(
                    sizes[0] if len(set(sizes)) == 1 else -1
                    for sizes in zip(*(run.shape for run in runs))
                ),
            )
            for name, runs in found.items()
        }


class Context:
    def __init__(self, engine: Engine):
        self.engine = engine
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> object:
        self.profile = profile
        return 0 <= profile < self.engine.num_optimization_profiles

    def set_device_memory(self, address: int, size: int) -> None:
        assert address and size >= self.engine.device_memory_size_v2
        self.memory = address

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> object:
        assert self.profile is not None, "no profile was chosen"
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        if len(shape) != len(low) or not all(
            a <= size <= b for a, size, b in zip(low, shape, high)
        ):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> object:
        if name not in self.engine.names or not address:
            return False
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> object:
        missing = [name for name in self.engine.names if name not in self.addresses]
        if missing or not self.memory:
            return False
        inputs = {}
        for name, (_, dtype, shape) in self.engine.inputs.items():
            if -1 in shape and name not in self.shapes:
                return False
            inputs[name] = _read(self.addresses[name], dtype, self.shapes.get(name, shape))
        for name, tensor in self.engine.run(inputs).items():
            flat = tensor.contiguous()
            ctypes.memmove(self.addresses[name], flat.data_ptr(), flat.nbytes)
        return True


def _read(address: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
    kind = getattr(torch, dtype)
    count = math.prod(shape)
    memory = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind, count=count).clone().reshape(shape)
