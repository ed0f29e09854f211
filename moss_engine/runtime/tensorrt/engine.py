"""The library, TensorRT or TensorRT-RTX, and an opened engine: its tensors compared with what is
known, and one context for every profile.

No call of the library is trusted: whatever returns a success flag is checked, and so is the type
and shape of every tensor before its address is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import (
    ConfigError,
    EngineFaultError,
    EngineFileError,
    MissingPackageError,
)
from moss_engine.runtime.tensorrt.tensors import (
    ALIGNMENT,
    AUDIO_HIDDEN,
    AUDIO_LOGITS,
    EMBED,
    HEADS,
    HIDDEN,
    LAYERED,
    LAYERS,
    LOGITS,
    NEW_KV,
    PARTS,
    TEXT_HIDDEN,
    EngineTensors,
    TensorSpec,
    new_kv_values,
    split_plan,
)

_MODULES = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    "tensorrt_llm": ("tensorrt",),
}
"""Where each library may be found, the package of all parts before the bindings alone."""
_OLDEST = {"tensorrt": (10, 4), "tensorrt_rtx": (1, 4), "tensorrt_llm": (10, 4)}
_RTX_UNSERVED = {(9, 0): "H100 and H200"}


@dataclass(frozen=True)
class Library:
    """`module` is the package's own."""

    backend: str
    module: Any
    version: str

    def logger(self) -> Any:
        """Warnings and errors go to the program's standard error."""
        return self.module.Logger(self.module.Logger.WARNING)


def load_library(backend: str) -> Library:
    """Import the package that a backend ("tensorrt", "tensorrt_rtx" or "tensorrt_llm") runs on;
    raises MissingPackageError with the command that installs it, and ConfigError as `describe`
    does."""
    for name in _MODULES[backend]:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise _missing(backend, str(error)) from None
        except (ImportError, OSError, RuntimeError) as error:
            raise _missing(backend, str(error)) from None
        else:
            return describe(backend, module)
    raise _missing(backend, "the package is not installed")


def describe(backend: str, module: Any) -> Library:
    """What this module is; raises ConfigError for a release older than the oldest that is
    served."""
    version = str(module.__version__)
    release = tuple(int(number) for number in version.split(".")[:2])
    assert len(release) == 2, f"{backend} calls its version {version!r}"
    if release < _OLDEST[backend]:
        oldest = ".".join(map(str, _OLDEST[backend]))
        raise ConfigError(
            f"{backend} {version} is installed and {oldest} is the oldest that can be used; "
            f"install one "
            f"with {_install(backend)}."
        )
    return Library(backend, module, version)


def compute_capability(library: Library, device: torch.device) -> str:
    """That of the GPU, as "8.9"; raises ConfigError where the library refuses it."""
    capability = torch.cuda.get_device_capability(device)
    if library.backend == "tensorrt_rtx" and capability in _RTX_UNSERVED:
        raise ConfigError(
            f"TensorRT-RTX does not run on compute capability {capability[0]}.{capability[1]} "
            f"({_RTX_UNSERVED[capability]}); use --runtime tensorrt or torch."
        )
    return f"{capability[0]}.{capability[1]}"


def _install(backend: str) -> str:
    command = f'`pip install ".[{backend}]"` in this program\'s folder'
    return (
        command
        if backend == "tensorrt_rtx"
        else command + " (give pip NVIDIA's own package index with --extra-index-url)"
    )


def _missing(backend: str, reason: str) -> MissingPackageError:
    return MissingPackageError(
        f"{backend} needs the package {_MODULES[backend][0]} ({reason}); install it with "
        f"{_install(backend)}, or do without engine files: --runtime torch."
    )


_TORCH_NAMES = {
    "FLOAT": "float32",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "INT32": "int32",
    "INT64": "int64",
}
_AGAIN = "build the engine again with `python -m scripts.build_engine`."
Shapes = Mapping[str, tuple[int, ...]]


