"""The stand-in of `tests.trt_emulator` as an older release: types are wishes, so every layer must
be told its own.

Memory of contexts is an attribute, sizes are int32, and an engine gives the first profile's sizes
of its outputs.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.runtime.tensorrt import trt_emulator as new
from tests.runtime.tensorrt.trt_emulator import (  # noqa: F401
    ActivationType,
    ElementWiseOperation,
    Logger,
    MatrixOperation,
    Permutation,
    ReduceOperation,
    TensorIOMode,
    TensorLocation,
    UnaryOperation,
    bool,
    float16,
    float32,
    int32,
)

__version__ = "8.6.0"
NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH", start=0)
BuilderFlag = Enum("BuilderFlag", "FP16 OBEY_PRECISION_CONSTRAINTS TF32")


class Weights(new.Weights):
    """Made of an array only."""

    def __init__(self, values: np.ndarray):
        assert isinstance(values, np.ndarray)
        super().__init__(values)


class _Layer(new.Layer):
    def set_output_type(self, index: int, dtype: Enum) -> None:
        assert index == 0
        self.output_type = dtype.value


class _Network(new.Network):
    layer_class = _Layer
    size_dtype = "int32"


class _Settings(new.Settings):
    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def set_tactic_sources(self, sources: int) -> None:
        self.tactic_sources = sources


class Builder(new.Builder):
    def create_network(self, flags: int) -> _Network:
        assert flags == 1 << int(NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
        return _Network()

    def create_builder_config(self) -> _Settings:
        return _Settings(profiles=[], flags={BuilderFlag.TF32})

    def build_serialized_network(self, network: _Network, settings: _Settings) -> Any:
        assert (
            BuilderFlag.OBEY_PRECISION_CONSTRAINTS in settings.flags
            and settings.tactic_sources == 0
        )
        halves = any(getattr(layer, "output_type", None) == "float16" for layer in network.layers)
        assert halves == (BuilderFlag.FP16 in settings.flags)
        converted = [name for name, (_, dtype, _) in network.inputs.items() if dtype == "float16"]
        assert not converted, f"{converted} would be converted in every step"
        return super().build_serialized_network(network, settings)


class Runtime(new.Runtime):
    @staticmethod
    def make_engine(*parts: Any) -> _Engine:
        return _Engine(*parts)


class _Engine(new.Engine):
    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.device_memory_size = self.device_memory_size_v2
        del self.device_memory_size_v2

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self.inputs:
            shapes = {
                tuple(shape)
                for i in range(self.num_optimization_profiles)
                for shape in self.get_tensor_profile_shape(name, i)
            }
            return shapes.pop() if len(shapes) == 1 else super().get_tensor_shape(name)
        sizes = {
            name: torch.zeros(
                self.get_tensor_profile_shape(name, 0)[0], dtype=getattr(torch, dtype)
            )
            for name, (_, dtype, _) in self.inputs.items()
        }
        return tuple(self.run(sizes)[name].shape)

    def create_execution_context_without_device_memory(self) -> _Context:
        return _Context(self)

    @staticmethod
    def check_type(operation: str, settings: dict[str, Any], made: Tensor) -> None:
        """TensorRT could compute this layer in another type, unless it was told not to."""
        if made.is_floating_point():
            dtype = str(made.dtype).removeprefix("torch.")
            assert settings.get("output_type") == dtype, (
                f"{operation} has output type {settings.get('output_type')}"
            )
            assert settings.get("precision", made.dtype) in (made.dtype, new._Type(dtype)), (
                operation
            )


class _Context(new.Context):
    set_device_memory = property()  # it is not there

    @property
    def device_memory(self) -> int:
        return self.memory

    @device_memory.setter
    def device_memory(self, address: int) -> None:
        self.memory = address
