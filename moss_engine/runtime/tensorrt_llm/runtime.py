"""The runtime of `--runtime tensorrt_llm`: an engine file with the attention plugin, over a pool in
its layout, and what such an engine is given. Only `tensorrt` and the plugin's library are loaded,
never the tensorrt_llm package.

Sizes: T rows of the step, B sequences, M blocks of a sequence, L layers with a KV slot, S rows that
a slot can hold. Sequences whose rows are prefilled ("context") come first, those with one row
behind cached ones ("generation") after them. A tensor that begins with host_ is read by the plugin
on the host, at the time of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import file_digest
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.tensorrt.engine import TrtEngine, load_library
from moss_engine.runtime.tensorrt.runtime import (
    EngineFile,
    EngineRuntime,
    on_stream,
    open_engine_file,
)
from moss_engine.runtime.tensorrt.tensors import (
    ANY,
    HEADS,
    ROTARY,
    EngineTensors,
    TensorSpec,
    weight_specs,
)

HOST_PREFIX = "host_"
CONTEXT, GENERATION = 0, 1


@dataclass(frozen=True)
class Geometry:
    """What stays the same while an engine is open: L, M, S, and where the pool lies."""

    num_layers: int
    max_blocks: int
    capacity: int
    pool_address: int


@dataclass(frozen=True)
class Step:
    """One step's sequences, context first. ids int32 [T, 2]; new, cached int32 [B]; is_context bool
    [B]; tables int32 [B, M]."""

    ids: np.ndarray
    new: np.ndarray
    cached: np.ndarray
    is_context: np.ndarray
    tables: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each sequence when the step is done."""
        return self.cached + self.new


@dataclass(frozen=True)
class Input:
    """`fill` gives the values. `constant` ones depend on nothing of a step but its number of
    sequences."""

    dtype: str
    shape: tuple[int | str, ...]
    fill: Callable[[Step, Geometry], np.ndarray]
    constant: bool = False

    def sized(self, **sizes: int) -> tuple[int, ...]:
        """The shape with these sizes for its letters."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


def is_generation(sequence: ScheduledSequence) -> bool:
    """One row behind cached ones: what the plugin's generation phase computes."""
    return len(sequence.rows) == 1 and sequence.num_cached > 0


def make_step(sequences: Sequence[ScheduledSequence], max_blocks: int) -> Step:
    """`sequences` in the order of `is_generation`."""
    tables = np.zeros((len(sequences), max_blocks), dtype=np.int32)
    for table, sequence in zip(tables, sequences, strict=True):
        blocks = sequence.block_table[:max_blocks]
        table[: len(blocks)] = blocks
    rows = list(chain.from_iterable(sequence.rows for sequence in sequences))
    return Step(
        ids=np.array(rows, dtype=np.int32),
        new=np.array([len(sequence.rows) for sequence in sequences], dtype=np.int32),
        cached=np.array([sequence.num_cached for sequence in sequences], dtype=np.int32),
        is_context=np.array([not is_generation(sequence) for sequence in sequences]),
        tables=tables,
    )


def _context_lengths(step: Step, _: Geometry) -> np.ndarray:
    """Context: the rows of this step. Generation: those before it, all of which count as the
    prompt."""
    return np.where(step.is_context, step.new, step.cached)


def _past_lengths(step: Step, _: Geometry) -> np.ndarray:
    """Generation: the rows in the cache before this one. Context: the rows when the step is done,
    despite the name."""
    return np.where(step.is_context, step.lengths, step.cached)


def _block_offsets(step: Step, geometry: Geometry) -> np.ndarray:
    """[B, 2, M] in units of one layer's keys (or values) of one block, which is 2 L of them; values
    behind keys."""
    keys = step.tables * (2 * geometry.num_layers)
    return np.stack([keys, keys + 1], axis=1)


def _pool_mapping(_: Step, geometry: Geometry) -> np.ndarray:
    """Every layer's pool, and its place therein: one pool, every slot its own place."""
    return np.stack([np.zeros(geometry.num_layers), np.arange(geometry.num_layers)], axis=1)


