"""Visitors' own voices: replicas learn them, and forget them when their page is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from moss_engine.api.events import Event, FinishReason
from moss_engine.api.service import ClonedVoice
from moss_engine.cluster import service, voices
from moss_engine.cluster.fleet import Answer, Card
from moss_engine.cluster.replica import WATCH_S, ReplicaServer
from moss_engine.cluster.voices import GONE_S, OwnVoices
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import ClonedVoices
from tests.cluster.cluster_support import INFO, Cluster, clustered, listen
from tests.fakes import Clock, FakeCodec
from tests.service.service_support import PATIENCE_S, ask, served, talking

WAVE, RATE_HZ, CODES = np.ones(10, np.float32), 16_000, (1, 2)


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


class Codec(FakeCodec):
    """Its voices can be added and taken away."""

    voices: tuple[str, ...] = ("plain",)

    def add(self, name: str, wave: np.ndarray, rate_hz: int, codes: tuple[int, ...]) -> None:
        self.voices = (*self.voices, name)

    def remove(self, name: str) -> None:
        self.voices = tuple(other for other in self.voices if other != name)

    @property
    def num_own(self) -> int:
        return len(self.voices) - 1


@contextmanager
def replica() -> Iterator[tuple[ReplicaServer, Codec, Clock]]:
    codec, clock = Codec(), Clock()
    with served(talking(), codec) as core:
        service = LocalService(core, INFO, ClonedVoices(codec))
        try:
            yield ReplicaServer(service, INFO, Card("one", "same"), clock), codec, clock
        finally:
            service.close()


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), PATIENCE_S)


async def add(server: ReplicaServer, page: str, session_id: str) -> None:
    (await server.call(page, "add_voice", session_id, WAVE, RATE_HZ, CODES)).result()


async def watch(server: ReplicaServer, page: str, *voiced: str) -> None:
    """The page asks for the replica's load, once."""
    async with aclosing(server.watch(page, voiced)) as loads:
        await anext(loads)


def test_a_page_that_is_silent_for_long_loses_its_voices():
    async def play(server: ReplicaServer, codec: Codec, clock: Clock) -> None:
        await add(server, "killed", "a")
        await add(server, "killed", "b")
        await add(server, "living", "c")
        begun_s = clock.now_s
        while clock.now_s <= begun_s + GONE_S:
            clock.now_s += WATCH_S
            await watch(server, "living", "c")
        await until(lambda: codec.num_own == 1)
        (kept,) = codec.voices[1:]
        clock.now_s += GONE_S
        await watch(server, "living", "c")
        await asyncio.sleep(0.3)  # longer than the replica looks for pages that are gone
        assert codec.voices[1:] == (kept,)
        await server.call("living", "remove_voice", "c")
        assert not codec.num_own

    with replica() as parts:
        asyncio.run(play(*parts))


def test_a_voice_of_which_its_page_knows_nothing_is_forgotten():
    async def play(server: ReplicaServer, codec: Codec, clock: Clock) -> None:
        await add(server, "page", "a")
        await add(server, "page", "left")  # and the call that takes it away was lost
        await add(server, "other", "b")
        first, _, other = codec.voices[1:]
        await watch(server, "page", "a")
        await until(lambda: codec.num_own == 2)
        assert codec.voices[1:] == (first, other)

    with replica() as parts:
        asyncio.run(play(*parts))


def test_a_page_that_was_cut_off_for_long_still_speaks_in_its_voices():
    codec, clock = Codec(), Clock()

    async def play(cluster: Any) -> list[Event]:
        made = await cluster.service.add_voice("s", WAVE, RATE_HZ, CODES)
        (remote,) = cluster.fleet.remotes.values()
        remote.hangs = True
        while (await cluster.service.stats()).ready:
            await asyncio.sleep(0.01)
        clock.now_s += 2 * GONE_S
        await until(lambda: not codec.num_own)
        remote.hangs = False
        while not (await cluster.service.stats()).ready:
            await asyncio.sleep(0.01)
        return await listen(cluster.service, replace(ask(session="s"), voice=made.name))

    with clustered(1, hangs_s=0.5, codec=lambda: codec, cloner=codec, clock=clock) as cluster:
        events = asyncio.run(asyncio.wait_for(play(cluster), PATIENCE_S))
    assert events[-1].reason is FinishReason.STOP  # type: ignore[attr-defined]
    assert codec.num_own == 0, "the page took its voice away when it ended"
