"""Listeners of a service: closed loops and crowds give every listener what it asked for,
and count what came late."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from moss_engine.api.errors import MossError
from moss_engine.service.local import LocalService
from scripts.bench.listeners import Crowd, Heard, closed_loop, crowd
from scripts.bench.random_weights import FixedSize, fixed_requests
from scripts.bench.replicas import capacity, lateness, ttfa_ms
from tests.fakes import CONFIG, LIMITS, FakeCodec, FakeRuntime, noisy
from tests.service.service_support import broken, served

ASK = fixed_requests(30, 0)


def served_by(codec: FakeCodec) -> AbstractContextManager[LocalService]:
    runtime = FakeRuntime(noisy, replace(LIMITS, num_blocks=256, max_batch=8))
    return served(runtime, codec, FixedSize(CONFIG.special, 9, 30), max_waiting=50)


def test_a_reply_that_fails_is_no_measurement():
    codec = FakeCodec(6)
    codec.before_push = broken(MossError("broken"))
    with served_by(codec) as service, pytest.raises(MossError, match="broken"):
        asyncio.run(closed_loop(service.submit, ASK, 2, 2))


def test_a_crowd_comes_plays_replies_out_and_asks_again():
    with served_by(FakeCodec(6)) as service:
        found = asyncio.run(crowd(service.submit, ASK, 3, 100.0, 2.0))
    assert len(found.arrivals_s) == 3 and found.refused == 0
    first, later = found.heard[:3], found.heard[3:]
    assert [heard.ending for heard in first] == ["length"] * 3 and later
    for heard in first:
        assert heard.timeline.audio_s == pytest.approx(1.2) and heard.first_s is not None
        assert later[0].asked_s - heard.asked_s > 1.1


def test_what_a_crowd_met_is_counted():
    """Two listeners; from the second on chunks are late."""
    one = Heard(asked_s=1.0, chunks=[(1.5, 0.0), (3.0, 0.0)], replicas=[(1.0, "a"), (3.5, "b")])
    two = Heard(asked_s=2.0, chunks=[(2.25, 0.0), (5.0, 0.4)], ending="E_REPLY", end_s=5.0)
    met = Crowd([one, two], [0.5, 2.0])
    assert capacity(met) == (2, 2)
    assert capacity(Crowd([one], [0.5])) == (1, None)
    assert ttfa_ms(met.heard, 0.0, 9.0) == {"replies": 2, "p50": 375.0, "p95": 487.5}
    found = lateness(met.heard, 0.0, 9.0)
    assert (found["chunks"], found["late_chunks"], found["longest_silence_s"]) == (4, 1, 0.4)
    assert found["cut"] == 1
    assert [one.replica_at(t) for t in (0.5, 2.0, 4.0)] == [None, "a", "b"]
