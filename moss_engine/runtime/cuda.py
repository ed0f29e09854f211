"""The torch runtime on an NVIDIA GPU: Triton kernels, paged KV, and a CUDA graph for every batch size."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.errors import ConfigError
from moss_engine.models.checkpoint import expected_tensors, stream_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import load_scales
from moss_engine.models.load import TiedHeads
from moss_engine.models.network import rotary_tables
from moss_engine.runtime.base import (
    Limits,
    Logits,
    RuntimeInfo,
    ScheduledBatch,
    ScheduledSequence,
    TextBranch,
    check_batch,
    deferred_parts,
)
from moss_engine.runtime.cuda_draws import Draws
from moss_engine.runtime.cuda_inputs import DeviceInputs, RowsShape
from moss_engine.runtime.cuda_network import CudaNetwork
from moss_engine.runtime.cuda_weights import Float8, Weights, allocate, fill, fill_at_random
from moss_engine.runtime.kernels.launch import next_power_of_2
from moss_engine.runtime.kernels.paged import PagedAttention, Pool

log = logging.getLogger(__name__)

OLDEST_CAPABILITY, OLDEST_FLOAT8_CAPABILITY = (8, 0), (8, 9)
_TILE_QUERIES = 64
_Program = tuple[str, int, TextBranch, bool]


class CudaRuntime:
    """`Runtime` on one GPU.

    Batches of one row a sequence replay the decode graph of the next power of two; all others replay a fill graph of
    enough rows and then, for the sequences that are sampled, a finish graph. `graphs` False runs the same kernels one
    by one. All graphs are captured when the runtime is made. `draws` is what `forward_and_draw` draws by. With
    `deferred_text` it keeps the trunk's output of every row of the pool, so that text branches may be deferred.
    """

    def __init__(self, config: ModelConfig, limits: Limits, weights: Weights, info: RuntimeInfo, *,
                 graphs: bool = True, deferred_text: bool = False):
        self.limits = limits
        self.info = info
        table = weights.text_table
        self._device = table.device
        self._thread_id: int | None = None
        self._enter_thread()
        self._batches = _powers_of_two(limits.max_batch)
        self._shapes = rows_shapes(config, limits)
        pool_shape = (config.num_layers, limits.num_blocks + 1, config.num_key_value_heads, limits.block_size,
                      config.head_dim)
        pool = Pool(*(torch.zeros(pool_shape, dtype=table.dtype, device=self._device) for _ in range(2)))
        max_groups = max(2 * self._batches[-1], *(2 * shape.max_tiles for shape in self._shapes))
        rope = rope_table(config, limits.max_seq_len, self._device)
        attention = PagedAttention(config, pool, rope, max_groups)
        max_rows = max(self._batches[-1], self._shapes[-1].rows)
        # kept here, as a graph holds addresses and keeps nothing alive
        self._network: CudaNetwork | None = CudaNetwork(config, weights, attention, max_rows,
                                                        deferred_text=deferred_text)
        self.defers_text = deferred_text
        self.draws = Draws(config, self._batches[-1], self._device)
        self._inputs = DeviceInputs(limits, self._shapes, self._device)
        self._logits = Logits(*(torch.empty(self._batches[-1], size, device=self._device)
                                for size in (config.vocab_size, config.audio_vocab_size)))
        self._no_text = torch.zeros(1, config.vocab_size, device=self._device)
        self._programs = self._make_programs(self._network, deferred_text)
        if graphs:
            self._capture()

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        """See `Runtime`; a batch without a sampled sequence gives empty logits."""
        logits = self._logits_of(self._run(batch, draw=False), sum(sequence.sample for sequence in batch.sequences))
        return Logits(logits.text.clone(), logits.audio.clone())

    @torch.inference_mode()
    def forward_and_draw(self, batch: ScheduledBatch) -> None:
        """`forward`, and rows of the sampled sequences drawn by `draws`, which must have been given their values."""
        self._run(batch, draw=True)

    def decode_again(self, batch: int, text: TextBranch = TextBranch.SAMPLED, *,
                     draw: bool = False) -> Callable[[], None]:
        """What a decode step of this batch size runs on the device, to be run again: for measurements."""
        return self._programs["decode", batch, text, draw]

    def close(self) -> None:
        self._programs.clear()
        self._network = None
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
                torch.cuda.empty_cache()
            except RuntimeError:  # after a fault nothing works until the process ends, and then all memory is free
                log.exception("the GPU does not answer any more")

    def _enter_thread(self) -> None:
        # CUDA keeps the current device per thread, and kernels are launched on that
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)

    def _run(self, batch: ScheduledBatch, *, draw: bool) -> TextBranch:
        """Run a step, sampled sequences first; returns what became of the text branch."""
        assert self._programs, "the runtime was closed"
        self._enter_thread()
        check_batch(batch, self.limits)
        for parts in deferred_parts(batch, self.limits.max_step_rows):
            shape = self._shape_of(parts)
            self._inputs.put_rows(parts, shape, 0, 1)
            self._programs["fill_text", shape.rows, TextBranch.FILLED, False]()
        sequences = sorted(batch.sequences, key=lambda sequence: not sequence.sample)
        num_sampled = sum(sequence.sample for sequence in sequences)
        if all(len(sequence.rows) == 1 for sequence in sequences):
            size = self._batch_of(len(sequences))
            self._inputs.put_decode(sequences, size)
            self._programs["decode", size, batch.text, draw]()
            return batch.text
        text = TextBranch.SAMPLED if batch.text is TextBranch.SAMPLED else TextBranch.FILLED
        shape, size = self._shape_of(sequences), self._batch_of(max(1, num_sampled))
        self._inputs.put_rows(sequences, shape, num_sampled, size)
        self._programs["fill", shape.rows, TextBranch.FILLED, False]()
        if num_sampled:
            self._programs["finish", size, text, draw]()
        return text

    def _batch_of(self, count: int) -> int:
        return next(size for size in self._batches if size >= count)

    def _shape_of(self, sequences: list[ScheduledSequence]) -> RowsShape:
        num_rows = sum(len(sequence.rows) for sequence in sequences)
        return next(shape for shape in self._shapes if shape.rows >= num_rows)

    def _logits_of(self, text: TextBranch, count: int) -> Logits:
        """The first rows of what a program leaves behind: zeros for text logits that it does not compute."""
        is_sampled = text is TextBranch.SAMPLED
        return Logits(self._logits.text[:count] if is_sampled else self._no_text.expand(count, -1),
                      self._logits.audio[:count])

    def _make_programs(self, network: CudaNetwork, deferred_text: bool) -> dict[_Program, Callable[[], None]]:
        """By name, size, what becomes of the text branch, and whether rows are drawn at the end."""
        programs: dict[_Program, Callable[[], None]] = {}
        texts = [text for text in TextBranch if deferred_text or text is not TextBranch.DEFERRED]
        for batch, text, draw in product(self._batches, texts, (False, True)):
            logits, step, rows = self._logits_of(text, batch), self._inputs.decode(batch), self._inputs.finish(batch)
            text_logits = logits.text if text is TextBranch.SAMPLED else None
            draws = [partial(self.draws.run, text_logits, logits.audio)] if draw else []
            programs["decode", batch, text, draw] = _chain(partial(network.decode, step, logits, text), *draws)
            if text is not TextBranch.DEFERRED:
                programs["finish", batch, text, draw] = _chain(partial(network.finish, rows, logits, text), *draws)
        for shape in self._shapes:
            rows = self._inputs.rows(shape)
            programs["fill", shape.rows, TextBranch.FILLED, False] = partial(network.fill, rows)
            if deferred_text:
                programs["fill_text", shape.rows, TextBranch.FILLED, False] = partial(network.fill_text, rows)
        return programs

    @torch.inference_mode()
    def _capture(self) -> None:
        """Replace every program by its CUDA graph; they share one memory pool, as they never run at the same time."""
        memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        for key, program in self._programs.items():
            with torch.cuda.stream(stream):
                program()  # compiles kernels and sets libraries up, which must not happen during capture
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory, stream=stream):
                program()
            self._programs[key] = graph.replay


def _chain(*programs: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for program in programs:
            program()

    return run


def rows_shapes(config: ModelConfig, limits: Limits) -> list[RowsShape]:
    """Shapes of the fill graphs: 16, 32, then every 64 rows up to 512, then every 256, until max_step_rows fit."""
    sizes = [16, 32]
    while sizes[-1] < limits.max_step_rows:
        sizes.append(sizes[-1] + (32 if sizes[-1] < 64 else 64 if sizes[-1] < 512 else 256))
    sizes = sizes[: next(i for i, size in enumerate(sizes) if size >= limits.max_step_rows) + 1]
    per_kv = next_power_of_2(config.num_attention_heads // config.num_key_value_heads)
    tile_rows = max(1, _TILE_QUERIES // per_kv)
    return [RowsShape(size, tile_rows, min(size, size // tile_rows + limits.max_batch)) for size in sizes]


def rope_table(config: ModelConfig, num_positions: int, device: torch.device) -> Tensor:
    """float32 [positions, 2, head_dim / 2]: cosines, then sines."""
    positions = torch.arange(num_positions, device=device)
    half = config.head_dim // 2
    tables = rotary_tables(positions, config.head_dim, config.rope_theta, torch.float32)
    return torch.stack([table[:, 0, :half] for table in tables], dim=1).contiguous()


def _powers_of_two(largest: int) -> list[int]:
    return [1 << i for i in range((largest - 1).bit_length() + 1)]


def _require_capability(device: torch.device, float8: Float8) -> None:
    capability = torch.cuda.get_device_capability(device)
    oldest = OLDEST_CAPABILITY if float8 is Float8.NONE else OLDEST_FLOAT8_CAPABILITY
    if capability < oldest:
        found, needed = (".".join(map(str, version)) for version in (capability, oldest))
        what, use = ("the CUDA runtime", "--device cpu") if float8 is Float8.NONE else ("float8", "--dtype bfloat16")
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has compute capability {found} and {what} needs "
                          f"{needed}; use {use}.")


def _info(weights: Weights, source: str) -> RuntimeInfo:
    table = weights.text_table
    name = torch.cuda.get_device_name(table.device) if table.device.type == "cuda" else "CPU"
    linear = weights.trunk.layers[0].qkv.weight
    dtype = "float8" if linear.dtype is torch.float8_e4m3fn else str(linear.dtype).removeprefix("torch.")
    return RuntimeInfo("torch", torch.__version__, name, dtype, source)


def load_cuda_runtime(folder: Path, limits: Limits, *, device: torch.device, dtype: torch.dtype,
                      float8: Float8 = Float8.NONE, deferred_text: bool = False) -> CudaRuntime:
    """Load a checkpoint folder, one tensor at a time through host memory.

    Raises CheckpointError, or ConfigError for a device or sizes that it cannot run.
    """
    _require_capability(device, float8)
    config = ModelConfig.from_file(folder / "config.json")
    scales = load_scales(folder, config) if float8 is not Float8.NONE else None
    weights, tied = allocate(config, dtype, device, float8), TiedHeads(folder)

    def read() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream_tensors(folder, expected_tensors(config), dtype=dtype):
            tied.see(name, tensor)
            yield name, tensor

    fill(weights, config, read(), scales)
    tied.refuse()
    return CudaRuntime(config, limits, weights, _info(weights, str(folder)), deferred_text=deferred_text)


def make_random_runtime(config: ModelConfig, limits: Limits, *, device: torch.device, dtype: torch.dtype,
                        seed: int, float8: Float8 = Float8.NONE, deferred_text: bool = False) -> CudaRuntime:
    """A network with random weights made on the device: speed, memory and numerics do not depend on their values."""
    _require_capability(device, float8)
    weights = allocate(config, dtype, device, float8)
    fill_at_random(weights, config, seed)
    return CudaRuntime(config, limits, weights, _info(weights, f"random, seed {seed}"), deferred_text=deferred_text)
