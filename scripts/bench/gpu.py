"""Times of work on a GPU, what this GPU can do at most, and the least time that a step of the
network could take there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import FORMATS as BITS
from moss_engine.models.layout import bits_of_format
from moss_engine.runtime import memory
from moss_engine.runtime.base import BatchSampling, Limits, ScheduledSequence, SequenceSampling
from moss_engine.runtime.make import FLOAT8
from scripts.bench.common import Report

if TYPE_CHECKING:
    from moss_engine.runtime.cuda.runtime import CudaRuntime

WARM_UPS, REPEATS = 3, 30
REST_S = 0.02
"""Rest before timing arithmetic that fills the GPU. Under sustained load an H200 meets its power
limit and lowers its clock from 1,980 to 1,575 MHz."""
CONTEXT_ROWS = 600
BLOCKS_EACH = CONTEXT_ROWS // 16 + 2
"""KV blocks of each sequence in the decode steps that are timed."""
FORMATS = ("bfloat16", *FLOAT8, *BITS)


def device_times_ms(run: Callable[[], object], *, rest_s: float = 0.0) -> list[float]:
    """Device time of single calls, between events around each; rested before, or back to back."""
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize()
    events = []
    for _ in range(REPEATS):
        if rest_s:
            torch.cuda.synchronize()
            time.sleep(rest_s)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def wall_times_ms(run: Callable[[], object], *, rest_s: float = 0.0) -> list[float]:
    """Wall time of single calls; the GPU is idle before, for `rest_s`, and after each."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times = []
    for i in range(WARM_UPS + REPEATS):
        wait()
        time.sleep(rest_s)
        start = time.perf_counter()
        run()
        wait()
        if i >= WARM_UPS:
            times.append((time.perf_counter() - start) * 1e3)
    return times


def measure(
    report: Report,
    name: str,
    clock: str,
    run: Callable[[], object],
    limit_ms: float | None = None,
    dtype: str = "",
    rest_s: float = 0.0,
) -> None:
    """Time a call by the "device" or "wall" clock and add it to the report's figures."""
    times_ms = (device_times_ms if clock == "device" else wall_times_ms)(run, rest_s=rest_s)
    add_figure(report, name, times_ms, clock, limit_ms, dtype)


def add_figure(
    report: Report,
    name: str,
    times_ms: list[float],
    note: str,
    limit_ms: float | None = None,
    dtype: str = "",
) -> None:
    """Write a time into the report's `figures` at once. `limit_ms` is the least that this run's
    ceilings allow, `note` the clock, `dtype` the number format of the weights, if there are any."""
    ordered = sorted(times_ms)
    found: dict[str, Any] = {"name": name, "median_ms": statistics.median(ordered)}
    found |= {"p90_ms": ordered[int(0.9 * (len(ordered) - 1))], "limit_ms": limit_ms}
    report.values.setdefault("figures", []).append({**found, "note": note, "dtype": dtype})
    share = f", {limit_ms / found['median_ms']:.0%} of the limit" if limit_ms else ""
    report.say(f"{dtype:<11}{name} ({note}): {found['median_ms']:.3f} ms{share}")
    report.save()


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reached in this run: reading memory, and dense products in bfloat16.

    `float8_flop_per_s` is the rate of float8 products, None on a GPU that has none.
    """

    read_bytes_per_s: float
    dense_flop_per_s: float
    float8_flop_per_s: float | None = None

    def least_ms(self, read_bytes: int, flop: int, float8_flop: int) -> float | None:
        """The time of reading or of computing, whichever is longer."""
        product_s = flop / self.dense_flop_per_s
        if float8_flop:
            if self.float8_flop_per_s is None:
                return None
            product_s += float8_flop / self.float8_flop_per_s
        return 1e3 * max(read_bytes / self.read_bytes_per_s, product_s)


def measure_ceilings() -> Ceilings:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def read_kernel(x_ptr, out_ptr, per_program, TILE: tl.constexpr):
        at = x_ptr + tl.program_id(0).to(tl.int64) * per_program + tl.arange(0, TILE)
        acc = tl.zeros([TILE], tl.int32)
        for start in tl.range(0, per_program, 4 * TILE):
            acc ^= tl.load(at + start) ^ tl.load(at + start + TILE)
            acc ^= tl.load(at + start + 2 * TILE) ^ tl.load(at + start + 3 * TILE)
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))

    source = torch.randint(-(2**31), 2**31 - 1, (1 << 30,), dtype=torch.int32, device="cuda")
    sums = torch.empty(528, dtype=torch.int32, device="cuda")
    per_program = source.numel() // 528 // 8192 * 8192

    def read() -> None:
        read_kernel[(528,)](source, sums, per_program, TILE=2048, num_warps=8)  # pyright: ignore

    read_s = statistics.median(device_times_ms(read)) / 1e3
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense_s = statistics.median(device_times_ms(lambda: a @ b, rest_s=REST_S)) / 1e3
    return Ceilings(528 * per_program * 4 / read_s, 2 * 8192**3 / dense_s, _float8_rate(a, b))


def _float8_rate(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Operations a second of the product of two square float8 matrices with one scale each."""
    if torch.cuda.get_device_capability() < (8, 9):
        return None
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device=a.device)
    times = device_times_ms(
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16), rest_s=REST_S
    )
    return 2 * len(a) ** 3 / statistics.median(times) * 1e3


