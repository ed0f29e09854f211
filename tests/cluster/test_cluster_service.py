"""Several replicas answer as one service: placement, back-pressure, stopping, draining."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from moss_engine.api.errors import BusyError, ParameterError, ShuttingDownError
from moss_engine.api.events import AudioChunk, Finished, FinishReason, Placed, Sampled
from tests.cluster.cluster_support import INFO, clustered, hear, listen
from tests.fakes import FakeCodec
from tests.service.service_support import (
    TALK,
    ask,
    assert_well_formed,
    heard,
    hold_at,
    sound_of,
    talking,
    wait_until,
)


def test_a_reply_is_what_one_process_would_have_said():
    with clustered() as cluster:
        events = hear(cluster.service, ask())
    assert_well_formed(events)
    assert [event.row for event in events if isinstance(event, Sampled)] == TALK
    assert heard(events).tobytes() == sound_of(tuple(TALK)).tobytes()
    assert events[-1].rows == tuple(TALK)
    runs = [event.codec for event in events if isinstance(event, AudioChunk)]
    assert all(run.num_replies == 1 and run.ran_s > 0 for run in runs)


def test_a_conversation_stays_with_its_replica():
    with clustered(3) as cluster:
        places = {
            session: {
                event.replica
                for _ in range(3)
                for event in hear(cluster.service, ask(session=session, max_rows=4))
                if isinstance(event, Placed)
            }
            for session in map(str, range(8))
        }
        assert all(len(names) == 1 for names in places.values())
        assert len(set.union(*places.values())) == 3
        stats = asyncio.run(cluster.service.stats()).cluster
        assert stats is not None and stats.num_placed == stats.num_preferred == 24


def test_a_full_replica_leaves_a_conversation_to_another():
    async def all_of(cluster) -> list[str]:
        held = [hold_at(core.engine.runtime, 1) for core in cluster.cores.values()]
        asked = [
            asyncio.ensure_future(listen(cluster.service, ask(session=f"s{i}"))) for i in range(8)
        ]
        await asyncio.to_thread(wait_until, lambda: cluster.service._replies.num_placed == 8)
        for go_on in held:
            go_on.set()
        replies = await asyncio.gather(*asked)
        return [
            event.replica for events in replies for event in events if isinstance(event, Placed)
        ]

    with clustered() as cluster:
        names = asyncio.run(all_of(cluster))
    assert sorted(map(names.count, set(names))) == [4, 4], "four places each"


def test_refusals_cross_with_their_sentence():
    with clustered() as cluster, pytest.raises(ParameterError, match="voice 'unknown'"):
        hear(cluster.service, replace(ask(), voice="unknown"))
    cramped = replace(INFO, max_sessions=0, max_waiting=0)
    with clustered(info=cramped) as full, pytest.raises(BusyError):
        hear(full.service, ask())


def test_a_replica_makes_no_more_than_run_ahead_of_what_was_taken():
    async def hold_back(cluster) -> tuple[int, list]:
        reply = await cluster.service.submit(ask())
        events = reply.events(acknowledge=False)
        taken = [await anext(events)]
        while not isinstance(taken[-1], AudioChunk):
            taken.append(await anext(events))
        (made,) = cluster.cores[cluster.serving()]._replies.all()
        await asyncio.to_thread(wait_until, lambda: made.num_rows >= 50)
        await asyncio.sleep(0.2)
        num_rows = made.num_rows
        reply.acknowledge(24_000 * 60)
        rest = [event async for event in events]
        return num_rows, rest

    with clustered(runtime=talking) as cluster:
        cluster.hold_back(2.0)
        rows, rest = asyncio.run(hold_back(cluster))
        assert rows < 80, "two seconds are 50 codes"
        assert isinstance(rest[-1], Finished) and rest[-1].reason is FinishReason.STOP


def test_a_page_remembers_no_replica_that_makes_nothing_for_it():
    """Replicas come and go for months, each with a name of its own."""

    async def leave_when_noted(cluster) -> None:
        reply = await cluster.service.submit(ask())
        async with aclosing(reply.events(acknowledge=False)) as events:
            await anext(events)
            await asyncio.to_thread(wait_until, lambda: cluster.service._replies._noted_s)

    with clustered(1) as cluster:
        cluster.hold_back(1.0)
        asyncio.run(leave_when_noted(cluster))
        wait_until(lambda: not cluster.service._replies._noted_s)


def test_a_replica_is_watched_again_when_the_watch_has_ended(monkeypatch):
    monkeypatch.setattr("moss_engine.cluster.replica.WATCH_S", 0.01)
    with clustered(1) as cluster:
        events = hear(cluster.service, ask())
        assert events[-1].rows == tuple(TALK) and asyncio.run(cluster.service.stats()).ready


def test_leaving_and_stopping_end_the_reply_at_its_replica():
    async def stop(cluster) -> Finished:
        reply = await cluster.service.submit(ask())
        last = None
        async for event in reply.events():
            if isinstance(event, Sampled) and event.num_rows == 5:
                reply.cancel()
            last = event
        return last

    with clustered(codec=lambda: FakeCodec()) as cluster:
        cluster.hold_back(1.0)
        last = asyncio.run(stop(cluster))
        assert last.reason is FinishReason.CANCELLED and len(last.rows) >= 5

        async def leave() -> None:
            reply = await cluster.service.submit(ask())
            async for _ in reply.events():
                break

        asyncio.run(leave())
        wait_until(lambda: not any(core.stats().engine.running for core in cluster.cores.values()))


def test_draining_refuses_and_gives_every_reply_its_last_word():
    async def drain(cluster) -> list:
        reply = await cluster.service.submit(ask())
        events = reply.events(acknowledge=False)
        await anext(events)
        await cluster.service.drain(0.0)
        with pytest.raises(ShuttingDownError):
            await cluster.service.submit(ask())
        return [event async for event in events]

    with clustered() as cluster:
        assert isinstance(asyncio.run(drain(cluster))[-1], Finished)
