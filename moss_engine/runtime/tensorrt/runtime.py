"""The runtimes of TensorRT and TensorRT-RTX: an engine file over a paged pool in torch's memory.

The engine reads the pool through block tables and returns the new rows' keys and values, which are
scattered into it behind the step. Decode steps run as CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import stream_parts
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.engine_manifest import EngineManifest, EngineRequirements, open_engine
from moss_engine.runtime.memory import require_memory
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.runtime.tensorrt.engine import (
    Library,
    TrtEngine,
    TrtParts,
    compute_capability,
    load_library,
)
from moss_engine.runtime.tensorrt.tensors import (
    NEW_KV,
    OUTPUTS,
    ROTARY,
    WHOLE,
    EngineTensors,
    new_kv_values,
    pool_shape,
    profiles,
    rotary_table,
    weight_specs,
)


class EngineFile(NamedTuple):
    """An engine file that was opened, with the weights that it wants to be given: what a runtime is
    made of. `weights` is empty where they are part of the plan."""

    library: Library
    plan: Any
    manifest: EngineManifest
    config: ModelConfig
    limits: Limits
    weights: Mapping[str, Tensor]
    info: RuntimeInfo
    device: torch.device

    @property
    def tensors(self) -> EngineTensors:
        manifest = self.manifest
        return EngineTensors(self.config, manifest.limits, manifest.dtype)


def open_engine_file(
    config: EngineConfig,
    limits: Limits,
    device: torch.device,
    pool_shape: Callable[[ModelConfig, Limits], Sequence[int]],
    plugin_digest: str = "",
) -> EngineFile:
    """The engine file of `--engine`. Raises MissingPackageError, EngineFileError with the field
    that differs, CheckpointError or ConfigError."""
    assert config.engine is not None
    library = load_library(config.runtime)
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    needed = EngineRequirements(
        config.runtime,
        checkpoint_digest(config.checkpoint),
        library.version,
        compute_capability(library, device),
        config.dtype,
        limits,
        plugin_digest,
    )
    manifest, plan = open_engine(config.engine, needed)
    info = RuntimeInfo(
        library.backend,
        library.version,
        torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        manifest.dtype,
        config.checkpoint.resolve().name,
        manifest.plan_digest,
    )
    file = EngineFile(library, plan, manifest, model, limits, {}, info, device)
    io_dtype = getattr(torch, file.tensors.io_dtype)
    specs = weight_specs(model, manifest.limits, manifest.dtype)
    weight_bytes = sum(
        math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs.values()
    )
    require_memory(device, weight_bytes, math.prod(pool_shape(model, limits)) * io_dtype.itemsize)
    if not file.tensors.is_bound:
        return file
    layout = stream_parts(config.checkpoint, model, io_dtype)
    return file._replace(weights={name: tensor.to(device) for name, tensor in layout})


def load_trt_runtime(config: EngineConfig, limits: Limits, device: torch.device) -> TrtRuntime:
    """The runtime of `--runtime tensorrt` and `tensorrt_rtx`; raises as `open_engine_file`."""
    return TrtRuntime(open_engine_file(config, limits, device, pool_shape))


class EngineRuntime(LogitsRuntime):
    """What the runtimes of engine files share: the library's stream, the logits' memory, the end.
    A subclass sets `_engine`."""

    _engine: TrtEngine | TrtParts | None

    def __init__(self, file: EngineFile):
        self.limits = file.limits
        self.info = file.info
        self._device = device = file.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._stream_handle = 0 if self._stream is None else self._stream.cuda_stream
        self._kept: dict[str, Tensor] = {
            name: torch.empty(file.limits.max_batch, getattr(file.config, size), device=device)
            for name, size in OUTPUTS.items()
        }
        self._logits = Logits(*self._kept.values())
        self._kept |= file.weights

    def close(self) -> None:
        if self._stream is not None:
            torch.cuda.synchronize(self._device)
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._kept.clear()
        if self._stream is not None:
            torch.cuda.empty_cache()


_ALIGNED = 64
"""int32 values: TensorRT wants addresses at multiples of 256 bytes."""


@dataclass(frozen=True)
class StepShape:
    """B sequences of R rows; `blocks` places for each one's cached blocks."""

    sequences: int
    rows: int
    blocks: int


