"""The TensorRT runtime: an engine file of ours, or of TensorRT-RTX, over a paged pool in torch's memory.

The engine reads the pool through block tables and returns the new rows' keys and values, which are scattered into it
behind the step. Decode steps run as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import stream_parts
from moss_engine.runtime.base import Limits, Logits, RuntimeInfo, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.engine_manifest import EngineManifest, open_engine, what_is_wanted
from moss_engine.runtime.memory import require_memory
from moss_engine.runtime.trt_engine import TrtEngine, check_tensors
from moss_engine.runtime.trt_inputs import StepInputs, StepShape
from moss_engine.runtime.trt_library import Library, compute_capability, load_library
from moss_engine.runtime.trt_part_tensors import bound_weight, layers_at_a_time, new_kv_values
from moss_engine.runtime.trt_parts import TrtParts
from moss_engine.runtime.trt_tensors import (
    AUDIO_LOGITS,
    LOGITS,
    NEW_KV,
    ROTARY,
    Profile,
    base_dtype,
    border_dtype,
    outputs,
    pool_shape,
    rotary_table,
    step_inputs,
    step_shapes,
    weight_inputs,
)


class TrtRuntime:
    """`Runtime` on one engine file. Sequences with one new row run together; any other runs by itself."""

    def __init__(self, library: Library, plan: Any, manifest: EngineManifest, config: ModelConfig, limits: Limits,
                 weights: Mapping[str, Tensor], info: RuntimeInfo, device: torch.device, *, graphs: bool = True):
        """weights: `bound_weights` for an engine that has them bound, else nothing; they are read where they lie."""
        self.limits = limits
        self.info = info
        self._config = config
        self._device = device
        self._graphs = graphs and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        dtype = border_dtype(manifest.dtype, wide=library.wide_border)
        kind = getattr(torch, dtype)
        self._engine: TrtEngine | TrtParts | None
        if manifest.weights == "bound":
            weights = {**weights, ROTARY: rotary_table(config, manifest.max_seq_len, device)}
            self._engine = TrtParts(library, plan, config, limits.block_size, manifest.max_seq_len, dtype, device,
                                    self._stream_handle())
        else:
            check = check_tensors(step_inputs(config, limits.block_size, dtype), outputs(config, dtype))
            self._engine = TrtEngine(library, plan, check, device, self._stream_handle())
        self._profiles = [_profile(shapes) for shapes in self._engine.profile_shapes]
        most = limits.max_batch
        self._inputs = StepInputs(limits, most, device)
        self._heads = config.num_layers * 2 * config.num_key_value_heads
        pieces, *piece = pool_shape(config, limits)
        self._pool = torch.zeros(pieces + self._heads, *piece, dtype=kind, device=device)[:pieces]
        self._layer_heads = torch.arange(self._heads, device=device).view(config.num_layers, 1, -1) * limits.block_size
        rows = max(most, limits.max_step_rows)
        self._kv_layers = layers_at_a_time(config) if manifest.weights == "bound" else config.num_layers
        _, stride = new_kv_values(config, self._kv_layers, rows, kind.itemsize)
        self._new_kv = torch.empty(config.num_layers // self._kv_layers * stride, dtype=kind, device=device)
        self._logits = Logits(*(torch.empty(most, size, device=device)
                                for size in (config.vocab_size, config.audio_vocab_size)))
        self._kept = {**weights, "kv_pool": self._pool, NEW_KV: self._new_kv, LOGITS: self._logits.text,
                      AUDIO_LOGITS: self._logits.audio}
        for profile in range(len(self._profiles)):
            self._engine.bind(profile, self._kept)
        self._captured: dict[StepShape, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        """See `Runtime`; a batch without a sampled sequence gives empty logits."""
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        sampled = [i for i, sequence in enumerate(batch.sequences) if sequence.sample]
        found: dict[int, Logits] = {}
        with _on(self._stream):
            single = [i for i, sequence in enumerate(batch.sequences) if len(sequence.rows) == 1]
            steps = ([single] if single else []) + [[i] for i in range(len(batch.sequences)) if i not in single]
            for step in steps:
                logits = self._step([batch.sequences[i] for i in step])
                found |= {i: Logits(logits.text[at], logits.audio[at]) for at, i in enumerate(step)}
            text, audio = ([found[i][channel] for i in sampled] for channel in range(2))
            return Logits(*(torch.stack(rows) if rows else empty[:0].clone()
                            for rows, empty in zip((text, audio), self._logits, strict=True)))

    def decode_again(self, batch: int, cached: int) -> Callable[[], None]:
        """A decode step of `batch` sequences with so many cached rows, to be run again: for measurements."""
        shape = self._shape(batch, 1, cached)
        return lambda: self._run(shape)

    @property
    def scratch_bytes(self) -> int:
        """Memory for what the network computes on its way, of the largest step."""
        assert self._engine is not None
        return self._engine.memory_bytes

    def close(self) -> None:
        self._captured.clear()
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._kept.clear()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def _step(self, sequences: Sequence[ScheduledSequence]) -> Logits:
        """Logits of every sequence's last row; they all have equally many rows."""
        shape = self._shape(len(sequences), len(sequences[0].rows), max(s.num_cached for s in sequences))
        self._inputs.put(sequences, shape)
        self._run(shape)
        return Logits(*(logits[: len(sequences)].clone() for logits in self._logits))

    def _shape(self, sequences: int, rows: int, cached: int) -> StepShape:
        blocks = max(1, -(-cached // self.limits.block_size))
        if rows == 1:
            sequences = _next_size(sequences, self.limits.max_batch)
            blocks = _next_size(blocks, self._inputs.max_blocks)
        return StepShape(sequences, rows, blocks)

    def _run(self, shape: StepShape) -> None:
        if shape.rows > 1 or not self._graphs:
            self._run_plainly(shape)
            return
        if shape not in self._captured:
            self._run_plainly(shape)  # sets the library up for these sizes, which must not happen during capture
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, stream=self._stream):
                self._run_plainly(shape)
            self._captured[shape] = graph
        self._captured[shape].replay()

    def _run_plainly(self, shape: StepShape) -> None:
        assert self._engine is not None
        profile = next(i for i, profile in enumerate(self._profiles)
                       if profile.takes(shape.sequences, shape.rows, shape.blocks))
        shapes = step_shapes(shape.sequences, shape.rows, shape.blocks, self._config, self.limits)
        self._engine.bind(profile, self._inputs.tensors(), shapes)
        self._engine.run(profile, self._stream_handle())
        self._write_pool(shape.sequences * shape.rows)

    def _write_pool(self, num_rows: int) -> None:
        """Keys and values of the new rows into their blocks: pieces of a block lie one after another, head by head."""
        block_size, head_dim = self.limits.block_size, self._config.head_dim
        rows = self._inputs.pool_rows(num_rows).long()
        first = rows // block_size * (self._heads * block_size) + rows % block_size
        places = (first.view(1, -1, 1) + self._layer_heads).flatten()  # [layers * rows * 2 * kv_heads]
        values, stride = new_kv_values(self._config, self._kv_layers, num_rows, self._new_kv.itemsize)
        new = self._new_kv[: self._config.num_layers // self._kv_layers * stride].view(-1, stride)[:, :values]
        self._pool.view(-1, head_dim).index_copy_(0, places, new.reshape(-1, head_dim))

    def _stream_handle(self) -> int:
        return 0 if self._stream is None else self._stream.cuda_stream


class _on:
    """Work inside goes to `stream`, behind what was asked for before; what is asked for afterwards waits for it."""

    def __init__(self, stream: torch.cuda.Stream | None):
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)
            self._before = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(self._before)
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._before.wait_stream(self._stream)
            torch.cuda.set_stream(self._before)


def _next_size(size: int, most: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, ..., at most `most`: few graphs, and little padding."""
    step = 1
    while step < size:
        step = step * 3 // 2 if step & (step - 1) == 0 and step > 1 else -(-step * 4 // 3)
    return min(step, most)


def _profile(shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> Profile:
    """What an engine's profile takes, out of the shapes of its inputs."""
    sequences, rows = (tuple(shape[axis] for shape in shapes["ids"]) for axis in range(2))
    blocks = tuple(shape[1] for shape in shapes["tables"])
    return Profile("", sequences, rows, blocks)  # pyright: ignore[reportArgumentType]


def bound_weights(library: Library, dtype: str, layout: Iterable[tuple[str, Tensor]],
                  device: torch.device) -> dict[str, Tensor]:
    """The layout's tensors as an engine of this dtype reads them: where nothing has to change, they are not copied and
    may serve another runtime too.
    """
    kind = getattr(torch, border_dtype(dtype, wide=library.wide_border))
    return {name: bound_weight(name, tensor.to(device), kind, turned=library.wide_border) for name, tensor in layout}


def load_trt_runtime(config: EngineConfig, limits: Limits, device: torch.device) -> TrtRuntime:
    """The runtime of `--runtime tensorrt` and `tensorrt_rtx` for the engine file of `--engine`.

    Raises MissingPackageError, EngineFileError with the field that differs, CheckpointError or ConfigError.
    """
    library = load_library(config.runtime)
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    assert config.engine is not None
    manifest, plan = open_engine(
        config.engine, what_is_wanted(config, limits, library.version, compute_capability(library, device)))
    border = border_dtype(manifest.dtype, wide=library.wide_border)
    kind = getattr(torch, border)
    specs = weight_inputs(model, manifest.max_seq_len, border if manifest.weights == "bound" else manifest.dtype)
    weight_bytes = sum(torch.Size(spec.shape).numel() * getattr(torch, spec.dtype).itemsize for spec in specs.values())
    require_memory(device, weight_bytes, torch.Size(pool_shape(model, limits)).numel() * kind.itemsize)
    weights = {}
    if manifest.weights == "bound":
        rounded = stream_parts(config.checkpoint, model, getattr(torch, base_dtype(manifest.dtype)))
        weights = bound_weights(library, manifest.dtype, rounded, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    info = RuntimeInfo(library.backend, library.version, name, manifest.dtype, config.checkpoint.resolve().name,
                       manifest.plan_digest)
    return TrtRuntime(library, plan, manifest, model, limits, weights, info, device)
