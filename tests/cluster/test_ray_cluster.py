"""Two replicas under Ray Serve, of which one is killed in the middle of replies."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.events import AudioChunk, Event, Finished, Placed, Sampled
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import Row
from moss_engine.build import build_service
from moss_engine.cluster.service import ClusterService
from moss_engine.config import EngineConfig, TalkConfig
from tests.fixtures.make_tiny_checkpoint import write_checkpoint
from tests.service.service_support import assert_well_formed, heard, listen

ray = pytest.importorskip("ray", reason="ray is not installed")

AT_A_TIME, SEEDS = 6, 3
PATIENCE_S = 600.0
ROWS = 60


@dataclass(frozen=True)
class Said:
    """What one process says."""

    rows: tuple[Row, ...]
    samples: bytes


def question(info: ServiceInfo, seed: int, name: str) -> Request:
    sampling = replace(info.sampling, seed=seed, min_rows=ROWS - 5, max_rows=ROWS)
    messages = (Message("user", Text("hello world")),)
    return Request(name, name, messages, info.default_mode.name, sampling)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder)
    return EngineConfig(checkpoint=folder, device="cpu", max_sessions=12, run_ahead_s=0.5)


@pytest.fixture(scope="module")
def cluster(config) -> Iterator[ClusterService]:
    from moss_engine.cluster.serve.connect import start_fleet

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        fleet = start_fleet(2, config, TalkConfig(recogniser="none"), temp_dir=Path(folder))
        service = ClusterService(fleet, hangs_s=PATIENCE_S, patience_s=PATIENCE_S)
        try:
            service.start()
            yield service
        finally:
            service.close()
    assert not ray.is_initialized()


def alone(config: EngineConfig, info: ServiceInfo) -> dict[int, Said]:
    """What one process answers, by seed."""
    core = build_service(replace(config, run_ahead_s=60.0))
    core.start()
    try:
        said = {}
        for seed in range(SEEDS):
            events = asyncio.run(listen(core, question(info, seed, f"alone {seed}")))
            last = events[-1]
            assert isinstance(last, Finished)
            said[seed] = Said(last.rows, heard(events).tobytes())
        return said
    finally:
        core.close()


class Listener:
    """Hears a reply, of which it takes nothing before it is let."""

    def __init__(self, service: ClusterService, request: Request, may_take: asyncio.Event):
        self.events: list[Event] = []
        self.sounds = asyncio.Event()
        self._service, self._request, self._may_take = service, request, may_take

    @property
    def replica(self) -> str:
        return [event.replica for event in self.events if isinstance(event, Placed)][-1]

    async def listen(self) -> None:
        reply = await self._service.submit(self._request)
        letting = asyncio.ensure_future(self._let(reply))
        async for event in reply.events():
            self.events.append(event)
            if isinstance(event, AudioChunk):
                self.sounds.set()
        await letting

    async def _let(self, reply) -> None:
        await self._may_take.wait()
        reply.acknowledge(10**9)


async def through_a_death(service: ClusterService, info: ServiceInfo) -> list[Listener]:
    """Replies, and the death of a replica in the middle of them."""
    may_take = asyncio.Event()
    listeners = [
        Listener(service, question(info, i % SEEDS, f"reply {i}"), may_take)
        for i in range(AT_A_TIME)
    ]
    listening = [asyncio.ensure_future(listener.listen()) for listener in listeners]
    await asyncio.gather(*(listener.sounds.wait() for listener in listeners))
    assert not any(isinstance(listener.events[-1], Finished) for listener in listeners)
    doomed = next(card for card in await service.replicas() if card.name == listeners[0].replica)
    os.kill(doomed.pid, signal.SIGKILL)
    may_take.set()
    await asyncio.wait_for(asyncio.gather(*listening), PATIENCE_S)
    assert listeners[0].replica != doomed.name
    while True:  # what a replica says of its load comes a moment later
        engine = (await service.stats()).engine
        assert engine.leaked_blocks == 0
        if engine.running + engine.waiting + engine.blocks_used + engine.blocks_reserved == 0:
            return listeners
        await asyncio.sleep(0.05)


def test_a_replica_that_has_started_is_as_urgent_as_any_program(cluster):
    for card in asyncio.run(cluster.replicas()):
        threads = [int(task.name) for task in Path(f"/proc/{card.pid}/task").iterdir()]
        nice = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
        assert nice.count(0) == len(nice)


def test_replies_survive_the_death_of_their_replica(cluster, config):
    info = asyncio.run(cluster.describe())
    assert info.max_sessions == 2 * config.max_sessions
    expected = alone(config, info)
    assert np.frombuffer(expected[0].samples, np.float32).any()
    listeners = asyncio.run(asyncio.wait_for(through_a_death(cluster, info), PATIENCE_S))
    for i, listener in enumerate(listeners):
        said, events = expected[i % SEEDS], listener.events
        assert_well_formed(events)
        assert tuple(event.row for event in events if isinstance(event, Sampled)) == said.rows
        assert heard(events).tobytes() == said.samples
        assert isinstance(events[-1], Finished) and events[-1].rows == said.rows
    stats = asyncio.run(cluster.stats())
    assert stats.cluster is not None and stats.cluster.num_resumes >= 1
    assert sum(stats.outcomes.values()) == AT_A_TIME
