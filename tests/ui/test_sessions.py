"""Conversations are found again by the name of their tab, until they are forgotten."""

from __future__ import annotations

from moss_engine.ui.conversation import Conversations, Turn

KEY = "0123456789abcdef" * 2


def test_a_session_has_one_conversation_until_it_is_renewed():
    kept = Conversations()
    first = kept.of("session")
    assert kept.of("session") is first and kept.of("other") is not first
    kept.name(KEY, first)
    first.voice = "voice"
    first.turns.append(Turn("Hello.", True))
    second = kept.renew(first)
    assert second is not first and second.voice == "voice" and not second.turns
    assert kept.of("session") is second and kept.find(KEY) is second


def test_what_is_dropped_is_found_no_more_and_what_followed_it_is():
    kept = Conversations()
    before, after = kept.of("before"), kept.of("after")
    kept.name(KEY, before)
    kept.name(KEY, after)
    kept.drop(before)
    assert kept.find(KEY) is after and kept.of("before") is not before
    kept.drop(after)
    assert kept.find(KEY) is None
