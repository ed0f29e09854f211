"""Measure the full-size network with random weights on this GPU: `python -m scripts.bench --preset moss-speech`.

Speed, memory and rounding do not depend on the weights' values. First the card: bytes and operations of a decode step,
and what this GPU can do at most, measured now. Then the parts that were asked for, beside the least time that those
rates allow:

    decode      one row for each of many sequences
    prefill     prompts of several lengths, alone and on cached rows
    speech      from a prompt to the first sound, and a whole reply, through a vocoder
    vocoder     windows of mel to sound
    sampler     logits to rows
    baselines   what a user would run instead: transformers, plain and compiled PyTorch
    streams     many listeners through the whole service, in closed loops and by arrivals
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from moss_engine.errors import ConfigError
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.make import resolve_device
from scripts import bench_cuda
from scripts.bench_load import pairs
from scripts.bench_timing import Ceilings, Figure, measure_ceilings, table

if TYPE_CHECKING:
    from scripts.bench_streams import Level, StreamSetup

NAME = "moss-speech"
ON_RUNTIME = ("decode", "prefill", "speech")
PARTS = (*ON_RUNTIME, "sampler", "vocoder", "baselines", "streams")
FORMATS = {"bfloat16": "none", "float8": "trunk", "float8-all": "all"}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=(NAME,), required=True, help="the network's size")
    parser.add_argument("--parts", default="decode,prefill,speech,sampler,vocoder", metavar="PART,...",
                        help="what to measure (decode,prefill,speech,sampler,vocoder)")
    parser.add_argument("--dtype", choices=tuple(FORMATS), default="bfloat16", help="number format (bfloat16)")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64", metavar="N,...", help="sequences of a decode step")
    parser.add_argument("--kv-rows", type=int, default=65_536, metavar="N", help="rows of the KV pool (65536)")
    parser.add_argument("--max-step-rows", type=int, default=512, metavar="N", help="rows of one step (512)")
    parser.add_argument("--deferred-text", action="store_true", help="measure steps without the text branch, too")
    streams = parser.add_argument_group("streams")
    streams.add_argument("--listeners", default="1:2,4:8,16:32,64:128", metavar="N:REPLIES,...",
                         help="listeners at a time, and replies in all; each hears a reply out and asks again")
    streams.add_argument("--arrivals", default="", metavar="RATE:REPLIES,...",
                         help="requests a second, by chance, and replies in all")
    streams.add_argument("--prompt-rows", type=int, default=64, metavar="N", help="rows of every prompt (64)")
    streams.add_argument("--codes", type=int, default=128, metavar="N", help="codes of every reply (128: 10.24 s)")
    streams.add_argument("--together", type=int, default=16, metavar="N", help="replies of one vocoder run (16)")
    streams.add_argument("--chunk-codes", default="5,10,20", metavar="N,...", help="codes of each chunk (5,10,20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file, too")
    args = parser.parse_args(argv)
    args.parts = args.parts.split(",")
    wrong = [part for part in args.parts if part not in PARTS]
    if wrong:
        raise ConfigError(f"--parts {','.join(wrong)} is unknown; choose among {', '.join(PARTS)}.")
    args.batches = _numbers("--batches", args.batches)
    args.chunk_codes = tuple(_numbers("--chunk-codes", args.chunk_codes))
    args.listeners = pairs("--listeners", args.listeners)
    args.arrivals = pairs("--arrivals", args.arrivals)
    return args


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ConfigError(f"{option} is {text!r}; give whole numbers, as in 1,2,4.")
    return found


def card(config: ModelConfig, dtype: str) -> dict[str, float]:
    """What one decode step of one sequence reads and computes; both branches, both heads."""
    return {"parameters_read": bench_cuda.step_parameters(config),
            "weight_gb": bench_cuda.step_bytes(config, FORMATS[dtype]) / 1e9,
            "kv_kb_a_row": bench_cuda.kv_row_bytes(config) / 1e3,
            "kv_gb_of_context": bench_cuda.CONTEXT_ROWS * bench_cuda.kv_row_bytes(config) / 1e9,
            "gflop": 2 * bench_cuda.step_parameters(config) / 1e9}


def measure_steps(args: argparse.Namespace, config: ModelConfig, ceilings: Ceilings,
                  report: dict[str, Any]) -> list[Figure]:
    """The parts that need a runtime, and nothing else in memory."""
    start_s = time.perf_counter()
    float8 = FORMATS[args.dtype]
    runtime = bench_cuda.make_runtime(config, max(args.batches), args.kv_rows, float8, args.max_step_rows,
                                      deferred_text=args.deferred_text)
    torch.cuda.synchronize()
    report["ready_s"] = time.perf_counter() - start_s
    report["allocated_gib"] = torch.cuda.memory_allocated() / 2**30
    print(f"runtime ready in {report['ready_s']:.1f} s, {report['allocated_gib']:.2f} GiB allocated", flush=True)
    figures: list[Figure] = []
    if "decode" in args.parts:
        figures += bench_cuda.measure_decode(runtime, config, ceilings, args.batches, float8)
    if "prefill" in args.parts:
        figures += bench_cuda.measure_prefill(runtime, config, ceilings, float8)
    if "speech" in args.parts:
        from scripts.bench_speech import measure_speech

        figures += measure_speech(runtime, config, bench_cuda.rows_of(512, config, 1))
    runtime.close()
    return figures


def measure_rest(args: argparse.Namespace, config: ModelConfig, ceilings: Ceilings) -> list[Figure]:
    figures: list[Figure] = []
    if "sampler" in args.parts:
        from scripts.bench_speech import measure_sampler

        figures += measure_sampler(config, bench_cuda.rows_of(100, config, 1), [1, 32])
    if "vocoder" in args.parts:
        from scripts.bench_speech import measure_vocoder

        figures += measure_vocoder(ceilings)
    if "baselines" in args.parts:
        figures += bench_cuda.measure_baselines(config, ceilings)
    return figures


def stream_plan(args: argparse.Namespace) -> tuple[StreamSetup, list[Level]]:
    from scripts.bench_streams import Level, StreamSetup

    setup = StreamSetup(args.prompt_rows, args.codes, args.chunk_codes, args.together)
    levels = [Level(replies, listeners=int(count)) for count, replies in args.listeners]
    return setup, levels + [Level(replies, arrivals_per_s=rate) for rate, replies in args.arrivals]


def measure_many(args: argparse.Namespace, config: ModelConfig, report: dict[str, Any],
                 save: Callable[[], None]) -> None:
    """The streams, with room for the most listeners of any level; arrivals may fill every place."""
    from moss_engine.runtime.cuda import make_random_runtime
    from moss_engine.runtime.cuda_weights import Float8
    from scripts.bench_streams import measure_streams

    setup, levels = stream_plan(args)
    places = max([1, *(level.listeners for level in levels)])
    if args.arrivals:
        places = max(places, 64)
    blocks = (places + 1) * -(-(setup.prompt_rows + setup.codes) // 16)
    limits = Limits(16, blocks, places, max(args.max_step_rows, places), setup.prompt_rows + setup.codes + 16)
    device = resolve_device("cuda")
    runtime = make_random_runtime(config, limits, device=device, dtype=torch.bfloat16, seed=0,
                                  float8=Float8(FORMATS[args.dtype]))
    report |= {"kv_rows": blocks * 16, "max_step_rows": limits.max_step_rows, "max_sessions": places}
    measure_streams(config, runtime, setup, levels, device, report, save)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    device, config = resolve_device("cuda"), bench_cuda.PUBLISHED
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device), "torch": torch.__version__, "weights": "random, seed 0",
        "float8": FORMATS[args.dtype], "card": card(config, args.dtype)}
    print(f"{report['device']}, torch {report['torch']}, {args.dtype}, weights: {report['weights']}")
    ceilings = measure_ceilings()
    torch.cuda.empty_cache()
    report["ceilings"] = asdict(ceilings)
    for name, value in {**report["card"], **report["ceilings"]}.items():
        print(f"{name:<26}{value:>20,.3f}")

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    figures: list[Figure] = []
    if set(ON_RUNTIME) & set(args.parts):
        figures += measure_steps(args, config, ceilings, report)
        torch.cuda.empty_cache()
    report["figures"] = [asdict(figure) for figure in figures]
    save()
    figures += measure_rest(args, config, ceilings)
    report["figures"] = [asdict(figure) for figure in figures]
    if figures:
        print(table(figures), flush=True)
    save()
    if "streams" in args.parts:
        report["streams"] = {}
        measure_many(args, config, report["streams"], save)
