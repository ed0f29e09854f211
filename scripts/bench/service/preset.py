"""Measure the full-size network with random weights on this GPU: `python -m scripts.bench --preset
moss-speech`.

Speed, memory and rounding do not depend on the weights' values. First the card: bytes and
operations of a decode step, and what this GPU can do at most, measured now. Then the parts that
were asked for, beside the least time that those rates allow; decode, prefill and agreement in every
number format, the others in the first one:

    decode      one row for each of many sequences
    prefill     prompts of several lengths, alone and on cached rows
    speech      from a prompt to the first sound, and a whole reply, through a vocoder
    agreement   logits and replies of the other formats against those of the first
    streams     many listeners through the whole service, in closed loops and by arrivals
    sampler     logits to rows
    vocoder     windows of mel to sound
    baselines   what a user would run instead: transformers, plain and compiled PyTorch

Every figure is printed and written as soon as it is there.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.make import resolve_device
from scripts.bench.common.timing import Ceilings, Report, measure_ceilings
from scripts.bench.lm import cuda as bench_cuda
from scripts.bench.service.preset_options import FORMATS, IN_EVERY_FORMAT, ON_RUNTIME, parse

if TYPE_CHECKING:
    from moss_engine.runtime.cuda.runtime import CudaRuntime
    from scripts.bench.lm.agreement import Comparison
    from scripts.bench.service.streams import Level, StreamSetup

SPOKEN_PROMPT_ROWS = 512
REPLY_ROWS = 64  # of the replies that formats are compared by


def card(config: ModelConfig, dtype: str) -> dict[str, float]:
    """What one decode step of one sequence reads and computes; both branches, both heads."""
    return {
        "parameters_read": bench_cuda.step_parameters(config),
        "weight_gb": bench_cuda.step_bytes(config, FORMATS[dtype]) / 1e9,
        "kv_kb_a_row": bench_cuda.kv_row_bytes(config) / 1e3,
        "kv_gb_of_context": bench_cuda.CONTEXT_ROWS * bench_cuda.kv_row_bytes(config) / 1e9,
        "gflop": 2 * bench_cuda.step_parameters(config) / 1e9,
    }


def stream_plan(args: argparse.Namespace) -> tuple[StreamSetup, list[Level]]:
    from scripts.bench.service.streams import Level, StreamSetup

    setup = StreamSetup(args.prompt_rows, args.codes, args.chunk_codes, args.together)
    levels = [
        Level(replies, listeners=int(count), hears_out=False) for count, replies in args.hasty
    ]
    levels += [Level(replies, listeners=int(count)) for count, replies in args.listeners]
    return setup, levels + [Level(replies, arrivals_per_s=rate) for rate, replies in args.arrivals]


def room(args: argparse.Namespace, *, is_first: bool) -> tuple[int, int]:
    """Places and rows of KV for what a runtime is to do; arrivals may fill every place."""
    places = max(2, *args.batches)
    rows = max(args.kv_rows, max(args.batches) * bench_cuda.blocks_each() * 16)
    if is_first and "streams" in args.parts:
        setup, levels = stream_plan(args)
        places = max(places, *(level.listeners for level in levels), 64 if args.arrivals else 1)
        rows = max(rows, (places + 1) * -(-(setup.prompt_rows + setup.codes) // 16) * 16)
    return places, rows


class Bench:
    """One run: the runtimes one after another, and everything that is measured on them."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: ModelConfig,
        ceilings: Ceilings,
        report: Report,
        device: torch.device,
    ):
        self.args, self.config, self.ceilings, self.report, self.device = (
            args,
            config,
            ceilings,
            report,
            device,
        )
        self.comparison: Comparison | None = None

    def measure_format(self, dtype: str, *, is_first: bool) -> None:
        """What is asked for in one number format, of which nothing stays in memory."""
        args, report, float8 = self.args, self.report, FORMATS[dtype]
        places, kv_rows = room(args, is_first=is_first)
        runtime = bench_cuda.make_runtime(
            self.config,
            places,
            kv_rows,
            float8,
            max(args.max_step_rows, places),
            device=self.device,
        )
        allocated_gib = torch.cuda.memory_allocated() / 2**30
        report.values.setdefault("allocated_gib", {})[dtype] = allocated_gib
        report.say(f"{dtype}: runtime of {places} places ready, {allocated_gib:.2f} GiB")
        if "decode" in args.parts:
            report.add(
                bench_cuda.measure_decode(
                    runtime, self.config, self.ceilings, args.batches, float8
                ),
                dtype,
            )
        if "prefill" in args.parts:
            report.add(
                bench_cuda.measure_prefill(runtime, self.config, self.ceilings, float8), dtype
            )
        if is_first and "speech" in args.parts:
            from scripts.bench.service.speech import measure_speech

            report.add(
                measure_speech(
                    runtime,
                    self.config,
                    bench_cuda.rows_of(SPOKEN_PROMPT_ROWS, self.config, 1),
                    self.device,
                ),
                dtype,
            )
        if "agreement" in args.parts:
            self._compare(runtime, dtype)
        if is_first and "streams" in args.parts:
            self._measure_streams(runtime)
        runtime.close()

    def _compare(self, runtime: CudaRuntime, dtype: str) -> None:
        from scripts.bench.lm.agreement import Comparison, random_subject, table

        if self.comparison is None:
            subject = random_subject(self.config, self.args.prompts, REPLY_ROWS, self.device)
            self.comparison = Comparison(subject, dtype, runtime)
        else:
            self.comparison.add(dtype, runtime)
        self.report.values |= self.comparison.report()
        self.report.say(f"agreement so far:\n{table(self.report.values)}")
        self.report.save()

    def _measure_streams(self, runtime: CudaRuntime) -> None:
        from scripts.bench.service.streams import measure_streams, random_codec

        setup, levels = stream_plan(self.args)
        codec = random_codec(setup, self.device)
        self.report.say("streams: codec ready")
        for found in measure_streams(self.config, runtime, setup, levels, codec, self.device):
            self.report.values["streams"] = found
            self.report.save()

    def measure_rest(self) -> None:
        """What needs no runtime."""
        if "sampler" in self.args.parts:
            from scripts.bench.service.speech import measure_sampler

            self.report.add(
                measure_sampler(
                    self.config, bench_cuda.rows_of(100, self.config, 1), [1, 32], self.device
                )
            )
        if "vocoder" in self.args.parts:
            from scripts.bench.service.speech import measure_vocoder

            self.report.add(measure_vocoder(self.ceilings, self.device))
        if "baselines" in self.args.parts:
            self.report.values["baselines_load_average"] = round(os.getloadavg()[0], 1)
            self.report.add(bench_cuda.measure_baselines(self.config, self.ceilings))