class StepInputs:
    """Buffers of every integer that a step reads, of any `StepShape` within the limits.

    Places that no sequence takes hold an empty one, whose new row goes to the pool's spare block.
    """

    def __init__(self, limits: Limits, max_sequences: int, device: torch.device):
        """max_sequences: of one step, those included that only fill it up."""
        self._limits = limits
        self._spare_row = limits.num_blocks * limits.block_size
        rows = max(max_sequences, limits.max_step_rows)
        sizes = {
            "ids": 2 * rows,
            "cached": max_sequences,
            "select": max_sequences,
            "pool_rows": rows,
            "tables": max_sequences * limits.max_blocks,
        }
        taken = [-(-size // _ALIGNED) * _ALIGNED for size in sizes.values()]
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(sum(taken), dtype=torch.int32, pin_memory=on_gpu)
        self._device = torch.zeros(sum(taken), dtype=torch.int32, device=device)
        self._views = dict(zip(sizes, (part.numpy() for part in self._host.split(taken))))
        self._tensors = dict(zip(sizes, self._device.split(taken)))
        self._tables_start = sum(taken[:-1])
        count = max(rows, limits.max_blocks * limits.block_size)
        self._index = torch.arange(count, dtype=torch.int32, device=device)
        self._sent = torch.cuda.Event() if on_gpu else None

    def tensors(self) -> dict[str, Tensor]:
        """Buffers by the engine's names; a step reads the first values of each."""
        return {
            **{name: self._tensors[name] for name in ("ids", "cached", "tables", "select")},
            "past_index": self._index,
            "row_index": self._index,
        }

    def pool_rows(self, num_rows: int) -> Tensor:
        """Where the step's rows belong: int32 [rows], block * block_size + offset."""
        return self._tensors["pool_rows"][:num_rows]

    def put(self, sequences: Sequence[ScheduledSequence], shape: StepShape) -> None:
        """Send sequences of `shape.rows` rows each (at most `shape.sequences`); logits of each
        one's last row."""
        if self._sent is not None:
            self._sent.synchronize()
        views, count, rows = self._views, len(sequences), shape.rows
        block_size, num_rows = self._limits.block_size, count * rows
        ids = chain.from_iterable(chain.from_iterable(sequence.rows for sequence in sequences))
        views["ids"][: 2 * num_rows] = np.fromiter(ids, np.int32, 2 * num_rows)
        views["ids"][2 * num_rows : 2 * shape.sequences * rows] = 0
        views["cached"][:count] = [sequence.num_cached for sequence in sequences]
        views["cached"][count : shape.sequences] = 0
        views["select"][: shape.sequences] = np.arange(1, shape.sequences + 1) * rows - 1
        tables = views["tables"][: shape.sequences * shape.blocks].reshape(-1, shape.blocks)
        tables[:] = self._limits.num_blocks
        pool_rows = views["pool_rows"][: shape.sequences * rows].reshape(-1, rows)
        pool_rows[:] = self._spare_row
        for i, sequence in enumerate(sequences):
            assert len(sequence.rows) == rows, "a step's sequences have equally many rows"
            table = np.asarray(sequence.block_table, dtype=np.int32)
            used = -(-sequence.num_cached // block_size)
            tables[i, :used] = table[:used]
            at = np.arange(sequence.num_cached, sequence.num_cached + rows)
            pool_rows[i] = table[at // block_size] * block_size + at % block_size
        end = self._tables_start + tables.size
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


class KVPool:
    """`tiles` is what the engine reads, `new_kv` what it writes: keys and values of the new rows,
    of `num_layers` layers after another at aligned addresses."""

    def __init__(
        self,
        config: ModelConfig,
        limits: Limits,
        dtype: torch.dtype,
        num_layers: int,
        device: torch.device,
    ):
        self._config = config
        self._block_size = limits.block_size
        self._num_layers = num_layers
        self._heads = config.num_layers * 2 * config.num_key_value_heads
        num_tiles, *tile = pool_shape(config, limits)
        # a part of an engine gets the pool from its first layer on, in the shape of the whole
        tiles = torch.zeros(num_tiles + self._heads, *tile, dtype=dtype, device=device)
        self.tiles = tiles[:num_tiles]
        self._layer_heads = (
            torch.arange(self._heads, device=device).view(config.num_layers, 1, -1)
            * limits.block_size
        )
        rows = max(limits.max_batch, limits.max_step_rows)
        _, stride = new_kv_values(config, num_layers, rows, dtype.itemsize)
        self.new_kv = torch.empty(
            config.num_layers // num_layers * stride, dtype=dtype, device=device
        )

    def write(self, pool_rows: Tensor) -> None:
        """Put the new rows' keys and values to their places, block * block_size + offset [rows]:
        tiles of a block lie one after another, head by head."""
        config, size = self._config, self._block_size
        rows = pool_rows.long()
        first = rows // size * (self._heads * size) + rows % size
        places = first.view(1, -1, 1) + self._layer_heads  # [layers, rows, 2 * kv_heads]
        values, stride = new_kv_values(config, self._num_layers, len(rows), self.new_kv.itemsize)
        new = self.new_kv[: config.num_layers // self._num_layers * stride].view(-1, stride)
        new = new[:, :values].reshape(-1, config.head_dim)
        self.tiles.view(-1, config.head_dim).index_copy_(0, places.flatten(), new)


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Work inside goes to `stream`, behind what was asked for before; what is asked for afterwards
    waits for it."""
    if stream is None:
        yield
        return
    torch.cuda.set_device(stream.device)
    before = torch.cuda.current_stream(stream.device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


class TrtRuntime(EngineRuntime):
    """`Runtime` on one engine file. Sequences with one new row run together; any other runs by
    itself."""

    def __init__(self, file: EngineFile):
        super().__init__(file)
        library, plan, manifest, config, limits, *_, device = file
        self._tensors = tensors = file.tensors
        self._profiles = profiles(manifest.limits)
        if tensors.is_bound:
            self._engine = TrtParts(library, plan, tensors, device, self._stream_handle)
            self._kept[ROTARY] = rotary_table(config, manifest.limits.max_seq_len, device)
            num_layers = tensors.layers_at_a_time
        else:
            known = tensors.inputs(WHOLE), tensors.outputs(WHOLE)
            self._engine = TrtEngine(library, plan, *known, device, self._stream_handle)
            num_layers = config.num_layers
        self._inputs = StepInputs(limits, limits.max_batch, device)
        dtype = getattr(torch, tensors.io_dtype)
        self._pool = KVPool(config, limits, dtype, num_layers, device)
        self._kept |= {"kv_pool": self._pool.tiles, NEW_KV: self._pool.new_kv}
        for profile in range(len(self._profiles)):
            self._engine.bind(profile, self._kept)
        self._captured: dict[StepShape, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        found: dict[int, Logits] = {}
        with on_stream(self._stream):
            single = [i for i, sequence in enumerate(batch.sequences) if len(sequence.rows) == 1]
            others = [[i] for i in range(len(batch.sequences)) if i not in single]
            for step in [single, *others] if single else others:
                logits = self._step([batch.sequences[i] for i in step])
                found |= {i: Logits(logits.text[at], logits.audio[at]) for at, i in enumerate(step)}
            rows = [found[i] for i, sequence in enumerate(batch.sequences) if sequence.sample]
            empty = Logits(*(logits[:0].clone() for logits in self._logits))
            return Logits(*map(torch.stack, zip(*rows, strict=True))) if rows else empty

    def decode_again(self, batch: int, cached: int) -> Callable[[], None]:
        """A decode step of `batch` sequences with so many cached rows, to be run again: for
        measurements."""
        shape = self._shape(batch, 1, cached)
        return lambda: self._run(shape)

    @property
    def scratch_bytes(self) -> int:
        """Memory for what the network computes on its way, of the largest step."""
        assert self._engine is not None
        return self._engine.memory_bytes

    def close(self) -> None:
        self._captured.clear()
        super().close()

    def _step(self, sequences: Sequence[ScheduledSequence]) -> Logits:
        """Logits of every sequence's last row; they all have equally many rows."""
        cached = max(sequence.num_cached for sequence in sequences)
        shape = self._shape(len(sequences), len(sequences[0].rows), cached)
        self._inputs.put(sequences, shape)
        self._run(shape)
        return Logits(*(logits[: len(sequences)].clone() for logits in self._logits))

    def _shape(self, sequences: int, rows: int, cached: int) -> StepShape:
        blocks = max(1, -(-cached // self.limits.block_size))
        if rows == 1:
            sequences = _next_size(sequences, self.limits.max_batch)
            blocks = _next_size(blocks, self.limits.max_blocks)
        return StepShape(sequences, rows, blocks)

    def _run(self, shape: StepShape) -> None:
        if shape.rows > 1 or self._stream is None:
            self._run_plainly(shape)
            return
        if shape not in self._captured:
            # sets the library up for these sizes, which must not happen during capture
            self._run_plainly(shape)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, stream=self._stream):
                self._run_plainly(shape)
            self._captured[shape] = graph
        self._captured[shape].replay()

    def _run_plainly(self, shape: StepShape) -> None:
        assert self._engine is not None
        sizes = shape.sequences, shape.rows, shape.blocks
        profile = next(i for i, profile in enumerate(self._profiles) if profile.takes(*sizes))
        shapes = self._tensors.step_shapes(*sizes, self.limits)
        self._engine.bind(profile, self._inputs.tensors(), shapes)
        self._engine.run(profile, self._stream_handle)
        self._pool.write(self._inputs.pool_rows(shape.sequences * shape.rows))


def _next_size(size: int, most: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, ..., at most `most`: few graphs, and little padding."""
    step = 1
    while step < size:
        step = step * 3 // 2 if step & (step - 1) == 0 and step > 1 else -(-step * 4 // 3)
    return min(step, most)
