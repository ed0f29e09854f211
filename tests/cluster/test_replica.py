"""How the events of replies travel: parcels of all replies that a page hears from one replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from moss_engine.api.events import Event
from moss_engine.cluster.fleet import Card, Load
from moss_engine.cluster.members import Member
from moss_engine.cluster.replica import ReplicaServer
from tests.cluster.cluster_support import LocalFleet
from tests.fakes import FakeCodec
from tests.service.service_support import INFO, ask, at_once, heard, served, talking, wait_until


def followed(work: Callable[[Member], Awaitable[list[Any]]]) -> tuple[list[Any], list[int], Any]:
    """What comes of the work with a replica whose news are heard, the sizes of its parcels, and
    its stats in the end."""
    sizes: list[int] = []

    async def play(server: ReplicaServer) -> list[Any]:
        member = Member(server.card, LocalFleet([server]), "page", 0.0)

        async def follow() -> None:
            async for told in server.news("page"):
                if not isinstance(told, Load):
                    sizes.append(len({news.request_id for news in told}))
                    member.take(told)

        following = asyncio.ensure_future(follow())
        try:
            return await work(member)
        finally:
            await asyncio.to_thread(wait_until, lambda: at_once(core.stats()).engine.running == 0)
            following.cancel()

    with served(talking(), FakeCodec()) as core:
        server = ReplicaServer(core, INFO, Card("one", "same"))
        return asyncio.run(play(server)), sizes, at_once(core.stats())


async def all_of(events: AsyncGenerator[Any, None]) -> list[Event]:
    async with aclosing(events):
        return [event async for event in events]


def test_replies_that_share_a_stream_are_those_of_streams_of_their_own():
    async def four(member: Member) -> list[Any]:
        replies = (member.reply(ask(session=f"s{i}")) for i in range(4))
        return await asyncio.gather(*map(all_of, replies))

    told, sizes, _ = followed(four)
    assert len({heard(events).tobytes() for events in told}) == 1 and len(heard(told[0]))
    assert max(sizes) > 1, "no parcel held news of two replies"


def test_who_leaves_stops_his_own_reply_only():
    async def one_leaves(member: Member) -> list[Any]:
        staying = asyncio.ensure_future(all_of(member.reply(ask(session="stays"))))
        leaving = member.reply(ask(session="leaves"))
        await anext(leaving)
        await leaving.aclose()
        return await staying

    events, _, stats = followed(one_leaves)
    assert len(heard(events)) and stats.outcomes == {"stop": 1, "cancelled": 1}
