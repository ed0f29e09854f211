"""A visitor's own voice at replicas that have not heard him."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moss_engine.api.service import ClonedVoice
from moss_engine.cluster.values import Answer
from moss_engine.cluster.voices import OwnVoices
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

    async def call(self, method: str, *arguments: Any) -> Answer:
        assert method == "add_voice"
        self.learned.append(arguments)
        return Answer(ClonedVoice(f"own {len(self.learned)} at {self.name}"))


def test_a_replica_learns_a_voice_once_when_a_reply_comes_to_it():
    first, second = Replica("a"), Replica("b")
    members: list[Any] = [first, second, second, first]

    async def names() -> tuple[str, list[str | None]]:
        voices = OwnVoices()
        made = await voices.add(members[0], "s", WAVE, 16_000, CODES)
        request = replace(ask(session="s"), voice=made.name)
        heard = [(await voices.prepare(request, member)).voice for member in members]
        assert sorted(voices.remove("s")) == ["a", "b"]
        assert (await voices.prepare(request, members[1])).voice == made.name
        return made.name, heard

    made, heard = asyncio.run(names())
    assert heard == [made, "own 1 at b", "own 1 at b", made]
    assert [len(replica.learned) for replica in (first, second)] == [1, 1]
    assert second.learned[0][0] == "s" and second.learned[0][1] is WAVE
