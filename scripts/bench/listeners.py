"""Simulated listeners of a service, for all benches: closed loops, and crowds that grow and then
stay.

A listener plays from the first chunk on; a chunk is late if all before it has been played by then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Event, Failed, Finished, Placed
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, taken
from scripts.bench.common import PERCENTILES

TICK_S = 0.1
AGAIN_S = 0.5
Submit = Callable[[Request], Awaitable[ReplyStream]]
MakeRequest = Callable[[int, int], Request]
"""(listener's number, reply's number) -> the request, each with an id of its own."""


@dataclass
class Heard:
    """One reply as its listener heard it, in times of `time.monotonic`. Each of `chunks` is when it
    came and how long the silence before it was; each of `replicas` is since when it made the reply,
    and its name."""

    asked_s: float = 0.0
    timeline: Timeline = Timeline()
    chunks: list[tuple[float, float]] = field(default_factory=list)
    replicas: list[tuple[float, str]] = field(default_factory=list)
    dry_s: float = 0.0
    rate_hz: int = 0
    end: Event | None = None
    ending: str = ""  # why it ended; nothing where its listener left
    end_s: float = float("inf")

    @property
    def first_s(self) -> float | None:
        """Seconds to the first sound."""
        return self.chunks[0][0] - self.asked_s if self.chunks else None

    def silence_s(self, start_s: float = 0.0, end_s: float = float("inf")) -> float:
        """The length of all gaps together that ended between two times."""
        return sum(gap_s for came_s, gap_s in self.chunks if start_s <= came_s < end_s)

    def take(self, event: Event) -> None:
        now_s = time.monotonic()
        self.timeline = fold(self.timeline, event)
        if isinstance(event, Placed):
            self.replicas.append((now_s, event.replica))
        elif isinstance(event, AudioChunk):
            gap_s = max(0.0, now_s - self.dry_s) if self.chunks else 0.0
            self.chunks.append((now_s, gap_s))
            self.dry_s = max(now_s, self.dry_s) + len(event.samples) / event.sample_rate_hz
            self.rate_hz = event.sample_rate_hz
        elif isinstance(event, Finished):
            self.ending = event.reason.value
        elif isinstance(event, Failed):
            self.ending = event.code
        self.end = event

    def replica_at(self, time_s: float) -> str | None:
        """The replica that made the reply at a time, None if there was none."""
        if not self.asked_s <= time_s < self.end_s:
            return None
        return next((name for since_s, name in reversed(self.replicas) if since_s <= time_s), None)


async def hear(
    submit: Submit, request: Request, heard: Heard | None = None, *, plays: bool = True
) -> Heard:
    """Listen to a reply to its end; leaving early stops it. Sound is acknowledged when it has been
    played, as by a page, or without `plays` when it comes. Raises what `submit` raises."""
    heard = heard or Heard()
    heard.asked_s = time.monotonic()
    reply = await submit(request)
    playing = asyncio.ensure_future(_play(reply, heard)) if plays else None
    try:
        async with aclosing(reply.events() if plays else taken(reply)) as events:
            async for event in events:
                heard.take(event)
    finally:
        if playing:
            playing.cancel()
        heard.end_s = time.monotonic()
    return heard


async def _play(reply: ReplyStream, heard: Heard) -> None:
    """Acknowledge what has been played, until this task is cancelled."""
    while True:
        await asyncio.sleep(TICK_S)
        if heard.chunks:
            left_s = max(0.0, heard.dry_s - time.monotonic())
            reply.acknowledge(round((heard.timeline.audio_s - left_s) * heard.rate_hz))


@dataclass(frozen=True)
class Load:
    """One level of load; `figures` holds min and percentiles of every figure over its replies.

    There are `concurrency` listeners, who ask again when their reply is complete or, with
    `hears_out`, when they have heard all of it. `audio_s_per_s` counts all listeners together, over
    the time from the first request to the last sample.
    """

    concurrency: int
    replies: int
    wall_s: float
    audio_s_per_s: float
    figures: dict[str, dict[str, float]]
    late_chunks: int
    worst_rtf: float
    hears_out: bool = False


async def closed_loop(
    submit: Submit,
    make_request: MakeRequest,
    concurrency: int,
    replies: int,
    *,
    hears_out: bool = False,
    ramp_s: float = 0.0,
) -> Load:
    """Measure `replies` in all for `concurrency` listeners, who begin one by one within `ramp_s`.
    Raises a MossError if a reply fails, as nothing is measured then."""
    numbers, found, begun_s = iter(range(replies)), list[RequestMetrics](), time.perf_counter()

    async def listener(index: int) -> None:
        await asyncio.sleep(ramp_s * index / concurrency)
        for number in numbers:
            heard = await hear(submit, make_request(index, number), plays=False)
            if isinstance(heard.end, Failed):
                raise MossError(heard.end.message)
            found.append(measure(heard.timeline))
            if hears_out:
                await asyncio.sleep(found[-1].buffered_s)

    await asyncio.gather(*(listener(index) for index in range(concurrency)))
    wall_s = time.perf_counter() - begun_s
    return Load(
        concurrency=concurrency,
        replies=len(found),
        wall_s=wall_s,
        audio_s_per_s=sum(m.audio_s for m in found) / wall_s,
        figures=summarise(found),
        late_chunks=sum(m.underruns for m in found),
        worst_rtf=max((m.rtf for m in found if m.rtf is not None), default=0.0),
        hears_out=hears_out,
    )


@dataclass
class Crowd:
    """What the listeners of a `crowd` met: replies, and requests that were refused."""

    heard: list[Heard] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    refused: int = 0


async def crowd(
    submit: Submit, make_request: MakeRequest, num: int, per_s: float, stay_s: float, seed: int = 0
) -> Crowd:
    """Listeners arrive at random, `per_s` on average, until there are `num`. They play replies out
    and ask again, also when they were refused, and leave `stay_s` after the last one came."""
    found, chance = Crowd(), random.Random(seed)

    async def listen(index: int) -> None:
        number = 0
        while True:
            heard = Heard()
            found.heard.append(heard)
            try:
                await hear(submit, make_request(index, number), heard)
                await asyncio.sleep(max(0.0, heard.dry_s - time.monotonic()))
            except MossError:
                found.refused += 1
                await asyncio.sleep(AGAIN_S)
            number += 1

    tasks, due_s = [], time.monotonic()
    try:
        for index in range(num):
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s += chance.expovariate(per_s)
            tasks.append(asyncio.ensure_future(listen(index)))
            found.arrivals_s.append(time.monotonic())
        await asyncio.sleep(stay_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def summarise(metrics: list[RequestMetrics]) -> dict[str, dict[str, float]]:
    """Minimum and percentiles (linear between ranks) of each figure over `n` replies."""
    figures = {}
    for f in dataclasses.fields(RequestMetrics):
        values = [value for m in metrics if (value := getattr(m, f.name)) is not None]
        if values:
            ranks = zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
            figures[f.name] = {
                "n": len(values),
                "min": float(min(values)),
                **{f"p{p}": float(v) for p, v in ranks},
            }
    return figures


def load_line(load: Load) -> str:
    """One line about a level of load, to be shown while the bench runs."""
    return (
        f"{load.concurrency} at a time, {load.replies} replies, worst RTF {load.worst_rtf:.3f}, "
        f"{load.late_chunks} chunks late, {load.audio_s_per_s:.1f} s of audio a second"
    )
