"""Which replica serves a conversation, and which one is left."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from moss_engine.api.info import EngineStats, ServiceStats
from moss_engine.cluster.fleet import Card, Load
from moss_engine.cluster.members import Member, Members, preferred
from tests.fakes import Clock

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
