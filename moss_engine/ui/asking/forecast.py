"""How a reply would sound if it were asked for now: judged by the replies before it, and by how
many are spoken at this moment."""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Failed
from moss_engine.api.info import MachineLimits
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import Speech, Text
from moss_engine.api.service import SpeechService, stream
from moss_engine.ui import form
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.stream import Shared

REMEMBERED = 64  # replies
JUDGED_BY = 9  # of them: the newest among those with the most similar load
WITH_ROOM = 0.9  # an RTF below which sound is made fast enough
FRESH_S = 0.25
WARM_UP_ROWS = 64
WARM_UP_HZ = 16_000  # one second of silence for the encoder


@dataclass(frozen=True)
class Seen:
    """A reply that was spoken to its end, while `others` were spoken: seconds to its first sound
    and of its sound, RTF, and the characters that it was asked with; `reads`: it is that text."""

    others: int
    first_s: float
    rtf: float
    audio_s: float
    chars: int
    reads: bool

    @staticmethod
    def of(figures: RequestMetrics, others: int, text: str, reads: bool) -> Seen | None:
        """None where there was no sound."""
        if figures.ttfa_ms is None or figures.rtf is None:
            return None
        first_s, chars = figures.ttfa_ms / 1000, len(text.strip())
        return Seen(max(0, others), first_s, figures.rtf, figures.audio_s, chars, reads)


@dataclass(frozen=True)
class Forecast:
    """Seconds from the question being accepted to its first sound, whether the sound will have
    gaps, how long it will be, which only reading aloud knows, and how many others are spoken."""

    first_s: float
    gaps: bool
    length_s: float | None
    others: int


def forecast(
    seen: Iterable[Seen], *, others: int, waiting: int, places: int, chars: int, reads: bool
) -> Forecast | None:
    """None while nothing was seen. Replies share one machine: each takes its time as many times as
    there are voices."""
    known = list(seen)
    if not known:
        return None
    nearest = min(abs(reply.others - others) for reply in known)
    alike = [reply for reply in known if abs(reply.others - others) == nearest][-JUDGED_BY:]
    busy = min(others, places - 1)

    def typical(value: Callable[[Seen], float]) -> float:
        return statistics.median(value(reply) * (1 + busy) / (1 + reply.others) for reply in alike)

    first_s, rtf = typical(lambda reply: reply.first_s), typical(lambda reply: reply.rtf)
    if others >= places:  # somebody must come to an end first
        first_s += (waiting + 1) * typical(lambda reply: reply.rtf * reply.audio_s) / places
    read = [reply.audio_s / reply.chars for reply in known if reply.reads and reply.chars]
    length_s = chars * statistics.median(read) if reads and read else None
    return Forecast(first_s, rtf >= WITH_ROOM, length_s, others)


class Forecasts(Shared):
    """Of one page, from all its visitors' replies."""

    def __init__(self, facts: PageInfo, pool: PoolWatch):
        self._facts = facts
        self._pool = pool
        self._seen: deque[Seen] = deque(maxlen=REMEMBERED)

    def note(self, seen: Seen | None) -> None:
        """A reply was spoken to its end."""
        if seen is not None:
            self._seen.append(seen)

    async def foresee(self, mode: str, text: str, own: str) -> str:
        """The forecast for a text as JSON, or "" where there is none. `own` is not empty while a
        reply of the same visitor speaks, which this one would end."""
        found = next((known for known in self._facts.modes if known.name == mode), None)
        if found is None or found.output != "speech" or not isinstance(text, str):
            return ""
        counts = await self._pool.counts(now=True)
        told = forecast(
            self._seen,
            others=max(0, counts["running"] - bool(own)),
            waiting=counts["waiting"],
            places=self._facts.max_sessions,
            chars=len(text.strip()),
            reads=found.split_sentences,
        )
        return json.dumps(asdict(told)) if told else ""


class PoolWatch:
    """Used on one event loop."""

    def __init__(self, service: SpeechService, clock: Callable[[], float] = time.monotonic):
        self._service = service
        self._clock = clock
        self._asked_s: float | None = None
        self._counts: Mapping[str, Any] = {}
        self.limits: MachineLimits | None = None  # as last heard of

    async def counts(self, *, now: bool = False) -> Mapping[str, Any]:
        """Blocks by state, replies by state, and in a cluster its `ClusterStats`; FRESH_S old
        at the most, or those of `now`."""
        now_s = self._clock()
        if now or self._asked_s is None or now_s - self._asked_s > FRESH_S:
            self._asked_s = now_s
            self._counts = await self._ask()
        return self._counts

    async def _ask(self) -> Mapping[str, Any]:
        stats = await self._service.stats()
        engine, self.limits = stats.engine, stats.limits
        cluster = {} if stats.cluster is None else asdict(stats.cluster)
        return {
            **cluster,
            "used": engine.blocks_used,
            "cached": engine.blocks_cached,
            "free": engine.blocks_free,
            "running": engine.running,
            "waiting": engine.waiting,
        }


async def warm_up(service: SpeechService, facts: PageInfo) -> Seen | None:
    """Send a warm-up request: the first use of every part is slow, and a part that does not work
    should be known now. Answers with how a second one went, from which the first visitor's forecast
    is made."""
    values = {**form.defaults(facts), "max_rows": min(WARM_UP_ROWS, facts.sampling.max_rows)}
    said: Text | Speech = Text("Hello.")
    if facts.recogniser is not None:
        await service.glimpse(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
    if facts.encodes:
        codes = await service.encode(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
        said = Speech(codes) if facts.default_mode.input == "speech" else said
    for _ in range(2):
        timeline = Timeline()
        request = form.request_of(values, facts, 0, (), said, "warm-up")
        async for event in stream(service, request):
            timeline = fold(timeline, event)
            if isinstance(event, Failed):
                raise EngineFaultError(event.message)
    text = said.text if isinstance(said, Text) else ""
    return Seen.of(measure(timeline), 0, text, facts.default_mode.split_sentences)
