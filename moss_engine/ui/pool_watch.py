"""Counts of the whole service for every listener's panel, asked for once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from moss_engine.api.info import MachineLimits
from moss_engine.api.service import SpeechService

FRESH_S = 0.25


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
