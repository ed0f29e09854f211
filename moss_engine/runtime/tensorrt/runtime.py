"""The TensorRT runtime: an engine file of ours, or of TensorRT-RTX, over a paged pool in torch's
memory.

The engine reads the pool through block tables and returns the new rows' keys and values, which are
scattered into it behind the step. Decode steps run as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.engine_manifest import EngineManifest
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.runtime.tensorrt.engine import TrtEngine, check_tensors
from moss_engine.runtime.tensorrt.inputs import StepInputs, StepShape
from moss_engine.runtime.tensorrt.library import Library
from moss_engine.runtime.tensorrt.part_tensors import layers_at_a_time
from moss_engine.runtime.tensorrt.parts import TrtParts
from moss_engine.runtime.tensorrt.pool import KVPool
from moss_engine.runtime.tensorrt.stream import on_stream
from moss_engine.runtime.tensorrt.tensors import (
    AUDIO_LOGITS,
    LOGITS,
    NEW_KV,
    ROTARY,
    Profile,
    io_dtype_of,
    outputs,
    rotary_table,
    step_inputs,
    step_shapes,
)


class TrtRuntime(LogitsRuntime):
    """`Runtime` on one engine file. Sequences with one new row run together; any other runs by
    itself."""

    def __init__(
        self,
        library: Library,
        plan: Any,
        manifest: EngineManifest,
        config: ModelConfig,
        limits: Limits,
        weights: Mapping[str, Tensor],
        info: RuntimeInfo,
        device: torch.device,
        *,
        graphs: bool = True,
    ):
        """weights: `bound_weights` for an engine that has them bound, else nothing; they are read
        where they lie."""
        self.limits = limits
        self.info = info
        self._config = config
        self._device = device
        self._graphs = graphs and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        dtype = io_dtype_of(manifest.dtype, wide=library.wide_io)
        is_bound = manifest.weights == "bound"
        if is_bound:
            weights = {**weights, ROTARY: rotary_table(config, manifest.max_seq_len, device)}
        self._engine: TrtEngine | TrtParts | None = self._make_engine(
            library, plan, manifest, dtype
        )
        self._profiles = [_profile(shapes) for shapes in self._engine.profile_shapes]
        self._inputs = StepInputs(limits, limits.max_batch, device)
        num_layers = layers_at_a_time(config) if is_bound else config.num_layers
        self._pool = KVPool(config, limits, getattr(torch, dtype), num_layers, device)
        self._logits = Logits(
            torch.empty(limits.max_batch, config.vocab_size, device=device),
            torch.empty(limits.max_batch, config.audio_vocab_size, device=device),
        )
        self._kept = {
            **weights,
            "kv_pool": self._pool.tiles,
            NEW_KV: self._pool.new_kv,
            LOGITS: self._logits.text,
            AUDIO_LOGITS: self._logits.audio,
        }
        for profile in range(len(self._profiles)):
            self._engine.bind(profile, self._kept)
        self._captured: dict[StepShape, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        sampled = [i for i, sequence in enumerate(batch.sequences) if sequence.sample]
        found: dict[int, Logits] = {}
        with on_stream(self._stream):
            single = [i for i, sequence in enumerate(batch.sequences) if len(sequence.rows) == 1]
            steps = ([single] if single else []) + [
                [i] for i in range(len(batch.sequences)) if i not in single
            ]
            for step in steps:
                logits = self._step([batch.sequences[i] for i in step])
                found |= {i: Logits(logits.text[at], logits.audio[at]) for at, i in enumerate(step)}
            text, audio = ([found[i][channel] for i in sampled] for channel in range(2))
            return Logits(
                *(
                    torch.stack(rows) if rows else empty[:0].clone()
                    for rows, empty in zip((text, audio), self._logits, strict=True)
                )
            )

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
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._kept.clear()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def _make_engine(
        self, library: Library, plan: Any, manifest: EngineManifest, dtype: str
    ) -> TrtEngine | TrtParts:
        config, block_size, stream = self._config, self.limits.block_size, self._stream_handle()
        if manifest.weights == "bound":
            length = manifest.max_seq_len
            return TrtParts(library, plan, config, block_size, length, dtype, self._device, stream)
        check = check_tensors(step_inputs(config, block_size, dtype), outputs(config, dtype))
        return TrtEngine(library, plan, check, self._device, stream)

    def _step(self, sequences: Sequence[ScheduledSequence]) -> Logits:
        """Logits of every sequence's last row; they all have equally many rows."""
        shape = self._shape(
            len(sequences), len(sequences[0].rows), max(s.num_cached for s in sequences)
        )
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
            self._run_plainly(
                shape
            )  # sets the library up for these sizes, which must not happen during capture
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, stream=self._stream):
                self._run_plainly(shape)
            self._captured[shape] = graph
        self._captured[shape].replay()

    def _run_plainly(self, shape: StepShape) -> None:
        assert self._engine is not None
        profile = next(
            i
            for i, profile in enumerate(self._profiles)
            if profile.takes(shape.sequences, shape.rows, shape.blocks)
        )
        shapes = step_shapes(shape.sequences, shape.rows, shape.blocks, self._config, self.limits)
        self._engine.bind(profile, self._inputs.tensors(), shapes)
        self._engine.run(profile, self._stream_handle())
        self._pool.write(self._inputs.pool_rows(shape.sequences * shape.rows))

    def _stream_handle(self) -> int:
        return 0 if self._stream is None else self._stream.cuda_stream


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
