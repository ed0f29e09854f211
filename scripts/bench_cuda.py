"""Speed of the CUDA runtime at the published size, with random weights, beside what this GPU can do at most.

    python -m scripts.bench_cuda --parts ceilings,decode,prefill --out OUT.json

Prints one table and writes the figures as JSON. Weights are random: time, memory and rounding do not depend on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.tokens import Row

if TYPE_CHECKING:
    from moss_engine.runtime.cuda import CudaRuntime

PUBLISHED = ModelConfig(
    hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    num_shared_layers=32, num_modality_layers=4, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=40960,
    vocab_size=151680, audio_vocab_size=16512, sosp_token_id=151646, eosp_token_id=16384,
    modality_pad_token_id=151667, audio_pad_token_id=512, eos_token_id=151645, pad_token_id=151643)
CONTEXT_ROWS = 600
CODES_PER_S = 12.5
REPEATS = 30


@dataclass(frozen=True)
class Figure:
    """One measured time; `limit_ms` is the least time that the ceilings of this run allow."""

    name: str
    median_ms: float
    p90_ms: float
    limit_ms: float | None = None
    note: str = ""


def device_times_ms(run: Callable[[], object], repeats: int = REPEATS, warm: int = 3) -> list[float]:
    """Times between two device events around one call."""
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    events = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def wall_times_ms(run: Callable[[], object], repeats: int = REPEATS, warm: int = 3) -> list[float]:
    """Host times of one call each, the device idle before and after."""
    times = []
    for i in range(warm + repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if i >= warm:
            times.append((time.perf_counter() - start) * 1e3)
    return times


def figure(name: str, times_ms: list[float], limit_ms: float | None = None, note: str = "") -> Figure:
    times_ms = sorted(times_ms)
    return Figure(name, statistics.median(times_ms), times_ms[int(0.9 * (len(times_ms) - 1))], limit_ms, note)


@dataclass(frozen=True)
class Ceilings:
    """What this GPU did in this run: reading memory, copying it, and dense bfloat16 products on random values."""

    read_bytes_per_s: float
    copy_bytes_per_s: float
    dense_flop_per_s: float


def measure_ceilings() -> Ceilings:
    import triton
    import triton.language as tl

    @triton.jit
    def read_kernel(x_ptr, out_ptr, per_program, TILE: tl.constexpr):
        at = x_ptr + tl.program_id(0).to(tl.int64) * per_program + tl.arange(0, TILE)
        acc = tl.zeros([TILE], tl.int32)
        for start in tl.range(0, per_program, 4 * TILE):
            acc ^= tl.load(at + start) ^ tl.load(at + start + TILE)
            acc ^= tl.load(at + start + 2 * TILE) ^ tl.load(at + start + 3 * TILE)
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))

    source = torch.randint(-(2**31), 2**31 - 1, (1 << 30,), dtype=torch.int32, device="cuda")
    target, sums = torch.empty_like(source), torch.empty(528, dtype=torch.int32, device="cuda")
    per_program = source.numel() // 528 // 8192 * 8192
    def read() -> None:
        read_kernel[(528,)](source, sums, per_program, TILE=2048, num_warps=8)  # pyright: ignore[reportCallIssue]

    read_s = statistics.median(device_times_ms(read)) / 1e3
    copy_s = statistics.median(device_times_ms(lambda: torch.bitwise_not(source, out=target))) / 1e3
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense_s = statistics.median(device_times_ms(lambda: a @ b)) / 1e3
    return Ceilings(528 * per_program * 4 / read_s, 2 * source.numel() * 4 / copy_s, 2 * 8192**3 / dense_s)


def step_parameters(config: ModelConfig) -> int:
    """Weights that one step with both branches reads."""
    heads = (config.vocab_size + config.audio_vocab_size) * config.hidden_size
    return config.num_layers * layer_parameters(config) + heads


def step_bytes(config: ModelConfig, float8: str = "none") -> int:
    """Weight bytes that one step with both branches reads: one byte a float8 weight, two a bfloat16 one."""
    in_float8 = {"none": 0, "trunk": config.num_shared_layers * layer_parameters(config),
                 "all": step_parameters(config)}[float8]
    return 2 * step_parameters(config) - in_float8


def layer_parameters(config: ModelConfig) -> int:
    q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    return config.hidden_size * (2 * q_size + 2 * kv_size + 3 * config.intermediate_size)


def kv_row_bytes(config: ModelConfig) -> int:
    return config.num_layers * 2 * config.num_key_value_heads * config.head_dim * 2


def decode_limit_ms(config: ModelConfig, ceilings: Ceilings | None, batch: int, context: int,
                    float8: str = "none") -> float | None:
    """The larger of reading weights and KV once and of doing every product at the bfloat16 rate."""
    if ceilings is None:
        return None
    read_s = (step_bytes(config, float8) + batch * context * kv_row_bytes(config)) / ceilings.read_bytes_per_s
    return 1e3 * max(read_s, batch * 2 * step_parameters(config) / ceilings.dense_flop_per_s)


def fill_limit_ms(config: ModelConfig, ceilings: Ceilings | None, rows: int, cached: int,
                  float8: str = "none") -> float | None:
    """The larger of reading everything once and doing every product, heads for one row only.

    None for float8, whose dense rate is not among the ceilings.
    """
    if ceilings is None or float8 != "none":
        return None
    read_s = (step_bytes(config) + (cached + rows) * kv_row_bytes(config)) / ceilings.read_bytes_per_s
    flop = 2 * rows * config.num_layers * layer_parameters(config)
    flop += 4 * config.num_layers * config.num_attention_heads * config.head_dim * rows * (cached + rows / 2)
    return 1e3 * max(read_s, flop / ceilings.dense_flop_per_s)


def rows_of(count: int, config: ModelConfig, seed: int) -> tuple[Row, ...]:
    """Half text, half audio."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, config.sosp_token_id, (count,), generator=generator)
    text[count // 2 :] = config.modality_pad_token_id
    audio = torch.randint(0, config.eosp_token_id, (count,), generator=generator)
    return tuple(Row(int(a), int(b)) for a, b in zip(text, audio, strict=True))


def sequence(config: ModelConfig, index: int, cached: int, count: int, blocks_each: int) -> ScheduledSequence:
    table = tuple(range(index * blocks_each, (index + 1) * blocks_each))
    return ScheduledSequence(rows_of(count, config, index), cached, table, True)


def make_runtime(config: ModelConfig, max_batch: int, kv_rows: int, float8: str, max_step_rows: int = 512):
    from moss_engine.runtime.cuda import make_random_runtime
    from moss_engine.runtime.cuda_weights import Float8

    limits = Limits(16, kv_rows // 16, max_batch, max_step_rows, min(config.max_position_embeddings, kv_rows, 4096))
    return make_random_runtime(config, limits, device=torch.device("cuda"), dtype=torch.bfloat16, seed=0,
                               float8=Float8(float8))


def measure_decode(runtime: CudaRuntime, config: ModelConfig, ceilings: Ceilings | None, batches: list[int],
                   float8: str) -> list[Figure]:
    figures = []
    for batch in batches:
        shares = tuple(sequence(config, i, CONTEXT_ROWS, 1, CONTEXT_ROWS // 16 + 2) for i in range(batch))
        step = ScheduledBatch(shares)
        limit_ms = decode_limit_ms(config, ceilings, batch, CONTEXT_ROWS, float8)
        runtime.forward(step)
        figures.append(figure(f"decode step, batch {batch}", device_times_ms(runtime.decode_again(batch)), limit_ms,
                              "device"))
        figures.append(figure(f"forward of one row, batch {batch}", wall_times_ms(lambda: runtime.forward(step)),  # noqa: B023
                              limit_ms, "wall"))
    return figures


def measure_prefill(runtime: CudaRuntime, config: ModelConfig, ceilings: Ceilings | None, float8: str) -> list[Figure]:
    figures = []
    for rows, cached in ((64, 0), (128, 0), (256, 0), (512, 0), (64, 2000)):
        step = ScheduledBatch((sequence(config, 0, cached, rows, (cached + rows) // 16 + 1),))
        limit_ms = fill_limit_ms(config, ceilings, rows, cached, float8)
        name = f"prefill {rows} rows on {cached} cached"
        figures.append(figure(name, device_times_ms(lambda: runtime.forward(step)), limit_ms, "device"))  # noqa: B023
        figures.append(figure(name, wall_times_ms(lambda: runtime.forward(step)), limit_ms, "wall"))  # noqa: B023
    return figures


VOCODER_24KHZ = {
    "resblock": "1", "upsample_rates": [4, 4, 2, 2, 2, 2], "upsample_kernel_sizes": [8, 8, 4, 4, 4, 4],
    "upsample_initial_channel": 1536, "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]], "use_tanh_at_final": False,
    "use_bias_at_final": False, "activation": "snakebeta", "snake_logscale": True, "num_mels": 100, "n_fft": 1024,
    "hop_size": 256, "win_size": 1024, "sampling_rate": 24000, "fmin": 0, "fmax": None,
}
CHUNK_CODES, CHUNK_FRAMES, LEFT_FRAMES, RIGHT_FRAMES = 5, 38, 20, 20  # 5 codes are 37.5 frames of this mel
VOCODER_FLOP_PER_FRAME = 1.834e9


class Vocoder:
    """BigVGAN of 112 M parameters with fused activations: one CUDA graph for windows of a fixed number of frames."""

    def __init__(self, batch: int, frames: int, dtype: torch.dtype):
        from moss_engine.codec.bigvgan import build_generator
        from moss_engine.runtime.kernels.snake import fuse_activations
        from scripts.bench_baselines import captured

        torch.backends.cudnn.benchmark = True
        network = build_generator(VOCODER_24KHZ, weight_norm=False).eval().requires_grad_(False)
        fuse_activations(network)
        network = network.to("cuda", dtype)
        self.mel = torch.randn(batch, VOCODER_24KHZ["num_mels"], frames, device="cuda", dtype=dtype)
        waves: list[torch.Tensor] = []
        with torch.inference_mode():
            self.replay = captured(lambda: waves.append(network(self.mel)))
        self.wave = waves[-1]  # what the graph writes


def measure_vocoder(ceilings: Ceilings | None) -> list[Figure]:
    figures = []
    frames = LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES
    for batch, dtype in ((1, torch.bfloat16), (1, torch.float16), (16, torch.bfloat16)):
        vocoder = Vocoder(batch, frames, dtype)
        limit_ms = None if ceilings is None else \
            1e3 * batch * frames * VOCODER_FLOP_PER_FRAME / ceilings.dense_flop_per_s
        name = f"vocoder, {batch} windows of {frames} frames, {str(dtype)[6:]}"
        figures.append(figure(name, device_times_ms(vocoder.replay), limit_ms, "device"))
    return figures


def measure_speech(runtime: CudaRuntime, config: ModelConfig, num_codes: int = 100) -> list[Figure]:
    """Wall times of a spoken reply to 512 rows: to the first samples on the host, and of all per second of audio."""
    from moss_engine.request import ChannelSampling, Sampling
    from moss_engine.runtime.cuda_sampler import CudaSampler
    from moss_engine.tokens import Modality

    values = ChannelSampling(0.7, 20, 0.95, 1.1)
    sampler = CudaSampler(config, torch.device("cuda"), 4)
    vocoder = Vocoder(1, LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES, torch.bfloat16)
    prompt, table_blocks = rows_of(512, config, 1), tuple(range((512 + num_codes) // 16 + 1))
    wave = torch.empty(CHUNK_FRAMES * 256, dtype=torch.float32, pin_memory=True)
    start_sample = LEFT_FRAMES * 256

    def speak(codes: int) -> tuple[float, float]:
        """Seconds to the first chunk and to the last one."""
        sampler.remove("a")
        sampler.add("a", prompt, Sampling(values, values, codes, codes, 1))
        torch.cuda.synchronize()
        start, first_s = time.perf_counter(), 0.0
        rows, cached = prompt, 0
        for index in range(codes):
            logits = runtime.forward(ScheduledBatch((ScheduledSequence(rows, cached, table_blocks, True),)))
            cached += len(rows)
            row = sampler.sample(logits, ["a"], [Modality.AUDIO])[0]
            assert row is not None
            rows = (row,)
            if (index + 1) % CHUNK_CODES == 0:
                vocoder.replay()
                wave.copy_(vocoder.wave[0, 0, start_sample : start_sample + len(wave)].float(), non_blocking=True)
                torch.cuda.current_stream().synchronize()
                first_s = first_s or time.perf_counter() - start
        return first_s, time.perf_counter() - start

    speak(CHUNK_CODES)
    first = [1e3 * speak(CHUNK_CODES)[0] for _ in range(REPEATS)]
    whole = [1e3 * speak(num_codes)[1] / (num_codes / CODES_PER_S) for _ in range(5)]
    return [figure("to the first 5 codes' samples, 512 rows", first, None, "wall"),
            figure(f"per second of speech, {num_codes} codes", whole, None, "wall")]


def measure_sampler(config: ModelConfig, batches: list[int]) -> list[Figure]:
    from moss_engine.request import ChannelSampling, Sampling
    from moss_engine.runtime.base import Logits
    from moss_engine.runtime.cuda_sampler import CudaSampler
    from moss_engine.sampler import Sampler
    from moss_engine.tokens import Modality

    values, device, figures = ChannelSampling(0.7, 20, 0.95, 1.1), torch.device("cuda"), []
    for batch in batches:
        logits = Logits(*(torch.randn(batch, size, device=device) for size in (config.vocab_size,
                                                                              config.audio_vocab_size)))
        for name, sampler in (("kernels", CudaSampler(config, device, batch)), ("torch", Sampler(config, device))):
            ids = list(range(batch))
            for i in ids:
                sampler.add(i, rows_of(100, config, i), Sampling(values, values, 10**6, 0, i))
            run = lambda: sampler.sample(logits, ids, [Modality.AUDIO] * batch)  # noqa: B023, E731
            figures.append(figure(f"sampling by {name}, batch {batch}", wall_times_ms(run), None, "wall"))
    return figures


def measure_baselines(config: ModelConfig, ceilings: Ceilings | None) -> list[Figure]:
    from scripts.bench_baselines import PlainStep, captured, transformers_step_ms

    limit_ms = decode_limit_ms(config, ceilings, 1, CONTEXT_ROWS)
    figures = []
    step = PlainStep(config, CONTEXT_ROWS)
    figures.append(figure("plain PyTorch, operation by operation", device_times_ms(step, 10), limit_ms, "device"))
    figures.append(figure("plain PyTorch, CUDA graph", device_times_ms(captured(step)), limit_ms, "device"))
    step.compile_layers()
    figures.append(figure("compiled PyTorch, CUDA graph", device_times_ms(captured(step)), limit_ms, "device"))
    del step
    torch.cuda.empty_cache()
    figures.append(figure("transformers generate, a token", [transformers_step_ms(config, CONTEXT_ROWS)], limit_ms,
                          "wall"))
    return figures


def table(figures: list[Figure]) -> str:
    lines = [f"{'':58}{'median ms':>10}{'p90':>9}{'limit':>9}{'share':>7}"]
    for f in figures:
        limit = "" if f.limit_ms is None else f"{f.limit_ms:9.3f}{100 * f.limit_ms / f.median_ms:6.0f}%"
        lines.append(f"{f.name + ' (' + f.note + ')':58}{f.median_ms:10.3f}{f.p90_ms:9.3f}{limit}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="ceilings,decode,prefill")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64")
    parser.add_argument("--float8", default="none", choices=("none", "trunk", "all"))
    parser.add_argument("--kv-rows", type=int, default=65_536)
    parser.add_argument("--out", type=Path, default=Path("bench_cuda.json"))
    args = parser.parse_args()
    parts, batches = args.parts.split(","), [int(b) for b in args.batches.split(",")]
    ceilings = measure_ceilings() if "ceilings" in parts else None
    if ceilings:
        print({name: f"{value / 1e12:.3f} T" for name, value in asdict(ceilings).items()}, flush=True)
    torch.cuda.empty_cache()
    figures: list[Figure] = []
    ready_s = None
    if {"decode", "prefill", "speech"} & set(parts):
        start = time.perf_counter()
        runtime = make_runtime(PUBLISHED, max(batches), args.kv_rows, args.float8)
        torch.cuda.synchronize()
        ready_s = time.perf_counter() - start
        held_gib = torch.cuda.memory_allocated() / 2**30
        print(f"runtime ready in {ready_s:.1f} s, {held_gib:.2f} GiB allocated", flush=True)
        if "decode" in parts:
            figures += measure_decode(runtime, PUBLISHED, ceilings, batches, args.float8)
        if "prefill" in parts:
            figures += measure_prefill(runtime, PUBLISHED, ceilings, args.float8)
        print(table(figures), flush=True)
        if "speech" in parts:
            figures += measure_speech(runtime, PUBLISHED)
        runtime.close()
        del runtime
        torch.cuda.empty_cache()
    if "sampler" in parts:
        figures += measure_sampler(PUBLISHED, [1, 32])
    if "vocoder" in parts:
        figures += measure_vocoder(ceilings)
    if "baselines" in parts:
        figures += measure_baselines(PUBLISHED, ceilings)
    print(table(figures), flush=True)
    args.out.write_text(json.dumps({
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "weights": "random, seed 0",
        "float8": args.float8,
        "ready_s": ready_s, "ceilings": asdict(ceilings) if ceilings else None,
        "figures": [asdict(f) for f in figures]}, indent=1))


if __name__ == "__main__":
    main()
