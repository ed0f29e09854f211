"""Replicas that die, hang, are replaced or fail, and replies that cannot be made."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moss_engine.api.errors import EngineFaultError, ReplicasLostError
from moss_engine.api.events import Event, Failed, Finished, Placed
from moss_engine.api.request import Request
from moss_engine.cluster.service import ClusterService
from moss_engine.ui.view import View, fold
from tests.cluster.cluster_support import (
    INFO,
    Cluster,
    assert_whole,
    clustered,
    hear,
    home,
    listen,
    placements,
)
from tests.fakes import FakeCodec, FakeProcessor
from tests.service.service_support import ask, wait_until


@pytest.mark.parametrize("batches", [0, 1, 5])
def test_a_reply_survives_the_death_of_its_replica(batches):
    with clustered() as cluster:
        first = home(cluster)
        remote = cluster.remote(first)
        remote.kill_after = remote.batches + batches
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert placements(events)[-1] != first
        stats = asyncio.run(cluster.service.stats())
        assert stats.ready and stats.cluster is not None
        assert len(stats.cluster.replicas) == 1
        assert stats.cluster.num_resumes == (batches > 0)


def test_the_page_keeps_a_reply_that_moved_as_it_would_any_other():
    """Rows, stretches and pauses are what a replay file is made of."""

    def kept(events: list) -> tuple:
        view = View("run", 0)
        for event in events:
            view = fold(view, event)
        return view.new_rows, view.parts, view.pauses, b"".join(view.new_pcm), view.text

    with clustered() as cluster:
        whole = hear(cluster.service, ask(session="s"))
        remote = cluster.remote(placements(whole)[0])
        remote.kill_after = remote.batches + 3
        moved = hear(cluster.service, ask(session="s"))
    assert len(placements(moved)) == 2 and kept(moved) == kept(whole)


def test_a_replica_that_hangs_is_left():
    with clustered(hangs_s=1.0) as cluster:
        first = home(cluster)
        remote = cluster.remote(first)
        remote.hang_after = remote.batches + 1
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert len(placements(events)) == 2
        remote.died.set()  # what holds its calls


def test_a_replica_that_is_taken_out_is_left_without_a_cut():
    async def hide(cluster) -> list:
        reply = await cluster.service.submit(ask(session="s"))
        events = []
        async for event in reply.events(acknowledge=False):
            events.append(event)
            if isinstance(event, Placed) and not event.num_resumes:
                cluster.fleet.hidden.add(event.replica)
            if isinstance(event, Placed) and event.num_resumes:
                reply.acknowledge(10**9)
        return events

    with clustered() as cluster:
        cluster.hold_back(1.0)
        assert_whole(asyncio.run(hide(cluster)))


def test_an_upgrade_may_move_a_reply_as_often_as_it_takes():
    async def play(cluster) -> list:
        reply = await cluster.service.submit(ask(session="s"))
        events = []
        async for event in reply.events(acknowledge=False):
            events.append(event)
            if isinstance(event, Placed) and event.num_resumes < 5:
                cluster.remote(event.replica).server.retire()
            elif isinstance(event, Placed):
                reply.acknowledge(10**9)
        return events

    with clustered(6) as cluster:
        cluster.hold_back(1.0)
        events = asyncio.run(play(cluster))
        assert_whole(events)
        assert len(set(placements(events))) == 6


def test_without_a_replica_a_reply_waits_and_says_so_in_the_end():
    with clustered(1, patience_s=0.5) as cluster:
        cluster.remote("replica-0").kill_after = 2
        events = hear(cluster.service, ask(session="s"))
        assert isinstance(events[-1], Failed) and events[-1].code == "E_REPLICAS"
        assert "try again" in events[-1].message
        with pytest.raises(ReplicasLostError, match="try again"):
            hear(cluster.service, ask(session="s"))
        assert not asyncio.run(cluster.service.stats()).ready


def test_a_replica_that_comes_back_takes_what_waits():
    async def revive(cluster) -> list:
        remote = cluster.remote("replica-0")
        remote.kill_after = 2
        listening = asyncio.ensure_future(listen(cluster.service, ask(session="s")))
        await asyncio.to_thread(wait_until, remote.died.is_set)
        remote.kill_after = None
        remote.died.clear()
        return await listening

    with clustered(1) as cluster:
        assert_whole(asyncio.run(revive(cluster)))


def test_a_request_that_kills_its_replicas_does_not_kill_them_all():
    with clustered(6) as cluster:
        for remote in cluster.fleet.remotes.values():
            remote.kill_after = 2
        events = hear(cluster.service, ask(session="s"))
        assert isinstance(events[-1], Failed) and events[-1].code == "E_REPLICAS"
        dead = sum(remote.died.is_set() for remote in cluster.fleet.remotes.values())
        assert dead == 4


def test_a_replica_of_another_checkpoint_is_not_used(caplog):
    with caplog.at_level(logging.ERROR), clustered(2, fingerprints=("one", "two")) as cluster:
        events = [hear(cluster.service, ask(session=str(i), max_rows=2)) for i in range(6)]
        assert {name for reply in events for name in placements(reply)} == {"replica-0"}
    assert "replica-1 has another checkpoint" in caplog.text


def test_a_page_that_vanishes_holds_no_place():
    short = replace(INFO, lease_s=0.3)
    with clustered(1, info=short) as cluster:
        cluster.hold_back(1.0)
        (core,) = cluster.cores.values()
        cluster.remote("replica-0").server.note = lambda *_: None  # it hears nothing of its page
        asyncio.run(cluster.service.submit(ask(session="s")))
        wait_until(lambda: core.stats().outcomes == {"cancelled": 1})
        assert core.stats().engine.blocks_used == 0


def test_a_cluster_that_does_not_start_says_so():
    with clustered(1) as cluster:
        cluster.fleet.hidden.add("replica-0")
        late = ClusterService(cluster.fleet, start_s=0.3)
        with pytest.raises(ReplicasLostError, match="ready within"):
            late.start()
        late.close()
        cluster.fleet.closed = False


def test_a_page_waits_for_a_cluster_that_starts_slowly():
    with clustered(1) as cluster:
        cluster.fleet.hidden.add("replica-0")
        late = ClusterService(cluster.fleet)
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(late.start)
            asked = cluster.fleet.num_listed
            wait_until(lambda: cluster.fleet.num_listed > asked + 2)
            assert not starting.done()
            cluster.fleet.hidden.clear()
            starting.result()
        assert_whole(hear(late, ask(session="s")))
        late.close()
        cluster.fleet.closed = False


def test_a_page_lets_in_as_many_as_the_replicas_that_are_still_starting():
    with clustered(3) as cluster:
        cluster.fleet.hidden |= {"replica-0", "replica-1"}
        early = ClusterService(cluster.fleet)
        early.start()
        assert asyncio.run(early.describe()).max_sessions == 3 * INFO.max_sessions
        early.close()
        cluster.fleet.closed = False


def test_a_recording_does_not_wait_for_a_replica_that_hangs():
    with clustered(1, hangs_s=1.0) as cluster:
        hung = cluster.remote("replica-0")
        hung.hangs = True
        with pytest.raises(ReplicasLostError, match="try again"):
            asyncio.run(cluster.service.encode(np.zeros(9, np.float32), 24_000))
        hung.died.set()  # what holds its calls


def test_a_failure_of_the_engine_is_the_loss_of_its_replica():
    with clustered() as cluster:
        first = home(cluster)
        runtime = cluster.cores[first].engine.runtime
        steps = len(runtime.batches)

        def fail() -> None:
            if len(runtime.batches) > steps + 30:
                raise RuntimeError("a broken runtime")

        runtime.before_forward = fail
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert isinstance(events[-1], Finished) and len(placements(events)) == 2


class OneVoiceIsBroken(FakeCodec):
    voices = ("plain", "broken")

    def open_stream(self, voice=None):
        if voice == "broken":
            raise RuntimeError("no memory for this voice")
        return super().open_stream(voice)


def test_a_reply_without_sound_ends_alone():
    async def play(cluster: Cluster) -> tuple[list[Event], list[Event]]:
        reply = await cluster.service.submit(ask(session="s"))
        events = reply.events(acknowledge=False)
        whole = [await anext(events), await anext(events)]
        assert isinstance(whole[1], Placed)
        failed = await listen(cluster.service, replace(ask(session="s2"), voice="broken"))
        reply.acknowledge(10**9)
        return failed, whole + [event async for event in events]

    with clustered(1, codec=OneVoiceIsBroken) as cluster:
        cluster.hold_back(1.0)
        failed, whole = asyncio.run(play(cluster))
        assert isinstance(failed[-1], Failed) and failed[-1].code == "E_REPLY"
        assert "ask again" in failed[-1].message
        assert_whole(whole)
        assert [len(placements(events)) for events in (failed, whole)] == [1, 1]


class OneTextIsBroken(FakeProcessor):
    def prepare(self, request: Request) -> Any:
        if "broken" in str(request.messages):
            raise KeyError("nobody thought of this")
        return super().prepare(request)


class NoVoiceIsMade:
    def add(self, *_: Any) -> str | None:
        raise KeyError("nobody thought of this")

    def remove(self, name: str) -> None:
        raise AssertionError("no voice was made")


@pytest.mark.parametrize("what", ["a request", "a recording"])
def test_what_nobody_thought_of_costs_no_replica(what):
    async def fail(cluster: Cluster) -> None:
        if what == "a request":
            await cluster.service.submit(ask("broken"))
        await cluster.service.add_voice("s", np.ones(9, np.float32), 24_000, (1,))

    async def play(cluster: Cluster) -> list[Event]:
        reply = await cluster.service.submit(ask(session="s"))
        events = reply.events(acknowledge=False)
        whole = [await anext(events)]
        with pytest.raises(EngineFaultError, match=r"could not be \w+; "):
            await fail(cluster)
        reply.acknowledge(10**9)
        return whole + [event async for event in events]

    with clustered(2, cloner=NoVoiceIsMade()) as cluster:
        cluster.hold_back(1.0)
        for core in cluster.cores.values():
            core.engine.processor = OneTextIsBroken()
        whole = asyncio.run(play(cluster))
        assert_whole(whole)
        assert len(placements(whole)) == 1 and len(asyncio.run(cluster.service.replicas())) == 2