class TrtEngine:
    """One plan. Tensors are given with `bind`, and `run` enqueues a step."""

    def __init__(
        self,
        library: Library,
        plan: Any,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
        device: torch.device,
        stream: int,
    ):
        """Deserialise `plan`; raises EngineFileError for a plan that the library refuses, and
        unless its tensors are exactly `inputs` and `outputs`."""
        self._trt = library.module
        self._runtime = self._trt.Runtime(library.logger())
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise EngineFileError(
                f"{library.backend} {library.version} refuses the plan (its messages are above); "
                f"{_AGAIN}"
            )
        self._check("input", inputs)
        self._check("output", outputs)
        self.inputs = inputs
        self.num_profiles = int(self._engine.num_optimization_profiles)
        self._num_bytes = int(self._engine.device_memory_size_v2)
        num_bytes = max(1, self._num_bytes) + ALIGNMENT
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._contexts = [self._make_context(i, stream) for i in range(self.num_profiles)]
        self._bound: list[dict[str, tuple[int, tuple[int, ...]]]] = [{} for _ in self._contexts]

    @property
    def memory_bytes(self) -> int:
        """Scratch memory, which all contexts share: steps never run at the same time."""
        return self._memory.numel()

    def bind(
        self, profile: int, tensors: Mapping[str, Tensor], shapes: Shapes | None = None
    ) -> None:
        """Give tensors to a profile's context, each read or written as `shapes` says, or whole."""
        context, bound = self._contexts[profile], self._bound[profile]
        for name, tensor in tensors.items():
            shape = tuple((shapes or {}).get(name, tensor.shape))
            if bound.get(name) == (tensor.data_ptr(), shape):
                continue
            assert tensor.is_contiguous() and _address(tensor) % ALIGNMENT == 0, name
            known = self.inputs[name].shape if name in self.inputs else None
            if known is None or -1 not in known:
                assert known in (None, shape), (name, shape, known)
            elif name not in bound or bound[name][1] != shape:
                _require(context.set_input_shape(name, shape), f"set_input_shape({name}, {shape})")
            address = tensor.data_ptr()
            _require(context.set_tensor_address(name, address), f"set_tensor_address({name})")
            bound[name] = address, shape

    def run(self, profile: int, stream: int) -> None:
        """Enqueue one step with what is bound."""
        _require(self._contexts[profile].execute_async_v3(stream), "execute_async_v3")

    def close(self) -> None:
        self._contexts.clear()
        self._engine = self._runtime = None
        self._memory = torch.empty(0)

    def _check(self, what: str, known: Mapping[str, TensorSpec]) -> None:
        """Raise EngineFileError unless the engine's inputs, or outputs, are the known ones."""
        engine, mode = self._engine, getattr(self._trt.TensorIOMode, what.upper())
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        found = {name for name in names if engine.get_tensor_mode(name) == mode}
        for name in sorted(known.keys() - found):
            raise EngineFileError(
                f"The engine lacks the {what} {name!r} that this program knows; {_AGAIN}"
            )
        for name in sorted(found - known.keys()):
            raise EngineFileError(f"The engine has an unknown {what} {name!r}; {_AGAIN}")
        for name, spec in known.items():
            dtype = engine.get_tensor_dtype(name).name
            for field, value, wanted in (
                ("type", _TORCH_NAMES.get(dtype, dtype), spec.dtype),
                ("shape", _as_open(tuple(engine.get_tensor_shape(name)), spec.shape), spec.shape),
                ("location", engine.get_tensor_location(name).name, "DEVICE"),
            ):
                if value != wanted:
                    raise EngineFileError(
                        f"The engine's tensor {name!r} has {field} {value} where {wanted} is "
                        f"needed; {_AGAIN}"
                    )

    def _make_context(self, profile: int, stream: int) -> Any:
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise ConfigError(
                "TensorRT has no memory for an execution context; lower --max-step-rows or "
                "--kv-rows."
            )
        start = -(-self._memory.data_ptr() // ALIGNMENT) * ALIGNMENT
        context.set_device_memory(start, self._num_bytes)
        chosen = context.set_optimization_profile_async(profile, stream)
        _require(chosen, "set_optimization_profile_async")
        return context


def _as_open(found: tuple[int, ...], known: tuple[int, ...]) -> tuple[int, ...]:
    """`found` with -1 where `known` has it: a size may be fixed where the profiles leave no
    choice."""
    if len(found) != len(known):
        return found
    return tuple(-1 if size == -1 else actual for actual, size in zip(found, known, strict=True))


def _address(tensor: Tensor) -> int:
    """On a CPU, where memory begins at smaller multiples, that within the memory."""
    return tensor.data_ptr() if tensor.is_cuda else int(tensor.storage_offset()) * tensor.itemsize


def _require(succeeded: object, call: str) -> None:
    if not succeeded:
        raise EngineFaultError(
            f"TensorRT's {call} failed (its messages are on standard error); start the program "
            "again, and report this if it stays."
        )


class TrtParts:
    """An engine in parts, used as a `TrtEngine` of the whole: `bind` keeps the tensors, and `run`
    gives each part its share."""

    def __init__(
        self, library: Library, plan: Any, tensors: EngineTensors, device: torch.device, stream: int
    ):
        """Raises EngineFileError for a plan that is refused, or with other tensors."""
        self._layout = tensors
        plans = split_plan(plan)
        self._parts = {
            part: TrtEngine(
                library, plans[part], tensors.inputs(part), tensors.outputs(part), device, stream
            )
            for part in PARTS
        }
        self.num_profiles = self._parts[LAYERS].num_profiles
        self._layer_weights = tuple(tensors.weights(LAYERS))
        self._tensors: list[dict[str, Tensor]] = [{} for _ in range(self.num_profiles)]
        self._shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in range(self.num_profiles)]
        rows = max(tensors.limits.max_batch, tensors.limits.max_step_rows)
        hidden = tensors.config.hidden_size
        self._rows = [torch.empty(rows, hidden, device=device) for _ in range(4)]

    @property
    def memory_bytes(self) -> int:
        return sum(part.memory_bytes for part in self._parts.values())

    def bind(
        self, profile: int, tensors: Mapping[str, Tensor], shapes: Shapes | None = None
    ) -> None:
        """The pool must lie in memory that goes on for one block behind it: parts read it from a
        later start."""
        self._tensors[profile] |= tensors
        self._shapes[profile] |= shapes or {}

    def run(self, profile: int, stream: int) -> None:
        """Enqueue one step with what is bound."""
        config, (trunk, other, one, two) = self._layout.config, self._rows
        shared, branch = config.num_shared_layers, config.num_modality_layers
        self._run(EMBED, profile, stream, {HIDDEN: trunk})
        x = self._run_layers(range(shared), profile, stream, trunk, (other, trunk))
        slots = range(shared, shared + branch)
        text = self._run_layers(slots, profile, stream, x, (one, two))
        spare = (other if x is trunk else trunk, two if text is one else one)
        slots = range(shared + branch, shared + 2 * branch)
        audio = self._run_layers(slots, profile, stream, x, spare)
        logits = {name: self._tensors[profile][name] for name in (LOGITS, AUDIO_LOGITS)}
        self._run(HEADS, profile, stream, {TEXT_HIDDEN: text, AUDIO_HIDDEN: audio, **logits})

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._tensors.clear()
        self._rows.clear()

    def _run_layers(
        self, slots: range, profile: int, stream: int, x: Tensor, buffers: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Run the layers of these slots on the rows `x`, each time with weights, pool and new rows'
        keys and values from there on; returns the last rows, in one of the buffers."""
        tensors, (sequences, rows, _) = self._tensors[profile], self._shapes[profile]["ids"]
        pool, new_kv, config = tensors["kv_pool"], tensors[NEW_KV], self._layout.config
        count = self._layout.layers_at_a_time
        _, stride = new_kv_values(config, count, sequences * rows, new_kv.itemsize)
        for slot in slots[::count]:
            target = buffers[1] if x is buffers[0] else buffers[0]
            first_tile = slot * 2 * config.num_key_value_heads
            own = {name: tensors[_in_layout(name, slot)] for name in self._layer_weights}
            own["kv_pool"] = pool.as_strided(
                pool.shape, pool.stride(), pool.storage_offset() + first_tile * pool.stride(0)
            )
            own[NEW_KV] = new_kv[slot // count * stride :]
            self._run(LAYERS, profile, stream, {**own, HIDDEN: x, LAYERED: target})
            x = target
        return x

    def _run(self, part: str, profile: int, stream: int, own: Mapping[str, Tensor]) -> None:
        engine, kept, shapes = self._parts[part], self._tensors[profile], self._shapes[profile]
        engine.bind(
            profile,
            {**{name: kept[name] for name in engine.inputs.keys() - own.keys()}, **own},
            {name: shape for name, shape in shapes.items() if name in engine.inputs},
        )
        engine.run(profile, stream)


def _in_layout(name: str, slot: int) -> str:
    """The layout's name of a weight that the part calls layers.0.x, layers.1.x, ..."""
    first, *rest = name.split(".")
    return f"layers.{int(rest[0]) + slot}.{rest[1]}" if first == "layers" else name
