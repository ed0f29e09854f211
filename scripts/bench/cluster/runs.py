"""One service, or replicas, under the listeners of `scripts.bench.cluster.gpus`: what they meet
while they grow in number, while nothing happens, and through a death and an upgrade."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import StartableService
from moss_engine.cluster.service import ClusterService
from scripts.bench.cluster import listeners
from scripts.bench.cluster.listeners import Crowd, Heard
from scripts.bench.cluster.replica_way import cpu_s
from scripts.bench.common.sentences import sentence

REPLACED_S = 180.0


class Run:
    """One service under load, from a page's loop."""

    def __init__(self, args: argparse.Namespace, service: StartableService):
        self.args, self.service = args, service
        self.info: ServiceInfo = asyncio.run(service.describe())
        self._crowds = 0

    def crowd(self) -> Crowd:
        self._crowds += 1
        return Crowd(self.service, partial(self._request, self._crowds))

    def _request(self, crowd: int, listener: int, number: int) -> Request:
        name, seed = f"{os.getpid()}-{crowd}-{listener}", 1000 * listener + number
        mode, sampling = self.info.default_mode.name, replace(self.info.sampling, seed=seed)
        if self.args.checkpoint is None:
            codes = self.args.codes
            sampling = replace(sampling, max_rows=codes, min_rows=codes + 2)
        messages = (Message("user", Text(sentence(seed))),)
        return Request(f"{name}-{number}", name, messages, mode, sampling)

    async def warm_up(self, count: int) -> None:
        """What is made at first use is made here."""
        crowd = self.crowd()
        await crowd.grow(count, float(count))
        while not all(heard.first_s for heard in crowd.heard):
            await asyncio.sleep(0.1)
        await crowd.leave()

    async def grow(self, num_services: int) -> dict[str, Any]:
        """Listeners come until chunks are late."""
        args, crowd = self.args, self.crowd()
        first, most = args.first * num_services, args.most * num_services
        await crowd.grow(first, first / args.ramp_s)
        growing = asyncio.ensure_future(crowd.grow(most, args.per_s * num_services))
        while not growing.done() and listeners.capacity(crowd)[1] is None:
            await asyncio.sleep(1.0)
        growing.cancel()
        found = {
            "listeners": len(crowd.arrivals_s),
            "refused": crowd.refused,
            "at_first_late_chunk": listeners.capacity(crowd)[0],
            "at_one_percent_late": listeners.capacity(crowd)[1],
            "ttfa_ms": by_level(crowd, max(1, args.first // 4) * num_services),
        }
        await crowd.leave()
        return found

    async def hold(self, count: int) -> dict[str, Any]:
        """So many listeners, and what they cost and meet."""
        crowd = self.crowd()
        await crowd.grow(count, count / self.args.ramp_s)
        pids = await self._pids()
        before, begun_s = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
        await asyncio.sleep(self.args.hold_s)
        end_s = time.monotonic()
        cores = {pid: (cpu_s(pid) - before[pid]) / (end_s - begun_s) for pid in pids}
        await crowd.leave()
        return {
            "listeners": count,
            "refused": crowd.refused,
            "ttfa_ms": listeners.ttfa_ms(crowd.heard, begun_s, end_s),
            **listeners.lateness(crowd.heard, begun_s, end_s),
            "page_cores": round(cores.pop(os.getpid()), 2),
            "replica_cores": [round(value, 2) for value in cores.values()],
        }

    async def _pids(self) -> list[int]:
        if not isinstance(self.service, ClusterService):
            return [os.getpid()]
        return [os.getpid(), *(card.pid for card in await self.service.replicas())]


class ClusterRun(Run):
    """The same in front of replicas."""

    service: ClusterService

    async def kill(self, count: int) -> dict[str, Any]:
        """The death of a replica under so many listeners, until another one has taken its place."""
        crowd = self.crowd()
        await crowd.grow(count, count / self.args.ramp_s)
        await asyncio.sleep(self.args.hold_s / 3)
        now_s = time.monotonic()
        serving = Counter(heard.replica_at(now_s) for heard in crowd.heard)
        cards = await self.service.replicas()
        doomed = max(cards, key=lambda card: serving[card.name])
        before = listeners.lateness(crowd.heard, 0.0, now_s)
        killed_s = time.monotonic()
        os.kill(doomed.pid, signal.SIGKILL)
        await asyncio.sleep(self.args.hold_s)
        end_s = time.monotonic()
        theirs = [h for h in crowd.heard if h.replica_at(killed_s) == doomed.name]
        known = {id(heard) for heard in theirs}
        others = [h for h in crowd.heard if id(h) not in known]
        resumed_ms = [1000 * (t - killed_s) for h in theirs for t, _ in h.replicas if t > killed_s]
        found = {
            "listeners": count,
            "refused": crowd.refused,
            "before": before,
            "of_the_dead": listeners.lateness(theirs, killed_s, end_s),
            "resumed_ms": {"count": len(resumed_ms), "last": round(max(resumed_ms, default=0))},
            "first_chunk_ms": wait_ms(theirs, killed_s),
            "others": listeners.lateness(others, killed_s, end_s),
            "others_running": listeners.lateness(
                [h for h in others if h.asked_s < killed_s], killed_s, end_s
            ),
        }
        await crowd.leave()
        if self.args.parts[-1].partition(":")[0] != "kill":  # somebody needs them
            found["replaced_after_s"] = await self._all_there(killed_s)
        return found

    async def upgrade(self, count: int, replace_all: Callable[[], None]) -> dict[str, Any]:
        """All replicas are replaced under so many listeners."""
        crowd = self.crowd()
        await crowd.grow(count, count / self.args.ramp_s)
        await asyncio.sleep(self.args.hold_s / 3)
        old, begun_s = {card.name for card in await self.service.replicas()}, time.monotonic()
        await asyncio.to_thread(replace_all)
        while {card.name for card in await self.service.replicas()} & old:
            assert time.monotonic() - begun_s < REPLACED_S, "a replica was not replaced"
            await asyncio.sleep(0.1)
        took_s = time.monotonic() - begun_s
        await asyncio.sleep(self.args.hold_s / 3)
        found = {
            "listeners": count,
            "refused": crowd.refused,
            "took_s": round(took_s, 1),
            **listeners.lateness(crowd.heard, begun_s, time.monotonic()),
            "moved": sum(len(h.replicas) > 1 for h in crowd.heard),
        }
        await crowd.leave()
        return found

    async def _all_there(self, since_s: float) -> float | None:
        while len(await self.service.replicas()) < self.args.gpus:
            if time.monotonic() - since_s > REPLACED_S:
                return None
            await asyncio.sleep(0.25)
        return round(time.monotonic() - since_s, 1)


def by_level(crowd: Crowd, step: int) -> dict[str, dict[str, float]]:
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
