"""Host overhead around the network: `python -m scripts.bench.service.host`.

The real service, engine, scheduler and listeners, over a runtime and a codec that do
nothing. CPU time of a step, so that other programs on the machine hardly matter: of the engine's
thread, which every step waits for, and of all threads together, which share one interpreter. A
stream needs 12.5 steps a second.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import MossError
from moss_engine.api.events import Accepted
from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import BatchSampling, Limits, ScheduledBatch
from moss_engine.service.core import ServiceCore
from scripts.bench.common.load import FixedSize, run_load
from scripts.bench.common.machine import cpu_name
from scripts.bench.service.streams import Silent, StreamSetup, requests

SETUP = StreamSetup(prompt_rows=64, codes=200)
STEPS_PER_S = 12.5
CHUNK_CODES = 20


@dataclasses.dataclass(frozen=True)
class HostCost:
    """Median CPU time of a step; `interpreter_share` is one interpreter's share of it."""

    streams: int
    engine_thread_ms: float
    all_threads_ms: float
    interpreter_share: float


class NoRuntime:
    """Computes nothing, in no time: the same code over and over."""

    info = RuntimeInfo("none", "0", "cpu", "float32", "none")
    few_rows = 1

    def __init__(self, streams: int, setup: StreamSetup) -> None:
        rows = setup.prompt_rows + setup.codes
        self.limits = Limits(16, streams * -(-rows // 16), streams, max(512, streams), rows)

        self._row = Row(PUBLISHED.special.modality_pad, 1)

    def step(self, batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        return [self._row] * len(sampling.sequences)

    def close(self) -> None:
        pass


class NoCodec:
    """Silence of the right length, in chunks."""

    sample_rate_hz, code_rate_hz, num_codes = 24_000, Fraction(25, 2), 16_384
    voices, max_together, tally = ("silent",), 16, None

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        return []

    def open_stream(self, voice: str | None = None) -> NoStream:
        return NoStream()

    def push_together(self, work: Sequence[tuple[NoStream, Sequence[int]]]) -> list[np.ndarray]:
        return [stream.push(codes) for stream, codes in work]

    def flush_together(self, streams: Sequence[NoStream]) -> list[np.ndarray]:
        return [stream.flush() for stream in streams]


class NoStream:
    missing_codes = CHUNK_CODES

    def push(self, codes: Sequence[int]) -> np.ndarray:
        return np.zeros(1920 * len(codes), dtype=np.float32)

    def flush(self) -> np.ndarray:
        return np.zeros(0, dtype=np.float32)


class TimedEngine(Engine):
    """Notes the stepping thread's CPU time at each step: service and engine.

    The first step waits for all `streams` requests, however late some of them come.
    """

    def __init__(self, streams: int, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.used_s: list[tuple[int, float]] = []
        self._missing = streams
        self._complete = threading.Event()

    def submit(self, request: Request, accepted_s: float | None = None) -> Accepted:
        accepted = super().submit(request, accepted_s)
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        return accepted

    def step(self, *args: Any) -> Any:
        self._complete.wait()
        result = super().step(*args)
        self.used_s.append((result.num_rows, time.thread_time()))
        return result


def measure(streams: int, setup: StreamSetup = SETUP) -> HostCost:
    """`streams` replies at the same time; steps in which all of them were in decode count."""
    runtime, codec = NoRuntime(streams, setup), NoCodec()
    limits = runtime.limits
    config = EngineConfig(
        max_sessions=streams,
        max_waiting=streams,
        max_step_rows=limits.max_step_rows,
        kv_rows=limits.num_blocks * limits.block_size,
        run_ahead_s=600.0,
    )
    processor = FixedSize(PUBLISHED.special, Silent, setup.prompt_rows, setup.codes)
    engine = TimedEngine(streams, runtime, processor, config, samples_per_code=1920)
    service = ServiceCore(engine, codec, config)
    service.start()
    start_s = time.process_time()
    asyncio.run(run_load(service.stream, requests(setup, 0), streams, streams))
    used_s = time.process_time() - start_s
    service.close()
    pairs = zip(engine.used_s, engine.used_s[1:], strict=False)
    full = [b_s - a_s for (a, a_s), (b, b_s) in pairs if a == b == streams]
    engine_ms, all_ms = (
        1e3 * statistics.median(full),
        1e3 * used_s / sum(rows > 0 for rows, _ in engine.used_s),
    )
    return HostCost(streams, engine_ms, all_ms, all_ms / 1e3 * STEPS_PER_S)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--streams", default="1,16,64,256", metavar="N,...", help="replies at a time (1,16,64,256)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to a file, too"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    costs = [dataclasses.asdict(measure(int(count))) for count in args.streams.split(",")]
    for cost in costs:
        print(
            f"{cost['streams']:>4} streams: {cost['engine_thread_ms']:.2f} ms of the engine's "
            f"thread a step, "
            f"{cost['all_threads_ms']:.2f} ms of all; {cost['interpreter_share']:.1%} of real time"
        )
    if args.json:
        report = {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "python": sys.version.split()[0],
            "host": costs,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
