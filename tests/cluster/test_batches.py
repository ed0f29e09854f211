"""What of a reply travels together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from moss_engine.api.events import AudioChunk, Event, Finished, FinishReason, Sampled
from moss_engine.api.request import Request
from moss_engine.api.tokens import Modality, Row
from moss_engine.cluster import replica
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.values import Card
from tests.cluster.cluster_support import INFO
from tests.service.service_support import ask

CHUNK = AudioChunk("r", 0.0, 0, np.zeros(4, np.float32), 0, 24_000)
LAST = Finished("r", 0.0, 0, FinishReason.STOP, ())


def row(number: int) -> Sampled:
    return Sampled("r", 0.0, number, Row(1, number), Modality.AUDIO)


class Told:
    """A service and its only reply: these events, one at a time; it ends with LAST only."""

    request_id = "r"

    def __init__(self, events: list[Event]):
        self._events = events

    async def submit(self, request: Request) -> Told:
        return self

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        for event in self._events:
            await asyncio.sleep(0)
            yield event
        if self._events[-1] is not LAST:
            await asyncio.Event().wait()


def batches(events: list[Event], count: int) -> list[list[Event]]:
    async def take() -> list[list[Event]]:
        told = Told(events)
        server = ReplicaServer(told, INFO, Card("one", "same"))  # type: ignore[arg-type]
        stream = server.reply("page", ask())
        found = [await anext(stream) for _ in range(count)]
        await stream.aclose()
        return found  # type: ignore[return-value]

    return asyncio.run(take())


@pytest.mark.parametrize("behind", [CHUNK, LAST])
def test_rows_wait_for_what_is_heard(monkeypatch, behind):
    monkeypatch.setattr(replica, "ROWS_WAIT_S", 1e6)
    told = [row(1), row(2), row(3), behind]
    assert batches([*told, row(4), LAST] if behind is CHUNK else told, 1)[0] == told


def test_rows_alone_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(replica, "ROWS_WAIT_S", 0.0)
    assert batches([row(1)], 1) == [[row(1)]]


def test_a_message_has_one_chunk_at_most(monkeypatch):
    monkeypatch.setattr(replica, "ROWS_WAIT_S", 1e6)
    found = batches([row(1), CHUNK, CHUNK, row(2), LAST], 3)
    assert [sum(event is CHUNK for event in batch) for batch in found] == [1, 1, 0]
