"""A replica under Ray Serve that says scripted sound at the pace of speech, without models."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.events import Accepted, AudioChunk, Event, Finished, FinishReason
from moss_engine.api.info import EngineStats, RuntimeInfo, ServiceInfo, ServiceStats
from moss_engine.api.request import Request, Text
from moss_engine.api.tokens import SpecialIds
from moss_engine.cluster.fleet import Card
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.text.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING

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
