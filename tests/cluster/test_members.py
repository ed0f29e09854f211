"""Which replica serves a conversation, who is there and who is left, also when the head of their
cluster is gone.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from moss_engine.api.errors import ReplicasLostError
from moss_engine.api.events import Failed
from moss_engine.api.info import EngineStats, ServiceStats
from moss_engine.cluster import members
from moss_engine.cluster.fleet import Card, Load
from moss_engine.cluster.members import CUT_OFF, Member, Members, preferred
from tests.cluster.cluster_support import assert_whole, clustered
from tests.fakes import Clock
from tests.service.service_support import ask, at_rest, listen
from tests.ui.page_support import soon

NAMES = ("a", "b", "c")
SESSIONS = [f"session {i}" for i in range(600)]


def following(loads: dict[str, int], **how: Any) -> Members:
    """Replicas of four places and two in the queue, by how many replies run there."""
    fleet: Any = SimpleNamespace(remote=lambda _: None)
    followed = Members(fleet, "page", **how)
    for name, running in loads.items():
        stats = ServiceStats(EngineStats(running, 0, 0, 0, 0, 0, 0), "ready", 0.0)
        followed._hear(Member(Card(name, "same"), fleet, "page", 0.0), Load(stats, 4, 2))
    return followed


def test_sessions_are_spread_and_only_those_of_a_replica_that_goes_move():
    homes = {session: preferred(session, NAMES) for session in SESSIONS}
    assert min(Counter(homes.values()).values()) > 150
    for session, home in homes.items():
        assert preferred(session, NAMES[::-1]) == home
        assert preferred(session, NAMES[:2]) == home or home == "c"


async def test_the_preferred_replica_is_kept_while_it_has_room_else_the_least_loaded_is_taken():
    def in_order(**loads: int) -> list[str]:
        return [member.name for member in following(loads).in_order("s", ())]

    own = preferred("s", NAMES)
    first, second = (name for name in NAMES if name != own)
    assert in_order(**{own: 3, first: 0, second: 0})[0] == own
    assert in_order(**{own: 4, first: 2, second: 1}) == [second, first, own]
    assert in_order(a=5, b=5, c=5)[0] == own
    assert in_order(a=6, b=6, c=6) == in_order() == []


@pytest.mark.parametrize(("names", "limit_s"), [("ab", 5.0), ("a", 15.0)])
async def test_a_silent_replica_is_left_later_where_nobody_can_stand_in_for_it(names, limit_s):
    clock = Clock()
    followed = following(dict.fromkeys(names, 0), hangs_s=5.0, clock=clock)
    silent, *others = followed.all
    silent.heard_s = clock.now_s
    for past_s, hanging in ((-0.1, []), (0.1, [silent])):
        clock.now_s = silent.heard_s + limit_s + past_s
        for member in others:
            member.heard_s = clock.now_s
        assert followed._hanging() == hanging


async def test_an_open_reply_ends_at_its_replica_and_new_ones_are_refused(caplog):
    with caplog.at_level(logging.WARNING), clustered() as cluster:
        reply, events, heard = await cluster.held()
        cluster.fleet.headless = True
        await cluster.becomes(ready=False)
        with pytest.raises(ReplicasLostError) as refused:
            await cluster.service.submit(ask(session="another"))
        assert str(refused.value) == CUT_OFF
        with pytest.raises(ReplicasLostError):
            await cluster.service.encode([], 24_000)  # type: ignore[arg-type]
        assert cluster.fleet.num_joins == 1
        reply.acknowledge(10**9)
        assert_whole(heard + [event async for event in events])
        assert not (await cluster.service.stats()).ready
        cluster.fleet.headless = False
        await cluster.becomes(ready=True)
        assert cluster.fleet.num_joins == 2
        assert_whole(await listen(cluster.service, ask(session="s")))
    assert "the head is gone: new requests are refused" in caplog.text
    assert "the cluster is joined again" in caplog.text


async def test_a_reply_without_replica_does_not_wait_for_one():
    with clustered(1, patience_s=1e6) as cluster:
        _, events, _ = await cluster.held()
        cluster.remote("replica-0").died.set()
        cluster.fleet.headless = True
        *_, last = [event async for event in events]
        assert isinstance(last, Failed) and (last.code, last.message) == ("E_REPLICAS", CUT_OFF)
        cluster.fleet.headless = False


async def test_open_replies_do_not_keep_the_page_from_joining_for_ever(monkeypatch):
    monkeypatch.setattr(members, "LAST_S", 0.3)
    with clustered() as cluster:
        _, events, _ = await cluster.held()
        cluster.fleet.headless = True
        assert isinstance([event async for event in events][-1], Failed)
        assert await soon(lambda: all(map(at_rest, cluster.cores.values())))
        cluster.fleet.headless = False
        await cluster.becomes(ready=True)


async def test_joining_that_fails_is_tried_again(monkeypatch, caplog):
    with clustered(1) as cluster:
        join, failed = cluster.fleet.rejoin, []

        async def fail_once() -> None:
            if not failed:
                failed.append(True)
                raise RuntimeError("nobody foresaw this")
            await join()

        monkeypatch.setattr(cluster.fleet, "rejoin", fail_once)
        cluster.fleet.headless = True
        await cluster.becomes(ready=False)
        cluster.fleet.headless = False
        await cluster.becomes(ready=True)
        assert failed and cluster.fleet.num_joins == 2
        assert_whole(await listen(cluster.service, ask(session="s")))
    assert "the replicas cannot be listed" in caplog.text
