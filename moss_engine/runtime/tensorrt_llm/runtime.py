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
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
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


OURS: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "ids": ("int32", ("T", 2)),
    "select": ("int32", ("B",)),
}
"""Type and shape of text and audio of every row, and of each sequence's last row, whose logits are
wanted."""
ATTENTION: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "sequence_length": ("int32", ("B",)),
    "context_lengths": ("int32", ("B",)),
    "host_context_lengths": ("int32", ("B",)),
    "host_request_types": ("int32", ("B",)),
    "host_past_key_value_lengths": ("int32", ("B",)),
    "host_max_attention_window_sizes": ("int32", ("L",)),
    "host_sink_token_length": ("int32", (1,)),
    "cache_indirection": ("int32", ("B", 1, "S")),
    "kv_cache_block_offsets": ("int32", (1, "B", 2, "M")),
    "host_kv_cache_block_offsets": ("int32", (1, "B", 2, "M")),
    "host_kv_cache_pool_pointers": ("int64", (1, 2)),
    "host_kv_cache_pool_mapping": ("int32", ("L", 2)),
    "host_runtime_perf_knobs": ("int64", (16,)),
    "host_context_progress": ("int64", (1,)),
}
"""What `gpt_attention` of releases 1.0.0 and 1.2.1 takes beside queries, keys and values."""
INPUTS = OURS | ATTENTION


def is_generation(sequence: ScheduledSequence) -> bool:
    """One row behind cached ones: what the plugin's generation phase computes."""
    return len(sequence.rows) == 1 and sequence.num_cached > 0


def step_values(
    sequences: Sequence[ScheduledSequence], tensors: EngineTensors
) -> dict[str, np.ndarray]:
    """What a step's inputs hold, but for those that `constant_values` gives; `sequences` in the
    order of `is_generation`."""
    new = np.array([len(sequence.rows) for sequence in sequences])
    cached = np.array([sequence.num_cached for sequence in sequences])
    is_context = np.array([not is_generation(sequence) for sequence in sequences])
    tables = np.zeros((len(sequences), tensors.limits.max_blocks), dtype=np.int32)
    for table, sequence in zip(tables, sequences, strict=True):
        blocks = sequence.block_table[: len(table)]
        table[: len(blocks)] = blocks
    # in units of one layer's keys (or values) of one block, which has 2 L: values behind keys
    keys = tables * (2 * tensors.config.num_layers)
    offsets = np.stack([keys, keys + 1], axis=1)[None]
    # of generation all rows before this one count as the prompt
    prompts = np.where(is_context, new, cached)
    return {
        "ids": np.array([row for sequence in sequences for row in sequence.rows]),
        "select": new.cumsum() - 1,
        "sequence_length": cached + new,
        "context_lengths": prompts,
        "host_context_lengths": prompts,
        "host_request_types": np.where(is_context, CONTEXT, GENERATION),
        # of context the rows when the step is done, despite the name
        "host_past_key_value_lengths": np.where(is_context, cached + new, cached),
        "kv_cache_block_offsets": offsets,
        "host_kv_cache_block_offsets": offsets,
    }


def constant_values(
    num_sequences: int, tensors: EngineTensors, pool_address: int
) -> dict[str, np.ndarray]:
    """What the other inputs hold in every step of so many sequences."""
    slots, rows = np.arange(tensors.config.num_layers), capacity(tensors.limits)
    return {
        "host_max_attention_window_sizes": np.full(len(slots), rows),
        "host_sink_token_length": np.zeros(1),
        "cache_indirection": np.zeros((num_sequences, 1, rows)),
        "host_kv_cache_pool_pointers": np.array([[pool_address, 0]]),
        # every layer's pool, and its place therein: one pool, every slot its own place
        "host_kv_cache_pool_mapping": np.stack([np.zeros(len(slots)), slots], axis=1),
        # unset but the first: attention of long sequences may be spread over several thread blocks
        "host_runtime_perf_knobs": np.array([1, *[-1] * 15]),
        "host_context_progress": np.zeros(1),
    }


def capacity(limits: Limits) -> int:
    """Rows that the blocks of the longest sequence hold."""
    return limits.max_blocks * limits.block_size


def engine_inputs(tensors: EngineTensors) -> dict[str, TensorSpec]:
    """Of an engine with these limits; the layout's tensors are inputs where they are bound."""
    limits, names = tensors.limits, {"T": "tokens", "B": "sequences"}
    sizes = {"M": limits.max_blocks, "L": tensors.config.num_layers, "S": capacity(limits)}
    sizes |= dict.fromkeys(names, ANY)
    found = {}
    for name, (dtype, letters) in INPUTS.items():
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in letters)
        # an axis' name, where it has a size of its own
        axes = tuple(names.get(str(size), "") for size in letters)
        found[name] = TensorSpec(dtype, shape, axes)
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
        library, plan, _, config, limits, *_, device = file
        self._tensors = tensors = file.tensors
        known = engine_inputs(tensors), tensors.outputs(HEADS)
        self._engine = TrtEngine(library, plan, *known, device, self._stream_handle)
        dtype = getattr(torch, tensors.io_dtype)
        self._pool = torch.zeros(pool_shape(config, limits), dtype=dtype, device=device)
        offsets = limits.num_blocks * config.num_layers * 2
        assert offsets < 1 << 31, "the highest bit of an offset means another pool"
        for profile in range(self._engine.num_profiles):
            self._engine.bind(profile, self._kept)
        self._given: dict[str, Tensor] = {}
        self._constants: dict[int, dict[str, Tensor]] = {}
        self._done = torch.cuda.Event() if self._stream else None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        count = len(batch.sequences)
        order = sorted(range(count), key=lambda i: is_generation(batch.sequences[i]))
        step = step_values([batch.sequences[i] for i in order], self._tensors)
        if self._done is not None:
            # the plugin reads the tensors on the host until its call has run
            self._done.synchronize()
        with on_stream(self._stream):
            if count not in self._constants:
                constants = constant_values(count, self._tensors, self._pool.data_ptr())
                self._constants[count] = self._placed(constants)
            self._given = self._constants[count] | self._placed(step)
            shapes = {name: tuple(tensor.shape) for name, tensor in self._given.items()}
            profile = 0 if len(step["ids"]) <= self._tensors.limits.max_batch else 1
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

    def _placed(self, values: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Inputs' values where the engine reads them: on the host, or on the device."""
        placed = {}
        for name, array in values.items():
            tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=INPUTS[name][0]))
            if self._stream is not None:
                tensor = tensor.pin_memory()
                if not name.startswith(HOST_PREFIX):
                    tensor = tensor.to(self._device, non_blocking=True)
            placed[name] = tensor
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