OURS: dict[str, Input] = {
    "ids": Input("int32", ("T", 2), lambda step, _: step.ids),
    "select": Input("int32", ("B",), lambda step, _: step.new.cumsum() - 1),
}
"""Text and audio of every row, and each sequence's last row, whose logits are wanted."""
ATTENTION: dict[str, Input] = {
    "sequence_length": Input("int32", ("B",), lambda step, _: step.lengths),
    "context_lengths": Input("int32", ("B",), _context_lengths),
    "host_context_lengths": Input("int32", ("B",), _context_lengths),
    "host_request_types": Input(
        "int32", ("B",), lambda step, _: np.where(step.is_context, CONTEXT, GENERATION)
    ),
    "host_past_key_value_lengths": Input("int32", ("B",), _past_lengths),
    "host_max_attention_window_sizes": Input(
        "int32", ("L",), lambda _, g: np.full(g.num_layers, g.capacity), constant=True
    ),
    "host_sink_token_length": Input("int32", (1,), lambda _, __: np.zeros(1), constant=True),
    "cache_indirection": Input(
        "int32", ("B", 1, "S"), lambda s, g: np.zeros((len(s.new), 1, g.capacity)), constant=True
    ),
    "kv_cache_block_offsets": Input("int32", (1, "B", 2, "M"), _block_offsets),
    "host_kv_cache_block_offsets": Input("int32", (1, "B", 2, "M"), _block_offsets),
    "host_kv_cache_pool_pointers": Input(
        "int64", (1, 2), lambda _, g: np.array([g.pool_address, 0]), constant=True
    ),
    "host_kv_cache_pool_mapping": Input("int32", ("L", 2), _pool_mapping, constant=True),
    # unset but the first: attention of long sequences may be spread over several thread blocks
    "host_runtime_perf_knobs": Input(
        "int64", (16,), lambda _, __: np.array([1, *[-1] * 15]), constant=True
    ),
    "host_context_progress": Input("int64", (1,), lambda _, __: np.zeros(1), constant=True),
}
"""What `gpt_attention` of releases 1.0.0 and 1.2.1 takes beside queries, keys and values."""
INPUTS = OURS | ATTENTION


def values_of(name: str, step: Step, geometry: Geometry) -> np.ndarray:
    """A step's values of one input."""
    known, g = INPUTS[name], geometry
    shape = known.sized(
        T=len(step.ids), B=len(step.new), M=g.max_blocks, L=g.num_layers, S=g.capacity
    )
    values = known.fill(step, geometry).astype(known.dtype)
    return np.ascontiguousarray(values.reshape(shape))


