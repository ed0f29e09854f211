"""The way from a replica to the page: `python -m scripts.bench.cluster.replica_way`.

One replica under Ray Serve sends scripted sound at the pace of speech, every chunk with the
machine's clock in its samples, to listeners of a page in this process; models take no part.
Measured is the time of a chunk from its being made to its listener, and what page and replica
compute for it. JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from moss_engine.api.events import Accepted, AudioChunk, Event, Finished, FinishReason
from moss_engine.api.info import EngineStats, RuntimeInfo, ServiceInfo, ServiceStats
from moss_engine.api.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.api.tokens import SpecialIds
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.service import ClusterService
from moss_engine.cluster.values import Card

WAY_BAR_MS, CORES_BAR = 3.0, 1.0
RATE_HZ, CHUNK_SAMPLES = 24_000, 9_600  # ten codes, as the built-in voice sends them
CHUNK_S = CHUNK_SAMPLES / RATE_HZ
MOST = 512
INFO = ServiceInfo(
    runtime=RuntimeInfo("scripted", "0", "cpu", "float32", "none"),
    modes=PUBLISHED_MODES.modes,
    voices=("scripted",),
    sampling=PUBLISHED_SAMPLING,
    sample_rate_hz=RATE_HZ,
    samples_per_code=960,
    ids=SpecialIds(1, 4096, 2, 512, 3, 4),
    pieces=(),
    max_text_chars=4000,
    max_speech_s=60.0,
    max_sessions=MOST,
    max_waiting=0,
    kv_rows=16_384,
    run_ahead_s=10.0,
)


class ScriptedReply:
    """As many chunks as the question says, one each CHUNK_S; `events` of one reply."""

    def __init__(self, request: Request):
        self.request_id = request.request_id
        content = request.messages[-1].content
        assert isinstance(content, Text)
        self._num_chunks = int(content.text)
        self._stopped = False

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        yield Accepted(self.request_id, 0.0, 0, 1)
        begun_s = time.monotonic()
        for i in range(self._num_chunks):
            await asyncio.sleep(max(0.0, begun_s + i * CHUNK_S - time.monotonic()))
            if self._stopped:
                break
            samples = np.zeros(CHUNK_SAMPLES, np.float32)
            samples[:2] = np.array([time.monotonic()]).view(np.float32)
            yield AudioChunk(self.request_id, 0.0, 0, samples, i * CHUNK_SAMPLES, RATE_HZ)
        reason = FinishReason.CANCELLED if self._stopped else FinishReason.STOP
        yield Finished(self.request_id, 0.0, 0, reason, ())

    def cancel(self) -> None:
        self._stopped = True

    def acknowledge(self, samples: int) -> None:
        """Its pace is that of speech in any case."""


class ScriptedService:
    """What a replica asks of a service."""

    async def describe(self) -> ServiceInfo:
        return INFO

    async def submit(self, request: Request) -> Any:
        return ScriptedReply(request)

    async def stats(self) -> ServiceStats:
        return ServiceStats(EngineStats(0, 0, 0, 0, 0, 0, 0), "ready", 0.0, {})

    def close(self) -> None:
        """Nothing was opened."""


def scripted_fleet(folder: Path) -> Any:
    """A cluster of this machine with one scripted replica."""
    from ray import serve

    from moss_engine.cluster.serve.connect import serve_here, start_machine
    from moss_engine.cluster.serve.deployment import Replica, as_deployment

    class Scripted(Replica):
        async def __init__(self) -> None:
            self._service: Any = ScriptedService()
            self._name = serve.get_replica_context().replica_id.unique_id
            card = Card(self._name, "scripted", "", os.getpid())
            self._server = ReplicaServer(self._service, INFO, card)

    start_machine(1, 0, folder)
    return serve_here(as_deployment(Scripted, 1, MOST, {"num_cpus": 1}).bind())


async def ways_ms(service: ClusterService, num_listeners: int, num_chunks: int) -> list[float]:
    """Of every chunk of so many listeners, who come one after another within one chunk's time."""

    async def hear(index: int) -> list[float]:
        await asyncio.sleep(index * CHUNK_S / num_listeners)
        messages = (Message("user", Text(str(num_chunks))),)
        name = f"{num_listeners} {index}"
        request = Request(name, name, messages, INFO.modes[0].name, PUBLISHED_SAMPLING)
        return [
            1000 * (time.monotonic() - float(event.samples[:2].copy().view(np.float64)[0]))
            async for event in stream(service, request)
            if isinstance(event, AudioChunk)
        ]

    found = await asyncio.gather(*map(hear, range(num_listeners)))
    return [way_ms for ways in found for way_ms in ways]


def cpu_s(process: Path) -> float:
    """What a process or thread has computed so far, by its folder below /proc."""
    fields = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(service: ClusterService, replica: int, listeners: int, chunks: int) -> dict[str, Any]:
    here, there = Path("/proc/self"), Path(f"/proc/{replica}")
    before = cpu_s(here), cpu_s(there), time.monotonic()
    ways = asyncio.run(ways_ms(service, listeners, chunks))
    page, other, wall = cpu_s(here), cpu_s(there), time.monotonic()
    share = 100 / listeners / (wall - before[2])
    return {
        "listeners": listeners,
        "chunks": len(ways),
        "way_median_ms": round(median(ways), 2),
        "way_p95_ms": round(quantiles(ways, n=20)[-1], 2),
        "page_cores_per_100": round((page - before[0]) * share, 2),
        "replica_cores_per_100": round((other - before[1]) * share, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.cluster.replica_way",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listeners", default="1,8,32", help="listeners at a time (1,8,32)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound for each (20)")
    parser.add_argument("--out", type=Path, help="file to write, too: Ray writes on stdout itself")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        fleet = scripted_fleet(Path(folder))
        service = ClusterService(fleet)
        try:
            service.start()
            replica = asyncio.run(service.replicas())[0].pid
            chunks = round(args.seconds / CHUNK_S)
            asyncio.run(ways_ms(service, 4, 5))  # warms up
            levels = [
                measure(service, replica, int(level), chunks) for level in args.listeners.split(",")
            ]
        finally:
            service.close()
    passed = levels[0]["way_median_ms"] <= WAY_BAR_MS
    bars = {"way_bar_ms": WAY_BAR_MS, "cores_bar_per_100": CORES_BAR}
    text = json.dumps({"levels": levels, **bars, "way_passed": passed}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
