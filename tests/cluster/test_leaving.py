"""Listeners who leave at the wrong moment, and replicas that come back at it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from moss_engine.api.errors import ShuttingDownError
from moss_engine.api.events import AudioChunk, Finished
from moss_engine.service import core as service_core
from tests.cluster.cluster_support import INFO, Cluster, assert_whole, clustered, hear, listen
from tests.cluster.test_cut_off import is_ready
from tests.service.service_support import (
    PATIENCE_S,
    ask,
    hold_at,
    listen_to,
    reached,
    take,
    wait_until,
)

PATIENT = replace(INFO, lease_s=1e6)


def test_who_leaves_just_when_his_request_is_accepted_stops_it():
    async def leave(cluster: Cluster) -> None:
        service = cluster.service
        asking = asyncio.ensure_future(service.submit(ask()))
        await asyncio.sleep(0)
        wait_until(lambda: service._replies.num_placed == 1)  # this loop hears nothing of it
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    with clustered(info=PATIENT) as cluster:
        cluster.hold_back(1.0)
        asyncio.run(leave(cluster))
        wait_until(lambda: cluster.service._replies.outcomes["cancelled"] == 1)


def test_a_listener_who_vanishes_while_his_reply_is_held_back_stops_it():
    """He has taken everything, and nothing more is made for him."""

    async def vanish(cluster: Cluster) -> None:
        reply = await cluster.service.submit(ask())
        async with aclosing(reply.events(acknowledge=False)) as events:
            await take(events, AudioChunk, 13)  # 1.04 s
            while reply.num_untaken:
                await anext(events)
            while not (await cluster.service.stats()).outcomes:
                await asyncio.sleep(0.01)

    with clustered(1, info=replace(INFO, lease_s=2.0)) as cluster:
        cluster.hold_back(1.0)
        asyncio.run(asyncio.wait_for(vanish(cluster), PATIENCE_S))
        assert asyncio.run(cluster.service.stats()).outcomes == {"cancelled": 1}


def test_a_listener_may_outlive_its_service():
    with clustered(1) as cluster:
        reply = asyncio.run(cluster.service.submit(ask()))
    assert isinstance(listen_to(reply)[-1], Finished)
    reply.cancel()


def test_a_session_may_end_behind_its_service():
    with clustered(1) as cluster:
        hear(cluster.service, ask(session="s", max_rows=2))
    asyncio.run(cluster.service.cancel_session("s"))
    with pytest.raises(ShuttingDownError, match="when it is back"):
        hear(cluster.service, ask(session="s"))


def test_a_replica_may_be_asked_again_while_it_is_busy_with_the_last_time(monkeypatch):
    """It is lost just as it takes the rest of a reply, and found before it could stop that."""
    monkeypatch.setattr(service_core, "STALL_S", 1e6)

    async def play(cluster: Cluster) -> list:
        remote, core = cluster.remote("replica-0"), cluster.cores["replica-0"]
        go_on = hold_at(core.engine.runtime, 10)
        listening = asyncio.ensure_future(listen(cluster.service, ask(session="s")))
        await reached(core.engine.runtime, 10)
        await asyncio.to_thread(wait_until, lambda: cluster.service._replies.num_placed == 1)
        remote.died.set()
        await asyncio.to_thread(wait_until, lambda: not is_ready(cluster))
        remote.kill_after = remote.batches
        remote.died.clear()
        await asyncio.to_thread(wait_until, remote.died.is_set)
        remote.kill_after = None
        remote.died.clear()
        await asyncio.to_thread(
            wait_until, lambda: listening.done() or len(core._replies.all()) == 3
        )
        go_on.set()
        return await listening

    with clustered(1, patience_s=1e6) as cluster:
        assert_whole(asyncio.run(play(cluster)))
