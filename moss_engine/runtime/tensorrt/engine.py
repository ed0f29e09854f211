"""An opened TensorRT engine: its tensors compared with what is known, and one context for every
profile.

No call of the library is trusted: whatever returns a success flag is checked, and so is the type
and shape of every tensor before its address is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError, EngineFaultError, EngineFileError
from moss_engine.runtime.tensorrt.library import Library
from moss_engine.runtime.tensorrt.tensors import ALIGNMENT, TensorSpec

_TORCH_NAMES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "INT32": "int32",
    "INT64": "int64",
}
_AGAIN = "build the engine again with `python -m scripts.build_engine`."


@dataclass(frozen=True)
class EngineTensor:
    """A tensor that an engine takes or gives; `dtype` by torch's name where there is one, -1 for a
    size left open."""

    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    location: str


Check = Callable[[Mapping[str, EngineTensor]], None]
"""Raises EngineFileError unless an engine's tensors are what a runtime can give and take."""


def check_tensors(inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> Check:
    """A check for exactly these tensors."""

    def check(tensors: Mapping[str, EngineTensor]) -> None:
        for what, known in (("input", inputs), ("output", outputs)):
            found = {
                name for name, tensor in tensors.items() if tensor.is_input == (what == "input")
            }
            for name in sorted(known.keys() - found):
                raise EngineFileError(
                    f"The engine lacks the {what} {name!r} that this program knows; {_AGAIN}"
                )
            for name in sorted(found - known.keys()):
                raise EngineFileError(f"The engine has an unknown {what} {name!r}; {_AGAIN}")
            for name, spec in known.items():
                _compare(name, "type", tensors[name].dtype, spec.dtype)
                _compare(name, "shape", _as_open(tensors[name].shape, spec.shape), spec.shape)
                _compare(name, "location", tensors[name].location, "DEVICE")

    return check


def _as_open(found: tuple[int, ...], known: tuple[int, ...]) -> tuple[int, ...]:
    """`found` with -1 where `known` has it: some releases give the first profile's size there."""
    if len(found) != len(known):
        return found
    return tuple(
        -1 if open_size == -1 else size for size, open_size in zip(found, known, strict=True)
    )


def _compare(name: str, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise EngineFileError(
            f"The engine's tensor {name!r} has {what} {found} where {wanted} is needed; {_AGAIN}"
        )


def _address(tensor: Tensor) -> int:
    """On a CPU, where memory begins at smaller multiples, that within the memory."""
    return tensor.data_ptr() if tensor.is_cuda else int(tensor.storage_offset()) * tensor.itemsize


class TrtEngine:
    """`profile_shapes[i][name]` are the smallest, usual and largest shape that profile i takes of
    an input."""

    def __init__(
        self, library: Library, plan: Any, check: Check, device: torch.device, stream: int
    ):
        """Deserialise `plan` and check its tensors; raises EngineFileError for a plan that the
        library refuses."""
        self._trt = library.module
        self._runtime = self._trt.Runtime(library.logger())
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise EngineFileError(
                f"{library.backend} {library.version} refuses the plan (its messages are above); "
                f"{_AGAIN}"
            )
        self.tensors = self._describe()
        check(self.tensors)
        self.profile_shapes = [
            {
                name: self._profile_shape(name, i)
                for name in self.tensors
                if self.tensors[name].is_input
            }
            for i in range(self._engine.num_optimization_profiles)
        ]
        self._memory = torch.empty(
            max(1, self._memory_bytes()) + ALIGNMENT, dtype=torch.uint8, device=device
        )
        self._contexts = [
            self._make_context(i, stream) for i in range(self._engine.num_optimization_profiles)
        ]
        self._bound: list[dict[str, tuple[int, tuple[int, ...]]]] = [{} for _ in self._contexts]

    @property
    def memory_bytes(self) -> int:
        """Scratch memory, which all contexts share: steps never run at the same time."""
        return self._memory.numel()

    def bind(
        self,
        profile: int,
        tensors: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Give tensors to a profile's context, each read or written as `shapes` says, or whole."""
        context, bound = self._contexts[profile], self._bound[profile]
        for name, tensor in tensors.items():
            shape = tuple(shapes[name] if shapes and name in shapes else tensor.shape)
            if bound.get(name) == (tensor.data_ptr(), shape):
                continue
            assert tensor.is_contiguous() and _address(tensor) % ALIGNMENT == 0, (
                f"{name} lies at no address to be read"
            )
            known = self.tensors[name]
            if known.is_input and (-1 in known.shape or (shapes and name in shapes)):
                if name not in bound or bound[name][1] != shape:
                    self._require(
                        context.set_input_shape(name, shape), f"set_input_shape({name}, {shape})"
                    )
            else:
                assert not known.is_input or shape == known.shape, (
                    f"{name}: {shape} instead of {known.shape}"
                )
            self._require(
                context.set_tensor_address(name, tensor.data_ptr()), f"set_tensor_address({name})"
            )
            bound[name] = tensor.data_ptr(), shape

    def run(self, profile: int, stream: int) -> None:
        """Enqueue one step with what is bound."""
        self._require(self._contexts[profile].execute_async_v3(stream), "execute_async_v3")

    def close(self) -> None:
        self._contexts.clear()
        self._engine = self._runtime = None
        self._memory = torch.empty(0)

    def _describe(self) -> dict[str, EngineTensor]:
        engine, found = self._engine, {}
        for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
            dtype = str(engine.get_tensor_dtype(name).name)
            found[name] = EngineTensor(
                _TORCH_NAMES.get(dtype, dtype),
                tuple(engine.get_tensor_shape(name)),
                engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT,
                engine.get_tensor_location(name).name,
            )
        return found

    def _profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        """Smallest, usual and largest; a release that knows one size only no longer has a profile
        for it."""
        shape = self.tensors[name].shape
        if -1 not in shape:
            return [shape] * 3
        return [tuple(shape) for shape in self._engine.get_tensor_profile_shape(name, profile)]

    def _memory_bytes(self) -> int:
        name = (
            "device_memory_size_v2"
            if hasattr(self._engine, "device_memory_size_v2")
            else "device_memory_size"
        )
        return int(getattr(self._engine, name))

    def _make_context(self, profile: int, stream: int) -> Any:
        engine = self._engine
        if hasattr(self._trt, "ExecutionContextAllocationStrategy"):
            strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
            context = engine.create_execution_context(strategy)
        else:
            context = engine.create_execution_context_without_device_memory()
        if context is None:
            raise ConfigError(
                "TensorRT has no memory for an execution context; lower --max-step-rows or "
                "--kv-rows."
            )
        start = -(-self._memory.data_ptr() // ALIGNMENT) * ALIGNMENT
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(start, self._memory_bytes())
        else:
            context.device_memory = start
        self._require(
            context.set_optimization_profile_async(profile, stream),
            "set_optimization_profile_async",
        )
        return context

    @staticmethod
    def _require(succeeded: object, call: str) -> None:
        if not succeeded:
            raise EngineFaultError(
                f"TensorRT's {call} failed (its messages are on standard error); start the program "
                "again, and report this if it stays."
            )
