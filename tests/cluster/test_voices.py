"""Visitors' own voices: replicas learn them, and forget them when nobody uses them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moss_engine.api.events import Finished, FinishReason
from moss_engine.api.service import ClonedVoice
from moss_engine.cluster import voices
from moss_engine.cluster.replica import VOICE_KEPT_S
from moss_engine.cluster.voices import OwnVoices
from tests.cluster.cluster_support import clustered
from tests.fakes import Clock, FakeCodec
from tests.service.service_support import ask, listen
from tests.ui.page_support import soon

WAVE, RATE_HZ, CODES = np.ones(10, np.float32), 16_000, (1, 2)


@dataclass
class Replica:
    """Names voices in its own way, and can be a member."""

    name: str
    learned: list[tuple[Any, ...]] = field(default_factory=list)

    async def call(self, method: str, *arguments: Any) -> ClonedVoice:
        assert method == "add_voice"
        self.learned.append(arguments)
        await asyncio.sleep(0)
        return ClonedVoice(f"own {len(self.learned)} at {self.name}")


async def test_a_replica_learns_a_voice_once_when_a_reply_comes_to_it():
    first, second = Replica("a"), Replica("b")
    members: list[Any] = [first, second, second, first]
    known = OwnVoices()
    made = (await known.add(members[0], "s", WAVE, RATE_HZ, CODES)).name
    request = replace(ask(session="s"), voice=made)
    heard = [(await known.prepare(request, member)).voice for member in members]
    assert heard == [made, "own 1 at b", "own 1 at b", made]
    assert known.remove("s") == ["a", "b"]
    assert (await known.prepare(request, members[1])).voice == made
    assert [len(replica.learned) for replica in (first, second)] == [1, 1]
    assert second.learned[0][0] == "s" and second.learned[0][1] is WAVE


async def test_a_page_keeps_the_newest_recordings_and_none_taken_back_meanwhile(monkeypatch):
    monkeypatch.setattr(voices, "MAX_RECORDINGS", 2)
    member: Any = Replica("a")
    known = OwnVoices()
    for session_id in "abc":
        await known.add(member, session_id, WAVE, RATE_HZ, CODES)
    adding = asyncio.ensure_future(known.add(member, "d", WAVE, RATE_HZ, CODES))
    await asyncio.sleep(0)
    known.remove("d")
    await adding
    assert [known.remove(session_id) for session_id in "abcd"] == [[], ["a"], ["a"], []]


async def test_a_voice_that_no_reply_uses_is_forgotten_learned_again_and_can_be_taken_back():
    codec, clock = FakeCodec(), Clock()
    with clustered(1, codec=lambda: codec, cloner=codec, clock=clock) as cluster:
        for session_id in ("other", "s"):
            made = await cluster.service.add_voice(session_id, WAVE, RATE_HZ, CODES)
        spoken = replace(ask(session="s"), voice=made.name)
        clock.now_s += VOICE_KEPT_S
        await listen(cluster.service, spoken)
        clock.now_s += 1.0
        assert await soon(lambda: codec.voices == ("plain", made.name))  # not that of the other
        clock.now_s += VOICE_KEPT_S
        assert await soon(lambda: codec.voices == ("plain",))
        *_, last = await listen(cluster.service, replace(spoken, request_id="again"))
        assert isinstance(last, Finished) and last.reason is FinishReason.STOP
        assert len(codec.voices) == 2
        await cluster.service.remove_voice("s")
        assert codec.voices == ("plain",)
