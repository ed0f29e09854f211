"""Measure a checkpoint on this machine: `python -m scripts.bench --checkpoint DIR [--concurrency 1,2,4]`.

With `--preset moss-speech` the full-size network with random weights is measured instead, which needs a GPU and has
options of its own, --parts, --dtype, --batches, --listeners, --arrivals and others: see
`python -m scripts.bench --preset moss-speech --help`.

First the card: what a step must read and compute, and what this machine can do at most. Then a closed loop: so many
listeners, each asking again as soon as its reply has ended, through the whole service. Prompts are English sentences,
or with --prompt-rows and --codes random rows of exactly that length, answered with exactly so many codes. The last
line is everything as JSON.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moss_engine.config import EngineConfig, add_options, config_from_args
from moss_engine.errors import ConfigError, MossError
from moss_engine.request import Message, Request, Text
from scripts.bench_load import FixedSize, Load, MakeRequest, load_table, pairs, run_arrivals, run_load

if TYPE_CHECKING:
    from moss_engine.processor import Processor
    from moss_engine.service import Service
    from scripts.bench_limits import BatchRate, Card, Overhead

PARTS = (
    ("My brother", "The old doctor", "Her neighbor", "A young student", "The captain", "Our teacher", "The baker"),
    ("carried", "painted", "found", "sold", "repaired", "forgot", "described"),
    ("a wooden chair", "the blue folder", "two silver keys", "the broken radio", "a basket of apples", "a boat"),
    ("at the station", "behind the house", "near the old bridge", "in the garden", "beside the river", "on the stairs"),
    ("this morning.", "last spring.", "before the rain.", "after dinner.", "on a cold day.", "without a word."),
)


def sentence(number: int) -> str:
    """A sentence of about twelve words for every number; 10,584 differ, so that no prompt is found in the cache."""
    words = []
    number *= 4999  # neighbours should not begin alike
    for choices in PARTS:
        number, index = divmod(number, len(choices))
        words.append(choices[index])
    return " ".join(words)


def value_table(title: str, values: dict[str, Any]) -> str:
    lines = [f"{name:<26}{value:>15,.3f}" if isinstance(value, float) else f"{name:<26}{value:>15,}"
             for name, value in values.items()]
    return "\n".join([f"\n{title}", *lines])


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, EngineConfig]:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="1,2,4", metavar="N,N,...", help="listeners at a time (1,2,4)")
    parser.add_argument("--replies", type=int, default=30, metavar="N", help="timed replies of each level (30)")
    parser.add_argument("--warm-ups", type=int, default=5, metavar="N", help="replies before the first timed one (5)")
    parser.add_argument("--prompt-rows", type=int, metavar="N", help="rows of every prompt, instead of sentences")
    parser.add_argument("--codes", type=int, metavar="N", help="codes of every reply, instead of sentences")
    parser.add_argument("--arrivals", default="", metavar="RATE:REPLIES,...",
                        help="then requests a second, by chance, and replies in all, such as 0.5:30")
    parser.add_argument("--overhead", action="store_true", help="time one engine step against the network alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    add_options(parser, groups=("model", "capacity"))
    args = parser.parse_args(argv)
    try:
        args.concurrency = [int(level) for level in args.concurrency.split(",")]
    except ValueError:
        raise ConfigError(f"--concurrency is {args.concurrency!r}; give whole numbers, as in 1,2,4.") from None
    args.arrivals = pairs("--arrivals", args.arrivals)
    counts = [*args.concurrency, args.replies, args.warm_ups + 1, args.prompt_rows or 2, args.codes or 1]
    if min(counts) < 1 or args.prompt_rows == 1:
        raise ConfigError("--concurrency, --replies, --warm-ups, --prompt-rows and --codes must be positive.")
    if (args.prompt_rows is None) != (args.codes is None):
        raise ConfigError("--prompt-rows and --codes go together; give both or neither.")
    config = config_from_args(args)
    return args, dataclasses.replace(config, max_sessions=max(config.max_sessions, *args.concurrency))


def machine(service: Service, config: EngineConfig) -> dict[str, Any]:
    """What the figures depend on."""
    info = service.engine.runtime.info
    return {"machine": platform.machine(), "cpu": cpu_name(), "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2), "python": platform.python_version(), "runtime": info.name,
            "version": info.version, "device": info.device, "dtype": info.dtype, "threads": config.threads,
            "checkpoint": config.checkpoint.name, **({"engine": info.engine_digest} if info.engine_digest else {})}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


class Bench:
    """One service under measurement."""

    def __init__(self, args: argparse.Namespace, config: EngineConfig):
        import torch

        from moss_engine.build import build_service
        from moss_engine.models.config import ModelConfig
        from moss_engine.runtime.make import resolve_device

        torch.set_num_threads(config.threads)  # of this thread, which measures the limits
        self.args, self.config = args, config
        self.model = ModelConfig.from_file(config.checkpoint / "config.json")
        self.device = resolve_device(config.device)
        self.service = build_service(config)
        self.processor = cast("Processor", self.service.engine.processor)

    def request(self, session: str, number: int, num_codes: int | None = None) -> Request:
        """The `number`-th request; with `num_codes` eosp is held back until so many codes are there."""
        sampling = dataclasses.replace(self.processor.default_sampling, seed=number)
        if num_codes:
            sampling = dataclasses.replace(sampling, max_rows=num_codes, min_rows=num_codes + 2)
        message = Message("user", Text(sentence(number)))
        return Request(f"{session}-{number}", session, (message,), self.processor.default_mode.name, sampling)

    def card(self) -> Card:
        from scripts.bench_limits import make_card

        context_rows = (self.args.prompt_rows or 40) + (self.args.codes or 100) // 2
        return make_card(self.model, self.service.engine.runtime.info, self.device, context_rows)

    def engine_alone(self, limit_ms: float) -> tuple[Overhead, list[BatchRate]]:
        """Steps without the service: before `start`."""
        from scripts.bench_limits import measure_batches, measure_overhead

        engine, steps = self.service.engine, self.args.codes or 100
        reply_rows = steps + 4 * max(self.args.concurrency)  # while later prompts are computed, the first replies run
        engine.processor = self._fixed_size(self.args.prompt_rows or 40, reply_rows)
        requests = [self.request(f"alone-{i}", i, reply_rows) for i in range(max(self.args.concurrency))]
        overhead = measure_overhead(engine, self.model, requests[0], self.device, steps, limit_ms)
        return overhead, measure_batches(engine, requests, self.args.concurrency, steps)

    def _fixed_size(self, num_prompt_rows: int, num_codes: int) -> FixedSize:
        return FixedSize(self.processor.ids, self.processor.open_text_decoder, num_prompt_rows, num_codes)

    def loads(self) -> Iterator[Load]:
        args = self.args
        fixed = self._fixed_size(args.prompt_rows, args.codes) if args.codes else None
        self.service.engine.processor = fixed or self.processor
        if args.warm_ups:
            asyncio.run(run_load(self.service, self._requests(0), 1, args.warm_ups))
        for index, concurrency in enumerate(args.concurrency, 1):
            yield asyncio.run(run_load(self.service, self._requests(index), concurrency, args.replies))
        for index, (per_s, replies) in enumerate(args.arrivals, 1 + len(args.concurrency)):
            yield asyncio.run(run_arrivals(self.service, self._requests(index), per_s, replies))

    def _requests(self, level: int) -> MakeRequest:
        return lambda listener, number: self.request(f"{level}-{listener}", 100_000 * level + number, self.args.codes)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if any(arg.partition("=")[0] == "--preset" for arg in argv):
        from scripts.bench_preset import main as measure_preset

        measure_preset(argv)
        return
    args, config = parse(argv)
    bench = Bench(args, config)
    report: dict[str, Any] = {"machine": machine(bench.service, config)}
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
    bench.service.start()
    try:
        report["load"] = []
        for load in bench.loads():
            print(load_table(load))
            report["load"].append(dataclasses.asdict(load))
    finally:
        bench.service.close()
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