def main(argv: list[str] | None = None) -> None:
    args = parse(argv, __doc__ or "")
    device, config = resolve_device("cuda"), PUBLISHED
    values: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "weights": "random, seed 0",
        "load_average": round(os.getloadavg()[0], 1),
        "context_rows": bench_cuda.CONTEXT_ROWS,
        "card": {dtype: card(config, dtype) for dtype in args.dtype},
    }
    report = Report(values, args.json)
    report.say(
        f"{values['device']}, torch {values['torch']}, {', '.join(args.dtype)}, weights: "
        f"{values['weights']}"
    )
    ceilings = measure_ceilings()
    torch.cuda.empty_cache()
    report.values["ceilings"] = asdict(ceilings)
    for name, known in {**values["card"], "ceilings": asdict(ceilings)}.items():
        report.say(
            ", ".join(
                [
                    name,
                    *(f"{what} {value:,.5g}" for what, value in known.items() if value is not None),
                ]
            )
        )
    bench, failed = Bench(args, config, ceilings, report, device), []
    if set(ON_RUNTIME) & set(args.parts):
        formats = args.dtype if set(IN_EVERY_FORMAT) & set(args.parts) else args.dtype[:1]
        for index, dtype in enumerate(formats):
            try:
                bench.measure_format(dtype, is_first=index == 0)
            except RuntimeError as error:  # the other formats can be measured all the same
                failed.append(
                    f"{dtype} was not measured to the end ({type(error).__name__}: {error})."
                )
                report.say(failed[-1])
            torch.cuda.empty_cache()
    bench.measure_rest()
    report.save()
    report.say("done")
    if failed:
        sys.exit("\n".join(failed))
