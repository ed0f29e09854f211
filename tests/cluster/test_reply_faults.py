"""A reply that fails by itself, and those beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Event, Failed, Placed
from moss_engine.api.request import Request
from tests.cluster.cluster_support import Cluster, assert_whole, clustered, listen, placements
from tests.fakes import FakeCodec, FakeProcessor
from tests.service.service_support import ask


class OneVoiceIsBroken(FakeCodec):
    voices = ("plain", "broken")

    def open_stream(self, voice=None):
        if voice == "broken":
            raise RuntimeError("no memory for this voice")
        return super().open_stream(voice)


def test_a_reply_without_sound_ends_alone():
    async def play(cluster: Cluster) -> tuple[list[Event], list[Event]]:
        reply = await cluster.service.submit(ask(session="s"))
        events = reply.events(acknowledge=False)
        whole = [await anext(events), await anext(events)]
        assert isinstance(whole[1], Placed)
        failed = await listen(cluster.service, replace(ask(session="s2"), voice="broken"))
        reply.acknowledge(10**9)
        return failed, whole + [event async for event in events]

    with clustered(1, codec=OneVoiceIsBroken) as cluster:
        cluster.hold_back(1.0)
        failed, whole = asyncio.run(play(cluster))
        assert isinstance(failed[-1], Failed) and failed[-1].code == "E_REPLY"
        assert "ask again" in failed[-1].message
        assert_whole(whole)
        assert [len(placements(events)) for events in (failed, whole)] == [1, 1]


class OneTextIsBroken(FakeProcessor):
    def prepare(self, request: Request) -> Any:
        if "broken" in str(request.messages):
            raise KeyError("nobody thought of this")
        return super().prepare(request)


class NoVoiceIsMade:
    def add(self, *_: Any) -> str | None:
        raise KeyError("nobody thought of this")

    def remove(self, name: str) -> None:
        raise AssertionError("no voice was made")


@pytest.mark.parametrize("what", ["a request", "a recording"])
def test_what_nobody_thought_of_costs_no_replica(what):
    async def fail(cluster: Cluster) -> None:
        if what == "a request":
            await cluster.service.submit(ask("broken"))
        await cluster.service.add_voice("s", np.ones(9, np.float32), 24_000, (1,))

    async def play(cluster: Cluster) -> list[Event]:
        reply = await cluster.service.submit(ask(session="s"))
        events = reply.events(acknowledge=False)
        whole = [await anext(events)]
        with pytest.raises(EngineFaultError, match=r"could not be \w+; "):
            await fail(cluster)
        reply.acknowledge(10**9)
        return whole + [event async for event in events]

    with clustered(2, cloner=NoVoiceIsMade()) as cluster:
        cluster.hold_back(1.0)
        for core in cluster.cores.values():
            core.engine.processor = OneTextIsBroken()
        whole = asyncio.run(play(cluster))
        assert_whole(whole)
        assert len(placements(whole)) == 1 and len(asyncio.run(cluster.service.replicas())) == 2
