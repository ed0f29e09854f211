"""A service that computes nothing and speaks at the pace of a GPU, to find what else limits
`scripts.bench.cluster.gpus`: rows and chunks come as from the full-size network with half its
places taken."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from moss_engine.api.events import Accepted, AudioChunk, Finished, FinishReason, Sampled
from moss_engine.api.info import EngineStats, ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.tokens import Modality, Row
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.serve.deployment import Replica
from moss_engine.cluster.values import Card
from moss_engine.service.reply_stream import LocalReplyStream, Waiter, wake
from scripts.bench.cluster.replica_way import INFO as SCRIPTED
from scripts.bench.cluster.replica_way import ScriptedService

ROWS, ROW_SAMPLES, RATE_HZ = 128, 1920, 24_000
CHUNK_ENDS = {5, 15, *range(35, ROWS, 20), ROWS}
ROWS_PER_S = 36.0
STEP_S = 0.014
FIRST_S = 0.15
MOST = 600
INFO = replace(
    SCRIPTED, samples_per_code=ROW_SAMPLES, sample_rate_hz=RATE_HZ, max_sessions=MOST, lease_s=60.0
)


class PacedReply:
    """Its rows, each at its time, and the sound up to each of CHUNK_ENDS."""

    def __init__(self, request: Request):
        self.stream = LocalReplyStream(
            request.request_id, clock=time.monotonic, cancel=self._cancel, on_taken=lambda: None
        )
        progress = request.progress
        self.rows: list[Row] = list(progress.rows) if progress else []
        self.is_over = False
        self._num_known = len(self.rows)
        self._sounded = progress.num_samples if progress else 0
        self._name = request.request_id

    def _cancel(self, request_id: str) -> None:
        self.is_over = True

    def step(self, waiters: list[Waiter]) -> None:
        """What is due by now."""
        elapsed_s = self.stream.elapsed_s()
        due = self._num_known + (elapsed_s - FIRST_S) * ROWS_PER_S
        while len(self.rows) < min(ROWS, due) and not self.is_over:
            row = Row(4096, len(self.rows))
            self.rows.append(row)
            count = len(self.rows)
            self.stream.put(Sampled(self._name, elapsed_s, count, row, Modality.AUDIO), waiters)
            if count in CHUNK_ENDS:
                self._sound(elapsed_s, waiters)
        if len(self.rows) == ROWS and not self.is_over:
            reason = FinishReason.STOP
            last = Finished(self._name, elapsed_s, ROWS, reason, tuple(self.rows))
            self.stream.put(last, waiters)
            self.is_over = True

    def _sound(self, elapsed_s: float, waiters: list[Waiter]) -> None:
        end = len(self.rows) * ROW_SAMPLES
        samples = np.zeros(end - self._sounded, np.float32)
        chunk = AudioChunk(self._name, elapsed_s, len(self.rows), samples, self._sounded, RATE_HZ)
        self._sounded = end
        self.stream.put(chunk, waiters)


class PacedService(ScriptedService):
    """What a replica or a page asks of a service."""

    def __init__(self) -> None:
        self._open: deque[PacedReply] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def start(self) -> None:
        """It runs already."""

    async def describe(self) -> ServiceInfo:
        return INFO

    async def submit(self, request: Request) -> LocalReplyStream:
        reply = PacedReply(request)
        reply.stream.put(Accepted(request.request_id, 0.0, 0, 64))
        self._open.append(reply)
        return reply.stream

    async def stats(self) -> ServiceStats:
        running = len(self._open)
        return ServiceStats(EngineStats(running, 0, 0, 0, 0, 0, 0), "ready", 0.0, {})

    def _run(self) -> None:
        while True:
            begun_s = time.monotonic()
            waiters: list[Waiter] = []
            for _ in range(len(self._open)):
                reply = self._open.popleft()
                reply.step(waiters)
                if not reply.is_over:
                    self._open.append(reply)
            wake(waiters)
            time.sleep(max(0.0, begun_s + STEP_S - time.monotonic()))


class PacedReplica(Replica):
    """The same as a replica; another `version` makes Serve replace it."""

    async def __init__(self, version: int) -> None:
        from ray import serve

        self._service: Any = PacedService()
        self._name = serve.get_replica_context().replica_id.unique_id
        card = Card(self._name, "paced", f"version {version}", os.getpid())
        self._server = ReplicaServer(self._service, INFO, card)
