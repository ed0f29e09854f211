"""Two replicas under Ray Serve, of which one is killed in the middle of replies, and clusters that
are not there."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moss_engine.api.errors import ConfigError, UnsupportedModeError
from moss_engine.api.events import AudioChunk, Event, Finished, Placed, Sampled
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import ReplyStream
from moss_engine.api.tokens import Row
from moss_engine.build import build_service
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.fleet import ReplicaLostError
from moss_engine.cluster.service import ClusterService
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from tests.fixtures.make_tiny_checkpoint import write_checkpoint
from tests.service.service_support import assert_well_formed, heard, listen
from tests.ui.page_support import free_port

ray = pytest.importorskip("ray", reason="ray is not installed")

AT_A_TIME, SEEDS = 6, 3
PATIENCE_S = 600.0
ROWS = 60


Said = tuple[tuple[Row, ...], bytes]
"""Rows and samples of a reply."""


def question(info: ServiceInfo, seed: int, name: str) -> Request:
    sampling = replace(info.sampling, seed=seed, min_rows=ROWS - 5, max_rows=ROWS)
    messages = (Message("user", Text("hello world")),)
    return Request(name, name, messages, info.default_mode.name, sampling)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder)
    limits = {"max_sessions": 12, "run_ahead_s": 0.5, "lease_s": PATIENCE_S}
    return EngineConfig(checkpoint=folder, device="cpu", **limits)


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
            said[seed] = last.rows, heard(events).tobytes()
        return said
    finally:
        core.close()


async def begun(
    service: ClusterService, request: Request
) -> tuple[ReplyStream, AsyncGenerator[Event, None], list[Event]]:
    """A reply that goes on when something of it is taken, and its events up to the first sound."""
    reply = await service.submit(request)
    events = reply.events()
    told = [await anext(events)]
    while not isinstance(told[-1], AudioChunk):
        told.append(await anext(events))
    return reply, events, told


def replica_of(told: list[Event]) -> str:
    return [event.replica for event in told if isinstance(event, Placed)][-1]


async def through_a_death(service: ClusterService, info: ServiceInfo) -> list[list[Event]]:
    """What is told of replies, in the middle of which a replica dies."""
    questions = (question(info, i % SEEDS, f"reply {i}") for i in range(AT_A_TIME))
    replies = await asyncio.gather(*(begun(service, asked) for asked in questions))
    name = replica_of(replies[0][2])
    doomed = next(card for card in await service.replicas() if card.name == name)
    os.kill(doomed.pid, signal.SIGKILL)

    async def heard_out(
        reply: ReplyStream, events: AsyncGenerator[Event, None], told: list[Event]
    ) -> list[Event]:
        reply.acknowledge(10**9)
        return told + [event async for event in events]

    heard = await asyncio.gather(*(heard_out(*reply) for reply in replies))
    assert replica_of(heard[0]) != doomed.name
    while True:  # what a replica says of its load comes a moment later
        engine = (await service.stats()).engine
        assert engine.leaked_blocks == 0
        if engine.running + engine.waiting + engine.blocks_used + engine.blocks_reserved == 0:
            return heard
        await asyncio.sleep(0.05)


def test_a_replica_that_has_started_is_as_urgent_as_any_program(cluster):
    for card in asyncio.run(cluster.replicas()):
        threads = [int(task.name) for task in Path(f"/proc/{card.pid}/task").iterdir()]
        nice = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        assert nice == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_what_a_replica_refuses_crosses_with_its_sentence(cluster):
    with pytest.raises(UnsupportedModeError, match="installed voices only"):
        asyncio.run(cluster.add_voice("s", np.ones(9, np.float32), 24_000, (1,)))


def test_replies_survive_the_death_of_their_replica(cluster, config):
    info = asyncio.run(cluster.describe())
    assert info.max_sessions == 2 * config.max_sessions
    expected = alone(config, info)
    assert np.frombuffer(expected[0][1], np.float32).any()
    told = asyncio.run(asyncio.wait_for(through_a_death(cluster, info), PATIENCE_S))
    for i, events in enumerate(told):
        assert_well_formed(events)
        rows = tuple(event.row for event in events if isinstance(event, Sampled))
        assert (rows, heard(events).tobytes()) == expected[i % SEEDS]
        assert isinstance(events[-1], Finished) and events[-1].rows == rows
    stats = asyncio.run(cluster.stats())
    assert stats.cluster is not None and stats.cluster.num_resumes >= 1


@pytest.mark.parametrize("where", ["", ":nowhere"])
def test_a_page_without_a_head_says_so_at_once(where):
    address = f"127.0.0.1{where or f':{free_port()}'}"
    with pytest.raises(ConfigError, match="nobody listens there"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(ray_address=address))


def test_a_ray_that_does_not_start_says_so():
    from moss_engine.cluster.serve.connect import start_machine

    with pytest.raises(ConfigError, match=r"Ray did not start \(.*start again"):
        start_machine(1, 0, Path("/dev/null/nowhere"))


def test_an_application_that_was_deleted_has_no_size(monkeypatch):
    from moss_engine.cluster.serve import handle

    nothing: Any = SimpleNamespace(applications={})
    monkeypatch.setattr(handle.serve, "status", lambda: nothing)
    with pytest.raises(ReplicaLostError, match="runs no moss-speech any more"):
        asyncio.run(handle.HandleFleet(nothing, lambda: None).size())
