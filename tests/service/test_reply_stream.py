"""A reply's way back: who is woken for what, and the line that it leaves for the operator."""

from __future__ import annotations

import asyncio
import json
import logging

import numpy as np
import pytest

from moss_engine.api.events import AudioChunk, Event, Failed, Sampled, TextDelta
from moss_engine.api.service import taken
from moss_engine.api.tokens import Modality, Row
from moss_engine.service import replies
from moss_engine.service.reply_stream import LINGER_S, LocalReplyStream
from tests.fakes import Clock
from tests.service.service_support import ask, at_once, hear, served, talking, wait_until


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_stream(clock: Clock) -> LocalReplyStream:
    return LocalReplyStream("request", clock=clock, cancel=lambda _: None, on_taken=lambda: None)


def sampled(number: int) -> Sampled:
    return Sampled("r", float(number), number, Row(0, number), Modality.AUDIO)


async def listening(stream: LocalReplyStream, heard: list[Event]) -> asyncio.Task[None]:
    """A listener who waits already."""

    async def listen() -> None:
        async for event in stream.events():
            heard.append(event)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    return task


OTHERS = (TextDelta("r", 0.0, 3, "a", 0), Failed("r", 0.0, 3, "code", "A sentence."), sampled(3))


@pytest.mark.parametrize("other", OTHERS, ids=lambda event: type(event).__name__)
async def test_rows_wait_for_what_is_read_or_heard_but_not_for_ever(clock: Clock, other: Event):
    stream, heard = make_stream(clock), []
    task = await listening(stream, heard)
    for number in (1, 2):
        stream.put(sampled(number))
    await asyncio.sleep(0.01)
    assert heard == []
    if isinstance(other, Sampled):
        clock.now_s += 1.1 * LINGER_S
    stream.put(other)
    await asyncio.sleep(0.01)
    assert heard == [sampled(1), sampled(2), other]
    task.cancel()


@pytest.mark.parametrize(("listen", "samples"), [(LocalReplyStream.events, 0), (taken, 10)])
async def test_a_chunk_counts_as_taken_for_who_takes_all_at_once(clock: Clock, listen, samples):
    stream = make_stream(clock)
    stream.put(AudioChunk("r", 0.0, 1, np.zeros(7, dtype=np.float32), 3, 24_000))
    await anext(listen(stream))
    assert stream.taken_samples == samples


def lines(caplog) -> list[dict]:
    return [json.loads(record.getMessage()) for record in caplog.records]


def test_a_reply_leaves_one_line_without_its_words(caplog):
    caplog.set_level(logging.INFO, replies.log.name)
    with served() as service:
        hear(service, ask("my secret"))
        wait_until(lambda: caplog.records)
        (line,) = lines(caplog)
    assert (line["end"], line["mode"], line["rows"]) == ("stop", "speech", 8)
    assert line["sound_s"] == 0.12 and 0 <= line["first_sound_s"] <= line["seconds"]
    assert "secret" not in caplog.text and "cause" not in line


def test_the_line_says_why_a_reply_was_stopped(caplog):
    caplog.set_level(logging.INFO, replies.log.name)
    with served(talking(), lease_s=1.0, run_ahead_s=0.5) as service:
        service.accept(ask())
        stopped = service.accept(ask(session="mine"))
        at_once(service.cancel_session("mine"))
        service.cancel(stopped.request_id)
        wait_until(lambda: len(caplog.records) == 2)
        assert [line["cause"] for line in lines(caplog)] == ["session", "nobody listens"]
        assert all(line["end"] == "cancelled" for line in lines(caplog))
