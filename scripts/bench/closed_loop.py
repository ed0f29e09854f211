"""Measure a checkpoint on this machine: `python -m scripts.bench --checkpoint DIR`.

With `--preset moss-speech` the full-size network with random weights is measured instead, which
needs a GPU and has options of its own, --parts, --dtype, --batches, --listeners, --arrivals and
others: see `python -m scripts.bench --preset moss-speech --help`.

With `--replicas N` or `--ray-address ADDRESS` it is a cluster that is measured, through a page's
end of it: see `scripts.bench.cluster.replicas`.

First the card: what a step must read and compute, and what this machine can do at most. Then a
closed loop: listeners that ask again as soon as their reply has ended, through the whole
service. Prompts are English sentences, or with --prompt-rows and --codes random rows of exactly
that length, answered with exactly that many codes. The last line is everything as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moss_engine.api.errors import MossError
from moss_engine.api.request import Message, Request, Text
from moss_engine.config import EngineConfig
from scripts.bench.common.load import (
    FixedSize,
    Load,
    MakeRequest,
    load_table,
    run_arrivals,
    run_load,
)
from scripts.bench.common.machine import cpu_name
from scripts.bench.options import parse
from scripts.sentences import sentence

if TYPE_CHECKING:
    from moss_engine.api.info import RuntimeInfo
    from moss_engine.api.tokens import SpecialIds
    from moss_engine.engine.engine import Preparer
    from moss_engine.engine.sequence import Segment, TextDecoder
    from moss_engine.text.processor import Processor
    from scripts.bench.common.limits import BatchRate, Card, Overhead


def value_table(title: str, values: dict[str, Any]) -> str:
    lines = [
        f"{name:<26}{value:>15,.3f}" if isinstance(value, float) else f"{name:<26}{value:>15,}"
        for name, value in values.items()
    ]
    return "\n".join([f"\n{title}", *lines])


def machine(info: RuntimeInfo, config: EngineConfig) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "runtime": info.name,
        "version": info.version,
        "device": info.device,
        "dtype": info.dtype,
        "threads": config.threads,
        "checkpoint": config.checkpoint.name,
        **({"engine": info.engine_digest} if info.engine_digest else {}),
    }


class Switch:
    """A processor for the engine that hands over to whichever is being measured."""

    processor: Preparer
    ids: SpecialIds

    def over(self, processor: Processor) -> Preparer:
        self.processor, self.ids = processor, processor.ids
        return self

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        return self.processor.prepare(request)

    def speaks(self, request: Request) -> bool:
        return self.processor.speaks(request)

    def open_text_decoder(self) -> TextDecoder:
        return self.processor.open_text_decoder()


class Bench:
    """One service under measurement."""

    def __init__(self, args: argparse.Namespace, config: EngineConfig):
        import torch

        from moss_engine.build import build_core
        from moss_engine.models.config import ModelConfig
        from moss_engine.runtime.make import resolve_device

        torch.set_num_threads(config.threads)  # of this thread, which measures the limits
        self.args, self.config = args, config
        self.model = ModelConfig.from_file(config.checkpoint / "config.json")
        self.device = resolve_device(config.device)
        self.switch = Switch()
        self.core, self.processor = build_core(config, wrap_processor=self.switch.over)

    def request(self, session: str, number: int, num_codes: int | None = None) -> Request:
        """The `number`-th request; with `num_codes`, eosp is held back until then."""
        sampling = dataclasses.replace(self.processor.default_sampling, seed=number)
        if num_codes:
            sampling = dataclasses.replace(sampling, max_rows=num_codes, min_rows=num_codes + 2)
        message = Message("user", Text(sentence(number)))
        return Request(
            f"{session}-{number}", session, (message,), self.processor.default_mode.name, sampling
        )

    def card(self) -> Card:
        from scripts.bench.common.limits import make_card

        context_rows = (self.args.prompt_rows or 40) + (self.args.codes or 100) // 2
        return make_card(self.model, self.core.engine.runtime.info, self.device, context_rows)

    def engine_alone(self, limit_ms: float) -> tuple[Overhead, list[BatchRate]]:
        """Steps without the service: before `start`."""
        from scripts.bench.common.limits import measure_batches, measure_overhead

        engine, steps = self.core.engine, self.args.codes or 100
        reply_rows = steps + 4 * max(
            self.args.concurrency
        )  # while later prompts are computed, the first replies run
        self.switch.processor = self._fixed_size(self.args.prompt_rows or 40, reply_rows)
        requests = [
            self.request(f"alone-{i}", i, reply_rows) for i in range(max(self.args.concurrency))
        ]
        overhead = measure_overhead(engine, self.model, requests[0], self.device, steps, limit_ms)
        return overhead, measure_batches(engine, requests, self.args.concurrency, steps)

    def _fixed_size(self, num_prompt_rows: int, num_codes: int) -> FixedSize:
        return FixedSize(
            self.processor.ids, self.processor.open_text_decoder, num_prompt_rows, num_codes
        )

    def loads(self) -> Iterator[Load]:
        args = self.args
        fixed = self._fixed_size(args.prompt_rows, args.codes) if args.codes else None
        self.switch.processor = fixed or self.processor
        if args.warm_ups:
            asyncio.run(run_load(self.core.stream, self._requests(0), 1, args.warm_ups))
        for index, concurrency in enumerate(args.concurrency, 1):
            yield asyncio.run(
                run_load(self.core.stream, self._requests(index), concurrency, args.replies)
            )
        for index, (per_s, replies) in enumerate(args.arrivals, 1 + len(args.concurrency)):
            yield asyncio.run(run_arrivals(self.core.stream, self._requests(index), per_s, replies))

    def _requests(self, level: int) -> MakeRequest:
        return lambda listener, number: self.request(
            f"{level}-{listener}", 100_000 * level + number, self.args.codes
        )


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if any(arg.partition("=")[0] == "--preset" for arg in argv):
        from scripts.bench.service.preset import main as measure_preset

        measure_preset(argv)
        return
    if any(arg.partition("=")[0] in ("--replicas", "--ray-address") for arg in argv):
        from scripts.bench.cluster.replicas import main as measure_replicas

        measure_replicas(argv)
        return
    args, config = parse(argv, __doc__ or "")
    bench = Bench(args, config)
    report: dict[str, Any] = {"machine": machine(bench.core.engine.runtime.info, config)}
    print(" ".join(f"{name}={value}" for name, value in report["machine"].items()))
    card = bench.card()
    report["card"] = dataclasses.asdict(card)
    print(value_table("size and limit of a decode step", report["card"]))
    if args.overhead:
        overhead, rates = bench.engine_alone(card.limit_ms)
        report["overhead"] = dataclasses.asdict(overhead)
        report["batches"] = [dataclasses.asdict(rate) for rate in rates]
        print(value_table("one decode step, medians", report["overhead"]))
        for rate in report["batches"]:
            print(value_table(f"engine alone, {rate['batch']} replies at a time", rate))
    bench.core.start()
    try:
        report["load"] = []
        for load in bench.loads():
            print(load_table(load))
            report["load"].append(dataclasses.asdict(load))
    finally:
        bench.core.close()
    line = json.dumps(report)
    if args.json:
        args.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