def max_blocks(limits: Limits) -> int:
    """Blocks of the longest sequence."""
    return -(-limits.max_seq_len // limits.block_size)


def capacity(limits: Limits) -> int:
    """Rows that the blocks of the longest sequence hold."""
    return max_blocks(limits) * limits.block_size


def engine_inputs(tensors: EngineTensors) -> dict[str, TensorSpec]:
    """Of an engine with these limits; the layout's tensors are inputs where they are bound."""
    limits, num_layers = tensors.limits, tensors.config.num_layers
    names = {"T": "tokens", "B": "sequences"}
    found = {}
    for name, known in INPUTS.items():
        shape = known.sized(T=ANY, B=ANY, M=max_blocks(limits), L=num_layers, S=capacity(limits))
        # an axis' name, where it has a size of its own
        axes = tuple(names.get(str(size), "") for size in known.shape)
        found[name] = TensorSpec(known.dtype, shape, axes)
    if tensors.is_bound:
        found |= weight_specs(tensors.config, limits, tensors.io_dtype)
        del found[ROTARY]
    return found


def profile_shapes(tensors: EngineTensors) -> list[dict[str, list[tuple[int, ...]]]]:
    """Smallest, usual and largest shape of every open input: for decode, and for steps of up to
    `max_step_rows` rows."""
    limits = tensors.limits
    found = []
    for most in (limits.max_batch, limits.max_step_rows):
        # at least two, as a size that one profile fixes may be reported as fixed in all
        sizes = {"tokens": (1, most, max(2, most)), "sequences": (1, 1, limits.max_batch)}
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for name, spec in engine_inputs(tensors).items():
            if ANY in spec.shape:
                axes = [*zip(spec.shape, spec.sizes, strict=True)]
                shapes[name] = [
                    tuple(sizes[axis][i] if axis else size for size, axis in axes) for i in range(3)
                ]
        found.append(shapes)
    return found


RELEASES = ("1.0.0", "1.2.1")
"""Of tensorrt_llm: with CUDA 12, and with CUDA 13. Later ones have no engine files."""
NAMESPACE = b"tensorrt_llm"
LIBRARY = Path("libs") / "libnvinfer_plugin_tensorrt_llm.so"


def load_trtllm_runtime(
    config: EngineConfig, limits: Limits, device: torch.device
) -> TrtLlmRuntime:
    """The runtime for the engine file of `--engine`; raises as `open_engine_file`."""
    load_library(config.runtime)  # that it is missing is said before that its plugin is
    plugin = find_plugin(config.plugin)
    file = open_engine_file(config, limits, device, pool_shape, file_digest(plugin))
    load_plugin(plugin)
    return TrtLlmRuntime(file)


class TrtLlmRuntime(EngineRuntime):
    """`Runtime` on one engine file. All sequences of a step run in one call."""

    _engine: TrtEngine | None

    def __init__(self, file: EngineFile):
        super().__init__(file)
        library, plan, manifest, config, limits, *_, device = file
        self._built, tensors = manifest.limits, file.tensors
        inputs = engine_inputs(tensors)
        outputs = tensors.outputs(HEADS)
        self._engine = TrtEngine(library, plan, inputs, outputs, device, self._stream_handle)
        dtype = getattr(torch, tensors.io_dtype)
        self._pool = torch.zeros(pool_shape(config, limits), dtype=dtype, device=device)
        offsets = limits.num_blocks * config.num_layers * 2
        assert offsets < 1 << 31, "the highest bit of an offset means another pool"
        self._geometry = Geometry(
            config.num_layers, max_blocks(self._built), capacity(self._built), self._pool.data_ptr()
        )
        for profile in range(self._engine.num_profiles):
            self._engine.bind(profile, self._kept)
        self._given: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, int], Tensor] = {}
        self._done = torch.cuda.Event() if self._stream else None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        order = sorted(range(len(batch.sequences)), key=lambda i: is_generation(batch.sequences[i]))
        step = make_step([batch.sequences[i] for i in order], self._geometry.max_blocks)
        if self._done is not None:
            # the plugin reads the tensors on the host until its call has run
            self._done.synchronize()
        with on_stream(self._stream):
            self._given = {name: self._placed(name, step) for name in INPUTS}
            shapes = {name: tuple(tensor.shape) for name, tensor in self._given.items()}
            profile = 0 if len(step.ids) <= self._built.max_batch else 1
            self._engine.bind(profile, self._given, shapes)
            self._engine.run(profile, self._stream_handle)
            if self._done is not None:
                self._done.record(self._stream)
        places = [order.index(i) for i, sequence in enumerate(batch.sequences) if sequence.sample]
        select = torch.tensor(places, dtype=torch.long, device=self._device)
        return Logits(*(logits.index_select(0, select) for logits in self._logits))

    def close(self) -> None:
        super().close()
        self._given.clear()
        self._constants.clear()
        self._pool = torch.empty(0)

    def _placed(self, name: str, step: Step) -> Tensor:
        """An input's values where the engine reads them: on the host, or on the device."""
        if (name, len(step.new)) in self._constants:
            return self._constants[name, len(step.new)]
        placed = torch.from_numpy(values_of(name, step, self._geometry))
        if self._stream is not None:
            placed = placed.pin_memory()
            if not name.startswith(HOST_PREFIX):
                placed = placed.to(self._device, non_blocking=True)
        if INPUTS[name].constant:
            self._constants[name, len(step.new)] = placed
        return placed


def pool_shape(config: ModelConfig, limits: Limits) -> tuple[int, ...]:
    """[blocks, layers, keys and values, kv_heads, rows of a block, head_dim]."""
    return (
        limits.num_blocks,
        config.num_layers,
        2,
        config.num_key_value_heads,
        limits.block_size,
        config.head_dim,
    )


def find_plugin(named: Path | None) -> Path:
    """The library's file: the one that was named, or that of the installed package. Raises
    ConfigError for a named file that does not exist, MissingPackageError without the package."""
    if named is not None:
        if not named.is_file():
            raise ConfigError(
                f"--plugin {named} is no file; name {LIBRARY.name} of tensorrt_llm {RELEASES[-1]}."
            )
        return named
    spec = find_spec("tensorrt_llm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / LIBRARY).is_file():
            return Path(folder) / LIBRARY
    raise MissingPackageError(
        f"--runtime tensorrt_llm needs {LIBRARY.name}; install it with `pip install --no-deps "
        f"tensorrt_llm=={RELEASES[-1]}` from NVIDIA's own package index, or name the file with "
        "--plugin."
    )


def load_plugin(path: Path) -> None:
    """Load the library and register its plugins; `tensorrt` must have been imported. Raises
    ConfigError."""
    try:
        library = ctypes.CDLL(str(path.resolve()), mode=ctypes.RTLD_GLOBAL)
        register = library.initTrtLlmPlugins
    except (OSError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be loaded ({error}); install the libraries it names, of the release "
            f"that the "
            "engine was built with."
        ) from None
    register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_bool
    if not register(None, NAMESPACE):
        raise ConfigError(
            f"{path} registered no plugins; use the library of tensorrt_llm "
            f"{' or '.join(RELEASES)}, and "
            "the TensorRT release that belongs to it."
        )
