"""What the page shows of the service that it was given: what it is, what it lacks, and how busy it
is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from moss_engine.api.info import ServiceInfo
from moss_engine.api.service import SpeechService

FRESH_S = 0.25


@dataclass(frozen=True)
class Unavailable:
    """What this checkpoint cannot do, with the reason as one sentence."""

    label: str
    why: str


HEARS_NOTHING = Unavailable(
    "Speak to it", "This checkpoint was trained on text alone: it cannot understand a voice."
)
SCRIPTED_ONLY = Unavailable(
    "Free conversation",
    "This checkpoint reads texts and knows a few scripted answers: it cannot think of new ones.",
)


@dataclass(frozen=True)
class PageInfo(ServiceInfo):
    """A service's description, and what the page's own server adds: `no_hands_free` is a sentence
    that says why turns must be ended by hand, or None."""

    no_hands_free: str | None = None

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """What MOSS-Speech offers and this checkpoint does not."""
        converses = any(mode.history for mode in self.modes)
        hears_nothing = replace(HEARS_NOTHING, why=self.no_recogniser or HEARS_NOTHING.why)
        return (() if self.hears else (hears_nothing,)) + (
            (SCRIPTED_ONLY,) if self.scripted or not converses else ()
        )

    @property
    def scripted(self) -> bool:
        """Whether answers are what is known by heart, and what a clock and a calculator know."""
        return self.brain is None and any(mode.through_text for mode in self.modes)

    def pieces_of(self, ids: Iterable[int]) -> dict[str, str]:
        """What text ids stand for; those of speech are negative, and stand for nothing."""
        return {str(i): self.pieces[i] for i in set(ids) if i >= 0}

    @staticmethod
    def of(info: ServiceInfo, no_hands_free: str | None = None) -> PageInfo:
        values = {f.name: getattr(info, f.name) for f in dataclasses.fields(ServiceInfo)}
        return PageInfo(**values, no_hands_free=no_hands_free)


class PoolWatch:
    """Used on one event loop."""

    def __init__(self, service: SpeechService, clock: Callable[[], float] = time.monotonic):
        self._service = service
        self._clock = clock
        self._asked_s: float | None = None
        self._counts: Mapping[str, Any] = {}

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
        engine = stats.engine
        cluster = {} if stats.cluster is None else asdict(stats.cluster)
        return {
            **cluster,
            "used": engine.blocks_used,
            "cached": engine.blocks_cached,
            "free": engine.blocks_free,
            "running": engine.running,
            "waiting": engine.waiting,
        }
