"""Listeners who play what they hear at its own pace and ask again when it is over; and what each of
them met, by the clock of the page that they listen at.

As a page does, they take what they have played, not what has come. A chunk is late when everything
before it has been played; the silence before it is a gap.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Failed, Finished, FinishReason, Placed
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, SpeechService

MakeRequest = Callable[[int, int], Request]
TICK_S = 0.1
WINDOW_S = 2.0
LATE_SHARE = 0.01
AGAIN_S = 0.5


@dataclass
class Heard:
    """One reply. Times are those of `time.monotonic`; `chunks` are when each came, and the silence
    before it; `replicas` are those that made it, and since when."""

    asked_s: float
    first_s: float | None = None
    chunks: list[tuple[float, float]] = field(default_factory=list)
    replicas: list[tuple[float, str]] = field(default_factory=list)
    end: str = "open"
    end_s: float = float("inf")

    @property
    def ttfa_ms(self) -> float | None:
        return None if self.first_s is None else 1000 * (self.first_s - self.asked_s)

    def replica_at(self, time_s: float) -> str | None:
        """Who made it at a time; None where nobody did."""
        if not self.asked_s <= time_s < self.end_s:
            return None
        return next((name for since_s, name in reversed(self.replicas) if since_s <= time_s), None)

    def silence_s(self, start_s: float, end_s: float) -> float:
        """Gaps that ended between two times, together."""
        return sum(gap_s for came_s, gap_s in self.chunks if start_s <= came_s < end_s)


class Listening(Protocol):
    """Listeners of one page or of several: what they met until `refresh`."""

    heard: list[Heard]
    arrivals_s: list[float]
    refused: int

    async def begin(self, count: int, per_s: float) -> None: ...

    async def have_come(self) -> bool: ...

    async def refresh(self) -> None: ...

    async def leave(self) -> None: ...


class Crowd:
    """Listeners of one service, on one event loop. `refused` counts who was told to come later."""

    def __init__(self, service: SpeechService, make_request: MakeRequest):
        self.heard: list[Heard] = []
        self.arrivals_s: list[float] = []
        self.refused = 0
        self._service = service
        self._make_request = make_request
        self._tasks: list[asyncio.Task[None]] = []
        self._coming: asyncio.Task[None] | None = None
        self._staying = 0
        self._chance = random.Random(os.getpid())  # no two pages have the same visitors

    async def begin(self, count: int, per_s: float) -> None:
        """Let listeners come from now on, independently of each other, until there are `count`."""
        self._coming = asyncio.ensure_future(self._come(count, per_s))

    async def have_come(self) -> bool:
        """Whether all who were to come are there."""
        return self._coming is not None and self._coming.done()

    async def refresh(self) -> None:
        """Everything is known here at once."""

    async def leave(self) -> None:
        """Everybody closes the page."""
        tasks = [*self._tasks, *([self._coming] if self._coming else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _come(self, count: int, per_s: float) -> None:
        due_s = time.monotonic()
        while self._staying < count:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s += self._chance.expovariate(per_s)
            self._tasks.append(asyncio.ensure_future(self._listen(self._staying)))
            self._staying += 1
            self.arrivals_s.append(time.monotonic())

    async def _listen(self, index: int) -> None:
        number = 0
        while True:
            try:
                await self._hear(self._make_request(index, number))
            except MossError:
                self.refused += 1
                await asyncio.sleep(AGAIN_S)
            number += 1

    async def _hear(self, request: Request) -> None:
        playing = Playing(Heard(time.monotonic()))
        reply = await self._service.submit(request)
        self.heard.append(playing.heard)
        taking = asyncio.ensure_future(playing.take(reply))
        try:
            async with aclosing(reply.events(acknowledge=False)) as events:
                async for event in events:
                    now_s = time.monotonic()
                    if isinstance(event, Placed):
                        playing.heard.replicas.append((now_s, event.replica))
                    elif isinstance(event, AudioChunk):
                        playing.add(event, now_s)
                    elif isinstance(event, Finished | Failed):
                        ended = isinstance(event, Finished)
                        playing.heard.end = event.reason.value if ended else event.code
                        playing.heard.end_s = now_s
        finally:
            taking.cancel()
        await asyncio.sleep(max(0.0, playing.dry_s - time.monotonic()))


class Playing:
    """A reply at its listener's ear, who has played everything at `dry_s`."""

    def __init__(self, heard: Heard):
        self.heard = heard
        self.dry_s = 0.0
        self._num_samples = self._rate_hz = 0

    def add(self, chunk: AudioChunk, now_s: float) -> None:
        if self.heard.first_s is None:
            self.heard.first_s = self.dry_s = now_s
        gap_s = max(0.0, now_s - self.dry_s)
        self.heard.chunks.append((now_s, gap_s))
        self._num_samples += len(chunk.samples)
        self._rate_hz = chunk.sample_rate_hz
        self.dry_s += gap_s + len(chunk.samples) / chunk.sample_rate_hz

    async def take(self, reply: ReplyStream) -> None:
        """Acknowledge what was played, until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            left_s = max(0.0, self.dry_s - time.monotonic())
            reply.acknowledge(self._num_samples - round(left_s * self._rate_hz))


def capacity(crowd: Listening) -> tuple[int, int | None]:
    """Listeners who were there when the first chunk came late, and, where it happened, when more
    than LATE_SHARE of the chunks of WINDOW_S did; all of them where none came late."""
    chunks = sorted(chunk for heard in crowd.heard for chunk in heard.chunks)
    first = next((came_s for came_s, gap_s in chunks if gap_s > 0), float("inf"))
    found = None
    times = np.array([came_s for came_s, _ in chunks])
    late = np.cumsum([0, *(gap_s > 0 for _, gap_s in chunks)])
    for end, came_s in enumerate(times, 1):
        start = int(np.searchsorted(times, came_s - WINDOW_S))
        if came_s - times[0] > WINDOW_S and late[end] - late[start] > LATE_SHARE * (end - start):
            found = present(crowd, float(came_s) - WINDOW_S)
            break
    return present(crowd, first), found


def present(crowd: Listening, at_s: float) -> int:
    return sum(came_s < at_s for came_s in crowd.arrivals_s)


def ttfa_ms(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, float]:
    """Median and 95th percentile of the replies that were asked for between two times."""
    values = [h.ttfa_ms for h in heard if start_s <= h.asked_s < end_s and h.ttfa_ms is not None]
    if not values:
        return {"replies": 0}
    p50, p95 = np.percentile(values, (50, 95))
    return {"replies": len(values), "p50": round(float(p50), 1), "p95": round(float(p95), 1)}


def lateness(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, Any]:
    """Chunks that came between two times, those that were late, and the longest silence of one
    reply."""
    heard = list(heard)
    chunks = [gap for h in heard for came_s, gap in h.chunks if start_s <= came_s < end_s]
    silences = [h.silence_s(start_s, end_s) for h in heard]
    return {
        "replies": len([h for h in heard if h.end_s > start_s and h.asked_s < end_s]),
        "chunks": len(chunks),
        "late_chunks": sum(gap > 0 for gap in chunks),
        "replies_with_silence": sum(silence > 0 for silence in silences),
        "longest_silence_s": round(max(silences, default=0.0), 3),
        "cut": sum(is_cut(h) for h in heard),
    }


def by_replica(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, int]:
    """How many replies that were asked for between two times each replica made."""
    asked = [h for h in heard if start_s <= h.asked_s < end_s and h.replicas]
    return dict(Counter(h.replicas[-1][1] for h in asked))


def is_cut(heard: Heard) -> bool:
    """Whether a reply is over, but not at its end."""
    ends = {"open", FinishReason.STOP.value, FinishReason.LENGTH.value}
    return heard.end not in ends
