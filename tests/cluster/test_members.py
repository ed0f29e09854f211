"""What a page makes of replicas that are listed no more: taken out, or dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from moss_engine.api.info import EngineStats, ServiceStats
from moss_engine.cluster import members as module
from moss_engine.cluster.fleet import ReplicaAwayError, ReplicaLostError
from moss_engine.cluster.members import Member, Members
from moss_engine.cluster.values import Card, Load

CARD = Card("one", "same")
LOAD = Load(ServiceStats(EngineStats(0, 0, 0, 0, 9, 0, 0), "ready", 0.0, {}), 4, 16)
TAKEN_OUT, DIED = "it was taken out of the cluster", "it is lost: killed"


class OneReplica:
    """A fleet of one, which is its remote, too: it is listed while it is in `listed`, and its watch
    tells what is put into `told`."""

    def __init__(self) -> None:
        self.listed = [CARD]
        self.told: asyncio.Queue[Load | ReplicaLostError] = asyncio.Queue()

    async def cards(self) -> list[Card]:
        return list(self.listed)

    def remote(self, name: str) -> Any:
        return self

    async def watch(self, page: str, voiced: list[str]) -> AsyncGenerator[Load, None]:
        while True:
            told = await self.told.get()
            if isinstance(told, ReplicaLostError):
                raise told
            yield told


def left(away: Callable[[OneReplica, Members, Member], None], told: Any) -> tuple[str, bool]:
    """Why a replica is left, and whether that was meant, which goes by `away` and of which is heard
    `told` only then."""

    async def play() -> tuple[str, bool]:
        fleet: Any = OneReplica()
        fleet.told.put_nowait(LOAD)
        members = Members(fleet, "page", lambda name: [], hangs_s=1e6)
        running = asyncio.ensure_future(members.run())
        while not members.has_ready:
            await members.change(30.0)
        (member,) = members.all
        away(fleet, members, member)
        while members.has_ready:
            await members.change(0.01)
        assert not member.gone.done(), "nobody knows yet what has happened"
        fleet.told.put_nowait(told)
        why = await asyncio.wait_for(member.gone, 30.0)
        running.cancel()
        await asyncio.wait({running})
        return why, member.retired

    return asyncio.run(play())


def unlisted(fleet: OneReplica, members: Members, member: Member) -> None:
    fleet.listed.clear()


def answered_by_another(fleet: OneReplica, members: Members, member: Member) -> None:
    fleet.listed.clear()
    members.lost(member, ReplicaAwayError("it is not there any more"))


@pytest.mark.parametrize("away", [unlisted, answered_by_another])
@pytest.mark.parametrize(
    ("told", "why"), [(LOAD, (TAKEN_OUT, True)), (ReplicaLostError("killed"), (DIED, False))]
)
def test_a_replica_that_is_not_listed_tells_by_its_watch_what_happened(
    monkeypatch, away, told, why
):
    monkeypatch.setattr(module, "DISCOVER_S", 0.01)
    assert left(away, told) == why


def test_an_unforeseen_error_does_not_end_the_search_for_replicas(caplog):
    class Odd(OneReplica):
        async def cards(self) -> list[Card]:
            if not caplog.records:
                raise KeyError("unforeseen")
            return await super().cards()

    async def find() -> None:
        fleet: Any = Odd()
        fleet.told.put_nowait(LOAD)
        members = Members(fleet, "page", lambda name: [], hangs_s=1e6)
        running = asyncio.ensure_future(members.run())
        await members.change(30.0)
        assert members.has_ready
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(find())
    assert "the replicas cannot be listed" in caplog.text
