"""A request's way back: who is woken for what, and when nobody can be listening any more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from moss_engine.api.events import Accepted, AudioChunk, Event, Failed, Sampled, TextDelta
from moss_engine.api.tokens import Modality, Row
from moss_engine.service.reply_stream import LINGER_S, LocalReplyStream
from moss_engine.service.speech_worker import SpeechJob


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


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


OTHERS = (TextDelta("r", 0.0, 3, "a", 0), Failed("r", 0.0, 3, "code", "A sentence."))


@pytest.mark.parametrize("other", OTHERS, ids=lambda event: type(event).__name__)
def test_rows_wait_for_what_is_read_or_heard(clock: Clock, other: Event):
    async def scene() -> None:
        stream, heard = make_stream(clock), []
        task = await listening(stream, heard)
        for number in (1, 2):
            stream.put(sampled(number))
        await asyncio.sleep(0.01)
        assert heard == []
        stream.put(other)
        await asyncio.sleep(0.01)
        assert heard == [sampled(1), sampled(2), other]
        task.cancel()

    asyncio.run(scene())


def test_a_chunk_counts_as_taken_when_it_comes_out_unless_that_is_said_otherwise(clock: Clock):
    async def scene(acknowledge: bool) -> int:
        stream = make_stream(clock)
        stream.put(AudioChunk("r", 0.0, 1, np.zeros(7, dtype=np.float32), 3, 24_000))
        await anext(stream.events(acknowledge=acknowledge))
        return stream.taken_samples

    assert [asyncio.run(scene(value)) for value in (True, False)] == [10, 0]


def test_less_than_was_acknowledged_before_is_ignored(clock: Clock):
    stream = make_stream(clock)
    for samples in (5, 3):
        stream.acknowledge(samples)
    assert stream.taken_samples == 5


def test_a_chunk_wakes_at_once(clock: Clock):
    async def scene() -> None:
        stream, heard = make_stream(clock), []
        task = await listening(stream, heard)
        stream.put(AudioChunk("r", 0.0, 1, np.zeros(5, dtype=np.float32), 0, 24_000))
        await asyncio.sleep(0.01)
        assert len(heard) == 1
        task.cancel()

    asyncio.run(scene())


def test_rows_alone_do_not_wait_for_ever(clock: Clock):
    async def scene() -> None:
        stream, heard = make_stream(clock), []
        task = await listening(stream, heard)
        stream.put(sampled(1))
        clock.now_s += 1.1 * LINGER_S
        stream.put(sampled(2))
        await asyncio.sleep(0.01)
        assert heard == [sampled(1), sampled(2)]
        task.cancel()

    asyncio.run(scene())


def test_the_lease_is_lost_by_who_takes_nothing_and_not_by_who_waits(clock: Clock):
    async def scene() -> None:
        stream, heard = make_stream(clock), []
        stream.put(sampled(1))
        assert not stream.lease_lost(clock.now_s + 5, 10) and stream.lease_lost(
            clock.now_s + 11, 10
        )
        task = await listening(stream, heard)
        stream.put(sampled(2))
        assert not stream.lease_lost(
            clock.now_s + 11, 10
        )  # it is known to wait, and was not woken yet
        task.cancel()

    asyncio.run(scene())


def test_the_lease_is_lost_by_who_took_everything_and_does_not_come_back(clock: Clock):
    async def scene() -> None:
        stream = make_stream(clock)
        assert not stream.lease_lost(clock.now_s + 100, 10), "nothing was there to be taken"
        stream.open(Accepted("r", 0.0, 0, 1))
        events = stream.events()
        clock.now_s += 5
        assert isinstance(await anext(events), Accepted)
        assert stream.num_untaken == 0
        assert not stream.lease_lost(clock.now_s + 9, 10)
        assert stream.lease_lost(clock.now_s + 11, 10)
        task = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not stream.lease_lost(clock.now_s + 11, 10), "it came back"
        task.cancel()

    asyncio.run(scene())


def test_held_back_is_neither_work_of_the_network_nor_of_the_codec(clock: Clock):
    stream = make_stream(clock)
    job = SpeechJob(stream, None, 24_000)
    stream.hold(True, clock())
    clock.now_s += 0.3  # the codec still turns codes into sound
    job.deliver(np.zeros(10, np.float32))
    clock.now_s += 2.0
    stream.hold(True, clock())
    stream.hold(False, clock())
    stream.hold(False, clock() + 1.0)
    job.deliver(np.zeros(10, np.float32))
    first, second = stream._events
    assert (first.held_s, second.held_s) == (0.0, pytest.approx(2.0))
