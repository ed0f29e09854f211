"""A visitor's own voice at replicas that have not heard him."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from moss_engine.api.service import ClonedVoice
from moss_engine.cluster import service, voices
from moss_engine.cluster.values import Answer
from moss_engine.cluster.voices import OwnVoices
from tests.cluster.cluster_support import Cluster, clustered
from tests.service.service_support import ask

WAVE, CODES = np.ones(10, np.float32), (1, 2)


@dataclass
class Replica:
    """Names voices in its own way, and can be the remote of a member."""

    name: str
    learned: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def remote(self) -> Replica:
        return self

    async def call(self, page: str, method: str, *arguments: Any) -> Answer:
        assert method == "add_voice"
        self.learned.append(arguments)
        return Answer(ClonedVoice(f"own {len(self.learned)} at {self.name}"))


def test_a_replica_learns_a_voice_once_when_a_reply_comes_to_it():
    first, second = Replica("a"), Replica("b")
    members: list[Any] = [first, second, second, first]

    async def names() -> tuple[str, list[str | None]]:
        known = OwnVoices("page")
        made = await known.add(members[0], "s", WAVE, 16_000, CODES)
        request = replace(ask(session="s"), voice=made.name)
        heard = [(await known.prepare(request, member)).voice for member in members]
        await known.add(members[0], "s", WAVE, 16_000, CODES)
        assert sorted(known.remove("s")) == ["a", "b"], "one has the voice before the last"
        assert (await known.prepare(request, members[1])).voice == made.name
        return made.name, heard

    made, heard = asyncio.run(names())
    assert heard == [made, "own 1 at b", "own 1 at b", made]
    assert [len(replica.learned) for replica in (first, second)] == [2, 1]
    assert second.learned[0][0] == "s" and second.learned[0][1] is WAVE


def test_replicas_are_told_of_voices_that_are_too_many(monkeypatch):
    monkeypatch.setattr(voices, "MAX_RECORDINGS", 2)

    async def add_three(cluster: Cluster) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []

        async def call(page: str, method: str, session_id: str, *arguments: Any) -> Answer:
            told.append((method, session_id))
            return Answer(ClonedVoice(f"own {session_id}"))

        for remote in cluster.fleet.remotes.values():
            monkeypatch.setattr(remote, "call", call)
        for session_id in "abc":
            await cluster.service.add_voice(session_id, WAVE, 16_000, CODES)
        return told

    with clustered(1) as cluster:
        told = asyncio.run(add_three(cluster))
        assert told == [*(("add_voice", name) for name in "abc"), ("remove_voice", "a")]


@pytest.mark.parametrize("hangs", [False, True])
def test_replicas_forget_the_voices_of_a_page_that_ends(monkeypatch, hangs):
    monkeypatch.setattr(service, "FORGET_S", 0.5)
    kept: dict[str, set[str]] = {"replica-0": set(), "replica-1": set()}

    def calls(name: str) -> Callable[..., Awaitable[Answer]]:
        async def call(page: str, method: str, session_id: str, *arguments: Any) -> Answer:
            if method == "add_voice":
                kept[name].add(session_id)
                return Answer(ClonedVoice(f"own {session_id}"))
            if hangs and name == "replica-0":
                await asyncio.Event().wait()
            kept[name].remove(session_id)
            return Answer()

        return call

    async def add_some(cluster: Cluster) -> None:
        for session_id in "abcdefgh":
            await cluster.service.add_voice(session_id, WAVE, 16_000, CODES)

    with clustered(2) as cluster:
        for name, remote in cluster.fleet.remotes.items():
            monkeypatch.setattr(remote, "call", calls(name))
        asyncio.run(add_some(cluster))
        assert all(kept.values())
    assert [bool(sessions) for sessions in kept.values()] == [hangs, False]
