"""What is known of the whole service: its blocks and its replies, and that it speaks at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Failed
from moss_engine.api.info import MachineLimits
from moss_engine.api.request import Speech, Text
from moss_engine.api.service import SpeechService, stream
from moss_engine.ui import form
from moss_engine.ui.facts import PageInfo

FRESH_S = 0.25
WARM_UP_ROWS = 64
WARM_UP_HZ = 16_000  # one second of silence for the encoder


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


async def warm_up(service: SpeechService, facts: PageInfo) -> None:
    """Speak twice before anybody visits: the first use of every part is slow, and a part that does
    not work should be known now."""
    values = {**form.defaults(facts), "max_rows": min(WARM_UP_ROWS, facts.sampling.max_rows)}
    said: Text | Speech = Text("Hello.")
    if facts.recogniser is not None:
        await service.transcribe_partial(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
    if facts.encodes:
        codes = await service.encode(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
        said = Speech(codes) if facts.default_mode.input == "speech" else said
    for _ in range(2):
        request = form.request_of(values, facts, 0, (), said, "warm-up")
        async for event in stream(service, request):
            if isinstance(event, Failed):
                raise EngineFaultError(event.message)
