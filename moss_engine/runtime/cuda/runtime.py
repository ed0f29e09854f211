"""The torch runtime on an NVIDIA GPU: Triton kernels, paged KV, and a CUDA graph for every batch
size; from a checkpoint folder, or with random weights.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from moss_engine.api.errors import ConfigError
from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.kernels.lm.attention import PagedAttention, Pool
from moss_engine.models.checkpoint import expected_tensors, refuse_tied, stream_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import load_scales
from moss_engine.models.layout import Bits
from moss_engine.models.network import rotary_pairs
from moss_engine.runtime.base import (
    BatchSampling,
    Limits,
    Logits,
    ScheduledBatch,
    ScheduledSequence,
    check_batch,
)
from moss_engine.runtime.cuda.network import CudaNetwork
from moss_engine.runtime.cuda.programs import (
    DeviceInputs,
    LogitsBuffer,
    Program,
    RowsShape,
    batch_sizes,
    capture,
    make_programs,
    rows_shapes,
)
from moss_engine.runtime.cuda.sampler import KernelSampler
from moss_engine.runtime.cuda.weights import (
    Float8,
    Weights,
    allocate,
    fill,
    fill_at_random,
    runtime_info,
)
from moss_engine.runtime.sampler import LogitsRuntime

log = logging.getLogger(__name__)


class CudaRuntime(LogitsRuntime):
    """`Runtime` on one GPU.

    Batches of one row a sequence replay the decode graph of the next power of two; all others
    replay a fill graph of enough rows and then, for the sequences that are sampled, a finish graph.
    Rows are drawn by a graph behind these, by what the host works out and sends while they run; for
    what was drawn the host waits once a step. `graphs` False runs the same kernels one by one. All
    graphs are captured when the runtime is made. `kv_int8` keeps keys and values in 8 bits with two
    scales for every row and head.
    """

    def __init__(
        self,
        config: ModelConfig,
        limits: Limits,
        weights: Weights,
        info: RuntimeInfo,
        *,
        graphs: bool = True,
        kv_int8: bool = False,
    ):
        self.limits = limits
        self.info = info
        self._device = weights.text_table.device
        self._thread_id: int | None = None
        self._enter_thread()
        self._batches = batch_sizes(limits.max_batch)
        self._shapes = rows_shapes(config, limits)
        # kept here, as a graph holds addresses and keeps nothing alive
        self._network: CudaNetwork | None = CudaNetwork(
            config,
            weights,
            self._make_attention(config, weights.text_table.dtype, kv_int8),
            max(self._batches[-1], self._shapes[-1].rows),
        )
        self._kernel_sampler = KernelSampler(config, self._batches[-1], self._device)
        self.sampler = self._kernel_sampler
        self._inputs = DeviceInputs(limits, self._shapes, self._device)
        self._logits = LogitsBuffer(config, self._batches[-1], self._device)
        self._programs = make_programs(
            self._network,
            self._inputs,
            self._logits,
            self._kernel_sampler.draws,
            self._batches,
            self._shapes,
        )
        if graphs:
            capture(self._programs, self._device)

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        self._run(batch)
        num_sampled = sum(sequence.sample for sequence in batch.sequences)
        logits = self._logits.first(num_sampled, text_logits=batch.text_logits)
        return Logits(logits.text.clone(), logits.audio.clone())

    @torch.inference_mode()
    def step(self, batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        size, text_logits = self._run(batch), batch.text_logits
        if self._kernel_sampler.put(sampling):
            self._programs[Program("draw", size, text_logits)]()
            return self._kernel_sampler.read(sampling)
        logits = self._logits.first(len(sampling.sequences), text_logits=text_logits)
        return self.sampler.sample(logits, sampling)

    def decode_again(
        self, batch: int, *, text_logits: bool = True, draw: bool = False
    ) -> Callable[[], None]:
        """What a decode step of this batch size runs on the device, to be run again: for
        measurements."""
        names = ("decode", "draw") if draw else ("decode",)
        programs = [self._programs[Program(name, batch, text_logits)] for name in names]

        def run() -> None:
            for program in programs:
                program()

        return run

    def close(self) -> None:
        self._programs.clear()
        self._network = None
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
                torch.cuda.empty_cache()
            except (
                RuntimeError
            ):  # after a fault nothing works until the process ends, and then all memory is free
                log.exception("the GPU does not answer any more")

    def _enter_thread(self) -> None:
        # CUDA keeps the current device per thread, and kernels are launched on that
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)

    def _make_attention(
        self, config: ModelConfig, dtype: torch.dtype, kv_int8: bool
    ) -> PagedAttention:
        """Attention over a cleared pool, of which the last block belongs to nobody."""
        limits = self.limits
        shape = (
            config.num_layers,
            limits.num_blocks + 1,
            config.num_key_value_heads,
            limits.block_size,
            config.head_dim,
        )
        scales = None
        if kv_int8:
            dtype, shape = torch.int16, (*shape[:-1], config.head_dim // 2)  # two values in each
            scales = torch.zeros(shape[:-1], dtype=torch.int32, device=self._device)
        keys, values = (torch.zeros(shape, dtype=dtype, device=self._device) for _ in range(2))
        pool = Pool(keys, values, scales)
        max_groups = max(2 * self._batches[-1], *(2 * shape.max_tiles for shape in self._shapes))
        rope = rotary_pairs(config, limits.max_seq_len, self._device)
        return PagedAttention(config, pool, rope, max_groups)

    def _run(self, batch: ScheduledBatch) -> int:
        """Run a step, sampled sequences first; returns the batch size whose logits it leaves."""
        assert self._programs, "the runtime was closed"
        self._enter_thread()
        check_batch(batch, self.limits)
        sequences = sorted(batch.sequences, key=lambda sequence: not sequence.sample)
        num_sampled = sum(sequence.sample for sequence in sequences)
        if all(len(sequence.rows) == 1 for sequence in sequences):
            size = self._batch_of(len(sequences))
            self._inputs.put_decode(sequences, size)
            self._programs[Program("decode", size, batch.text_logits)]()
            return size
        shape, size = self._shape_of(sequences), self._batch_of(max(1, num_sampled))
        self._inputs.put_rows(sequences, shape, num_sampled, size)
        self._programs[Program("fill", shape.rows)]()
        if num_sampled:
            self._programs[Program("finish", size, batch.text_logits)]()
        return size

    def _batch_of(self, count: int) -> int:
        return next(size for size in self._batches if size >= count)

    def _shape_of(self, sequences: list[ScheduledSequence]) -> RowsShape:
        num_rows = sum(len(sequence.rows) for sequence in sequences)
        return next(shape for shape in self._shapes if shape.rows >= num_rows)


OLDEST_CAPABILITY, OLDEST_FLOAT8_CAPABILITY = (8, 0), (8, 9)


def load_cuda_runtime(
    folder: Path,
    limits: Limits,
    *,
    device: torch.device,
    dtype: torch.dtype,
    float8: Float8 = Float8.NONE,
    bits: Bits | None = None,
    kv_int8: bool = False,
) -> CudaRuntime:
    """Load a checkpoint folder, one tensor at a time through host memory; the parts that `bits`
    names have 8 or 4, as they are stored or rounded plainly on their way.

    Raises CheckpointError, or ConfigError for a device or sizes that it cannot run.
    """
    _require_capability(device, float8)
    config = ModelConfig.from_file(folder / "config.json")
    scales = load_scales(folder, config) if float8 is not Float8.NONE else None
    weights, packed = allocate(config, dtype, device, float8, bits), bits is not None
    tensors = stream_tensors(
        folder, expected_tensors(config), dtype=dtype, keep_int8=packed, keep_int4=packed
    )
    fill(weights, config, tensors, scales)
    refuse_tied(folder)
    info = runtime_info(weights, folder)
    return CudaRuntime(config, limits, weights, info, kv_int8=kv_int8)


def make_random_runtime(
    config: ModelConfig,
    limits: Limits,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    float8: Float8 = Float8.NONE,
    bits: Bits | None = None,
    kv_int8: bool = False,
) -> CudaRuntime:
    """A network with random weights made on the device: speed, memory and numerics do not depend on
    their values."""
    _require_capability(device, float8)
    weights = allocate(config, dtype, device, float8, bits)
    fill_at_random(weights, config, seed)
    info = runtime_info(weights, f"random, seed {seed}")
    return CudaRuntime(config, limits, weights, info, kv_int8=kv_int8)


def _require_capability(device: torch.device, float8: Float8) -> None:
    capability = torch.cuda.get_device_capability(device)
    oldest = OLDEST_CAPABILITY if float8 is Float8.NONE else OLDEST_FLOAT8_CAPABILITY
    if capability < oldest:
        found, needed = (".".join(map(str, version)) for version in (capability, oldest))
        what, use = (
            ("the CUDA runtime", "--device cpu")
            if float8 is Float8.NONE
            else ("float8", "--dtype bfloat16")
        )
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found} and {what} needs "
            f"{needed}; use {use}."
        )
