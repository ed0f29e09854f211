"""How the events of replies travel: batches of one reply, parcels of all replies that a page hears
from one replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from moss_engine.api.events import Finished
from moss_engine.cluster import pipe
from moss_engine.cluster.fleet import Card, ReplicaLostError
from moss_engine.cluster.pipe import Inbox, Outboxes, Parcel
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.service.local import LocalService
from tests.cluster.cluster_support import INFO
from tests.fakes import FakeCodec
from tests.service.service_support import PATIENCE_S, ask, heard, served, talking, wait_until


def joined(outboxes: Outboxes, seen: list[int], dies_after: int | None = None) -> Inbox:
    """Both ends in one process; `seen` gets the size of every parcel."""

    async def parcels() -> AsyncGenerator[Parcel, None]:
        async with aclosing(outboxes.parcels("page", "stream")) as stream:
            async for parcel in stream:
                seen.append(len(parcel))
                if dies_after is not None and len(seen) > dies_after:
                    raise ReplicaLostError("killed")
                yield parcel

    async def begin(request: Any) -> None:
        outboxes.ask("page", "stream", request)

    async def leave(request_id: str) -> None:
        outboxes.leave("stream", request_id)

    return Inbox(parcels, begin, leave)


def outboxes_of(core: Any) -> Outboxes:
    return Outboxes(ReplicaServer(LocalService(core, INFO), INFO, Card("one", "same")))


async def all_of(inbox: Inbox, request: Any) -> list[Any]:
    async with aclosing(inbox.reply(request)) as batches:
        return [e async for batch in batches if isinstance(batch, list) for e in batch]


def test_replies_that_share_a_stream_are_those_of_streams_of_their_own():
    async def both(inbox: Inbox) -> list[list[Any]]:
        asked = [all_of(inbox, ask(session=f"s{i}")) for i in range(4)]
        return await asyncio.gather(*asked)

    seen: list[int] = []
    with served(talking(), FakeCodec()) as core:
        inbox = joined(outboxes_of(core), seen)
        told = asyncio.run(both(inbox))
        assert not inbox.is_open
    assert len({heard(events).tobytes() for events in told}) == 1 and len(heard(told[0]))
    assert sum(seen) > len(seen), "no parcel held news of two replies"


def test_who_leaves_stops_his_own_reply_only():
    async def one_leaves(inbox: Inbox, core: Any) -> list[Any]:
        staying = asyncio.ensure_future(all_of(inbox, ask(session="stays")))
        leaving = inbox.reply(ask(session="leaves"))
        await anext(leaving)
        await leaving.aclose()
        return await staying

    with served(talking(), FakeCodec()) as core:
        events = asyncio.run(one_leaves(joined(outboxes_of(core), []), core))
        assert len(heard(events))
        wait_until(lambda: core.stats().engine.running == 0)


def test_the_end_of_the_stream_is_that_of_every_reply():
    async def lost(inbox: Inbox) -> None:
        replies = [all_of(inbox, ask(session=f"s{i}")) for i in range(3)]
        for outcome in await asyncio.gather(*replies, return_exceptions=True):
            assert isinstance(outcome, ReplicaLostError)
        assert not inbox.is_open

    with served(talking(), FakeCodec()) as core:
        asyncio.run(lost(joined(outboxes_of(core), [], dies_after=0)))
        wait_until(lambda: core.stats().engine.running == 0)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


@pytest.mark.parametrize("begun", [False, True])
def test_nothing_stays_of_a_reply_that_is_left_before_its_stream_opens(monkeypatch, begun):
    monkeypatch.setattr(pipe, "UNHEARD_S", 0.01)

    async def leave_early(core: Any) -> None:
        outboxes, request = outboxes_of(core), ask()
        outboxes.ask("page", "stream", request)
        assert len(outboxes) == 1
        if begun:
            await asyncio.sleep(0)
        outboxes.leave("stream", request.request_id)
        await until(lambda: not len(outboxes))

    with served(talking(), FakeCodec()) as core:
        asyncio.run(leave_early(core))
        assert core.stats().outcomes == {}


def test_the_stream_of_a_page_that_died_ends(monkeypatch):
    """Nobody leaves it, and its replies end with the page's lease."""
    monkeypatch.setattr(pipe, "UNHEARD_S", 0.01)

    async def unheard(core: Any) -> list[Any]:
        outboxes = outboxes_of(core)
        outboxes.ask("page", "stream", ask(max_rows=2))
        told = [entry async for parcel in outboxes.parcels("page", "stream") for entry in parcel]
        assert not len(outboxes)
        return told

    with served(talking(), FakeCodec()) as core:
        told = asyncio.run(asyncio.wait_for(unheard(core), PATIENCE_S))
    assert isinstance(told[-2][1][-1], Finished) and told[-1][1] is None
