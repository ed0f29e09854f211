"""Which replica serves a conversation."""

from __future__ import annotations

from collections import Counter

from moss_engine.cluster.placement import Candidate, in_order, preferred

NAMES = ("a", "b", "c")
SESSIONS = [f"session {i}" for i in range(600)]


def candidates(**num_replies: int) -> list[Candidate]:
    return [Candidate(name, number, 4, 2) for name, number in num_replies.items()]


def test_sessions_are_spread_and_stay():
    homes = {session: preferred(session, NAMES) for session in SESSIONS}
    assert min(Counter(homes.values()).values()) > 150
    assert all(preferred(session, NAMES[::-1]) == home for session, home in homes.items())


def test_only_the_sessions_of_a_replica_that_goes_move():
    for session in SESSIONS:
        home = preferred(session, NAMES)
        assert preferred(session, NAMES[:2]) == home or home == "c"


def test_the_preferred_replica_is_kept_while_a_reply_would_start_there_at_once():
    own = preferred("s", NAMES)
    loads = dict.fromkeys(NAMES, 0) | {own: 3}
    assert in_order("s", candidates(**loads))[0] == own


def test_else_the_least_loaded_one_is_taken():
    own = preferred("s", NAMES)
    first, second = (name for name in NAMES if name != own)
    assert in_order("s", candidates(**{own: 4, first: 2, second: 1})) == [second, first, own]


def test_among_equally_full_ones_the_preferred_one_is_asked_and_full_ones_are_not():
    own = preferred("s", NAMES)
    assert in_order("s", candidates(a=5, b=5, c=5))[0] == own
    assert in_order("s", candidates(a=6, b=6, c=6)) == []
    assert in_order("s", []) == []