VALUE_BYTES = {"bfloat16": 2, "int8": 1, "int4": 0.5 + 2 / 128}
"""Bytes of one weight of a layer. int4 has a 16-bit scale for each 128 weights, and 8-bit heads."""
FLOAT8_PARTS = {"float8": 1, "float8-all": 3}
"""How many of trunk, branches and heads, in this order, are float8."""


@dataclass(frozen=True)
class Needs:
    """What a step of a network has to read and to compute at least, in a number format."""

    config: ModelConfig
    dtype: str
    kv_int8: bool = False

    def weights(self, *, text_logits: bool = True) -> tuple[int, int, int]:
        """How many weights of trunk, branches and heads a step uses. Without `text_logits`, as
        while a reply speaks, these are all but the text head and most of the last text layer, of
        which only keys and values are needed."""
        config = self.config
        rows = config.num_attention_heads + config.num_key_value_heads
        layer = config.hidden_size * (2 * rows * config.head_dim + 3 * config.intermediate_size)
        kept = config.hidden_size * 2 * config.num_key_value_heads * config.head_dim
        branches = 2 * config.num_modality_layers * layer - (0 if text_logits else layer - kept)
        head_rows = config.audio_vocab_size + (config.vocab_size if text_logits else 0)
        return config.num_shared_layers * layer, branches, head_rows * config.hidden_size

    def weight_bytes(self, *, text_logits: bool = True) -> int:
        trunk, branches, heads = parts = self.weights(text_logits=text_logits)
        if self.dtype in FLOAT8_PARTS:
            return 2 * sum(parts) - sum(parts[: FLOAT8_PARTS[self.dtype]])
        value_bytes = VALUE_BYTES[self.dtype]
        return round((trunk + branches) * value_bytes + heads * max(1, value_bytes))

    def kv_row_bytes(self, *, text_logits: bool = True) -> int:
        """Bytes of keys and values that a step reads for each cached row."""
        row_bytes = memory.kv_row_bytes(self.config, int8=self.kv_int8)
        return row_bytes if text_logits else row_bytes - row_bytes // self.config.num_layers

    def decode_ms(
        self, ceilings: Ceilings, batch: int, context: int, *, text_logits: bool = True
    ) -> float | None:
        """The least time of a decode step of `batch` sequences with `context` cached rows each."""
        parts = self.weights(text_logits=text_logits)
        float8 = sum(parts[: FLOAT8_PARTS.get(self.dtype, 0)])
        kv_bytes = batch * context * self.kv_row_bytes(text_logits=text_logits)
        read_bytes = self.weight_bytes(text_logits=text_logits) + kv_bytes
        return ceilings.least_ms(read_bytes, 2 * batch * (sum(parts) - float8), 2 * batch * float8)

    def fill_ms(self, ceilings: Ceilings, rows: int, cached: int) -> float | None:
        """The least time of prefilling `rows` of one sequence, with logits of the last row only."""
        config, layers = self.config, self.weights()[:2]
        float8 = sum(layers[: FLOAT8_PARTS.get(self.dtype, 0)])
        read_bytes = self.weight_bytes() + (cached + rows) * self.kv_row_bytes()
        width = config.num_layers * config.num_attention_heads * config.head_dim
        attention = int(4 * width * rows * (cached + rows / 2))
        wide = 2 * rows * (sum(layers) - float8) + attention
        return ceilings.least_ms(read_bytes, wide, 2 * rows * float8)


