"""A reply that fails by itself, and those beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from moss_engine.api.events import Event, Failed, Placed
from tests.cluster.cluster_support import Cluster, assert_whole, clustered, listen, placements
from tests.fakes import FakeCodec
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
        broken = await listen(cluster.service, replace(ask(session="s2"), voice="broken"))
        reply.acknowledge(10**9)
        return broken, whole + [event async for event in events]

    with clustered(1, codec=OneVoiceIsBroken) as cluster:
        for core in cluster.cores.values():
            object.__setattr__(core.config, "run_ahead_s", 1.0)
        broken, whole = asyncio.run(play(cluster))
        assert isinstance(broken[-1], Failed) and broken[-1].code == "E_REPLY"
        assert "ask again" in broken[-1].message
        assert_whole(whole)
        assert [len(placements(events)) for events in (broken, whole)] == [1, 1]
