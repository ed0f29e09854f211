"""One service, or replicas, under the listeners of `scripts.bench.cluster.gpus`: what they meet
while they grow in number, while nothing happens, and through a death and an upgrade."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.info import ServiceInfo
from moss_engine.api.service import StartableService
from moss_engine.cluster.service import ClusterService
from scripts.bench.cluster import listeners
from scripts.bench.cluster.listeners import Crowd, Heard, Listening
from scripts.bench.cluster.pages import Crowds, Page
from scripts.bench.cluster.replica_way import cpu_s
from scripts.bench.cluster.requests import make_request

REPLACED_S = 110.0
POLL_S = 0.1


class Run:
    """One service under load, its listeners in this process."""

    def __init__(self, args: argparse.Namespace, service: StartableService):
        self.args, self.service = args, service
        self.info: ServiceInfo = asyncio.run(service.describe())
        self._crowds = 0

    @asynccontextmanager
    async def crowd(self, count: int = 0) -> AsyncGenerator[Listening, None]:
        """Listeners, so many to begin with, who leave at the end."""
        self._crowds += 1
        crowd = self._make_crowd(self._crowds)
        try:
            if count:
                await crowd.begin(count, count / self.args.ramp_s)
                while not await crowd.have_come():
                    await asyncio.sleep(POLL_S)
            yield crowd
        finally:
            await crowd.leave()

    def _make_crowd(self, number: int) -> Listening:
        return Crowd(self.service, partial(make_request, self.args, self.info, number))

    async def warm_up(self, count: int) -> None:
        """What is made at first use is made here."""
        async with self.crowd() as crowd:
            await crowd.begin(count, float(count))
            while not (len(crowd.heard) >= count and all(h.first_s for h in crowd.heard)):
                await asyncio.sleep(POLL_S)
                await crowd.refresh()

    async def grow(self, num_services: int) -> dict[str, Any]:
        """Listeners come until chunks are late."""
        args = self.args
        async with self.crowd(args.first * num_services) as crowd:
            await crowd.begin(args.most * num_services, args.per_s * num_services)
            while not await crowd.have_come():
                await asyncio.sleep(1.0)
                await crowd.refresh()
                if listeners.capacity(crowd)[1] is not None:
                    break
            return {
                "listeners": len(crowd.arrivals_s),
                "refused": crowd.refused,
                "at_first_late_chunk": listeners.capacity(crowd)[0],
                "at_one_percent_late": listeners.capacity(crowd)[1],
                "ttfa_ms": by_level(crowd, max(1, args.first // 4) * num_services),
            }

    async def hold(self, count: int) -> dict[str, Any]:
        """So many listeners, and what they cost and meet."""
        async with self.crowd(count) as crowd:
            await asyncio.sleep(self.args.ramp_s / 2)
            replicas = await self._replica_pids()
            meters = {pid: ThreadTimes(pid) for pid in (*self._page_pids(), *replicas)}
            begun_s = time.monotonic()
            await asyncio.sleep(self.args.hold_s)
            end_s = time.monotonic()
            cores = {pid: meter.cores() for pid, meter in meters.items()}
            await crowd.refresh()
            return {
                "listeners": count,
                "refused": crowd.refused,
                "ttfa_ms": listeners.ttfa_ms(crowd.heard, begun_s, end_s),
                **listeners.lateness(crowd.heard, begun_s, end_s),
                "by_replica": listeners.by_replica(crowd.heard, begun_s, end_s),
                "page_cores": [cores[pid] for pid in self._page_pids()],
                "replica_cores": [cores[pid] for pid in replicas],
            }

    def _page_pids(self) -> list[int]:
        return [os.getpid()]

    async def _replica_pids(self) -> list[int]:
        return []


class ClusterRun(Run):
    """Replicas, with the listeners in page processes. `service` is that of this process, at which
    nobody listens."""

    service: ClusterService

    def __init__(self, args: argparse.Namespace, service: ClusterService, pages: Sequence[Page]):
        super().__init__(args, service)
        self.pages = self._all_pages = pages

    def use_pages(self, count: int | None) -> None:
        """All of them without a count."""
        self.pages = self._all_pages[:count]

    def _make_crowd(self, number: int) -> Listening:
        return Crowds(self.pages, number)

    def _page_pids(self) -> list[int]:
        return [page.pid for page in self.pages]

    async def _replica_pids(self) -> list[int]:
        return [card.pid for card in await self.service.replicas()]

    async def kill(self, count: int) -> dict[str, Any]:
        """The death of a replica under so many listeners, until another one has taken its place."""
        async with self.crowd(count) as crowd:
            await asyncio.sleep(self.args.hold_s / 3)
            await crowd.refresh()
            now_s = time.monotonic()
            serving = Counter(heard.replica_at(now_s) for heard in crowd.heard)
            cards = await self.service.replicas()
            assert cards, "no replica is left to be killed"
            doomed = max(cards, key=lambda card: serving[card.name])
            before = listeners.lateness(crowd.heard, 0.0, now_s)
            killed_s = time.monotonic()
            os.kill(doomed.pid, signal.SIGKILL)
            await asyncio.sleep(self.args.hold_s)
            await crowd.refresh()
            found = {"listeners": count, "refused": crowd.refused, "before": before}
            found |= after_death(crowd.heard, doomed.name, killed_s)
        if self.args.parts[-1].partition(":")[0] != "kill":  # somebody needs them
            found["replaced_after_s"] = await self._all_there(killed_s)
        return found

    async def upgrade(self, count: int, replace_all: Callable[[], None]) -> dict[str, Any]:
        """All replicas are replaced under so many listeners."""
        async with self.crowd(count) as crowd:
            await asyncio.sleep(self.args.hold_s / 3)
            old = {card.name for card in await self.service.replicas()}
            begun_s = time.monotonic()
            await asyncio.to_thread(replace_all)
            while {card.name for card in await self.service.replicas()} & old:
                assert time.monotonic() - begun_s < REPLACED_S, "a replica was not replaced"
                await asyncio.sleep(POLL_S)
            took_s = time.monotonic() - begun_s
            await asyncio.sleep(self.args.hold_s / 3)
            await crowd.refresh()
            return {
                "listeners": count,
                "refused": crowd.refused,
                "took_s": round(took_s, 1),
                **listeners.lateness(crowd.heard, begun_s, time.monotonic()),
                "moved": sum(len(h.replicas) > 1 for h in crowd.heard),
            }

    async def _all_there(self, since_s: float) -> float | None:
        while len(await self.service.replicas()) < self.args.gpus:
            if time.monotonic() - since_s > REPLACED_S:
                return None
            await asyncio.sleep(POLL_S)
        return round(time.monotonic() - since_s, 1)


class ThreadTimes:
    """What the threads of a process compute from now on."""

    def __init__(self, pid: int):
        self._tasks = Path(f"/proc/{pid}/task")
        self._begun_s, self._before = time.monotonic(), self._now_s()

    def cores(self) -> dict[str, Any]:
        """Of the process, and of those of its threads that took most, in order."""
        wall_s, now_s = time.monotonic() - self._begun_s, self._now_s()
        shares = [(s - self._before.get(name, 0.0)) / wall_s for name, s in now_s.items()]
        busiest = sorted((round(share, 2) for share in shares if share > 0.02), reverse=True)
        return {"all": round(sum(shares), 2), "threads": busiest[:6]}

    def _now_s(self) -> dict[str, float]:
        if not self._tasks.is_dir():  # it was killed
            return {}
        return {task.name: cpu_s(task) for task in self._tasks.iterdir()}


def after_death(heard: list[Heard], doomed: str, killed_s: float) -> dict[str, Any]:
    """What the listeners of a replica that was killed met, and those of the others."""
    end_s = time.monotonic()
    theirs = [h for h in heard if h.replica_at(killed_s) == doomed]
    known = {id(h) for h in theirs}
    others = [h for h in heard if id(h) not in known]
    resumed_ms = [1000 * (t - killed_s) for h in theirs for t, _ in h.replicas if t > killed_s]
    return {
        "of_the_dead": listeners.lateness(theirs, killed_s, end_s),
        "silence_s": silences_s(theirs, killed_s, end_s),
        "resumed_ms": {"count": len(resumed_ms), "last": round(max(resumed_ms, default=0))},
        "first_chunk_ms": wait_ms(theirs, killed_s),
        "others": listeners.lateness(others, killed_s, end_s),
        "others_running": listeners.lateness(
            [h for h in others if h.asked_s < killed_s], killed_s, end_s
        ),
    }


def silences_s(heard: list[Heard], start_s: float, end_s: float) -> dict[str, float]:
    """Median and 95th percentile over replies of the silence between two times, and the share of
    replies with at most half a second of it."""
    found = [h.silence_s(start_s, end_s) for h in heard]
    if not found:
        return {}
    p50, p95 = np.percentile(found, (50, 95))
    within = sum(silence_s <= 0.5 for silence_s in found) / len(found)
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3), "within_half": within}


def by_level(crowd: Listening, step: int) -> dict[str, dict[str, float]]:
    """Times to the first sound, by the number of listeners who were there."""
    levels: dict[int, list[Heard]] = {}
    for heard in crowd.heard:
        level = listeners.present(crowd, heard.asked_s) // step * step
        levels.setdefault(level, []).append(heard)
    never = float("inf")
    return {str(n): listeners.ttfa_ms(found, -never, never) for n, found in sorted(levels.items())}


def wait_ms(heard: list[Heard], since_s: float) -> dict[str, int]:
    """How long after a time the next chunk of each reply came."""
    waits = [
        min((came_s for came_s, _ in h.chunks if came_s > since_s), default=since_s) - since_s
        for h in heard
    ]
    waits = sorted(1000 * wait_s for wait_s in waits if wait_s > 0)
    if not waits:
        return {}
    return {"median": round(waits[len(waits) // 2]), "last": round(waits[-1])}