def rows_of(count: int, config: ModelConfig, seed: int) -> tuple[Row, ...]:
    """Random rows: the first half text, the second half audio."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, config.sosp_token_id, (count,), generator=generator)
    text[count // 2 :] = config.modality_pad_token_id
    audio = torch.randint(0, config.eosp_token_id, (count,), generator=generator)
    return tuple(Row(int(a), int(b)) for a, b in zip(text, audio, strict=True))


def sequence(
    config: ModelConfig, index: int, cached: int, count: int, blocks_each: int = BLOCKS_EACH
) -> ScheduledSequence:
    """`count` new rows of a sequence, whose blocks in the pool are those of `index`."""
    table = tuple(range(index * blocks_each, (index + 1) * blocks_each))
    return ScheduledSequence(rows_of(count, config, index), cached, table, True)


def sampling(config: ModelConfig, batch: int, *, text_logits: bool) -> BatchSampling:
    """How a decode step of `batch` sequences draws its rows: all of them text if there are
    `text_logits`, else all of them audio."""
    modality = Modality.TEXT if text_logits else Modality.AUDIO
    values = ChannelSampling(temperature=0.8, top_k=40, top_p=0.95, repetition_penalty=1.1)
    names = tuple(map(str, range(batch)))
    parts = (
        SequenceSampling(name, (), 0, Sampling(values, values, 512, 0, seed), modality)
        for seed, name in enumerate(names)
    )
    return BatchSampling(tuple(parts), config.special, finished=names)


def make_runtime(
    config: ModelConfig,
    max_batch: int,
    kv_rows: int,
    dtype: str,
    max_step_rows: int = 512,
    *,
    device: torch.device,
    kv_int8: bool = False,
) -> CudaRuntime:
    """A runtime with random weights; raises ConfigError where memory is too small."""
    from moss_engine.runtime.cuda.runtime import make_random_runtime
    from moss_engine.runtime.cuda.weights import Float8, num_bytes

    bits = bits_of_format(config, dtype) if dtype in BITS else None
    float8 = FLOAT8.get(dtype, Float8.NONE)
    weight_bytes = num_bytes(config, torch.bfloat16, float8, bits)
    memory.require_memory(device, weight_bytes, kv_rows * memory.kv_row_bytes(config, int8=kv_int8))
    most_rows = min(config.max_position_embeddings, kv_rows, 4096)
    limits = Limits(16, kv_rows // 16, max_batch, max_step_rows, most_rows)
    return make_random_runtime(
        config,
        limits,
        device=device,
        dtype=torch.bfloat16,
        seed=0,
        float8=float8,
        bits=bits,
        kv_int8=kv_int8,
    )


def device_values(device: torch.device) -> dict[str, Any]:
    """What the figures depend on, for the report."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "weights": "random, seed 0"}
