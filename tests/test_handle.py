"""A request's way back: who is woken for what, and when nobody can be listening any more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import make_request

from moss_engine.events import Event, Failed, Sampled, TextDelta
from moss_engine.handle import LINGER_S, Handle
from moss_engine.tokens import Modality, Row


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_handle(clock: Clock) -> Handle:
    return Handle(make_request(), speaks=True, sample_rate_hz=24_000, samples_per_code=1920, clock=clock,
                  cancel=lambda _: None, on_taken=lambda: None)


def sampled(number: int) -> Sampled:
    return Sampled("r", float(number), number, Row(0, number), Modality.AUDIO)


async def listening(handle: Handle, heard: list[Event]) -> asyncio.Task[None]:
    """A listener who waits already."""
    async def listen() -> None:
        async for event in handle.events():
            heard.append(event)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    return task


OTHERS = (TextDelta("r", 0.0, 3, "a", 0), Failed("r", 0.0, 3, "code", "A sentence."))


@pytest.mark.parametrize("other", OTHERS, ids=lambda event: type(event).__name__)
def test_rows_wait_for_what_is_read_or_heard(clock: Clock, other: Event):
    async def scene() -> None:
        handle, heard = make_handle(clock), []
        task = await listening(handle, heard)
        for number in (1, 2):
            handle.put(sampled(number))
        await asyncio.sleep(0.01)
        assert heard == []
        handle.put(other)
        await asyncio.sleep(0.01)
        assert heard == [sampled(1), sampled(2), other]
        task.cancel()

    asyncio.run(scene())


def test_a_chunk_wakes_at_once(clock: Clock):
    async def scene() -> None:
        handle, heard = make_handle(clock), []
        task = await listening(handle, heard)
        handle.put_samples(np.zeros(5, dtype=np.float32))
        await asyncio.sleep(0.01)
        assert len(heard) == 1
        task.cancel()

    asyncio.run(scene())


def test_rows_alone_do_not_wait_for_ever(clock: Clock):
    async def scene() -> None:
        handle, heard = make_handle(clock), []
        task = await listening(handle, heard)
        handle.put(sampled(1))
        clock.now_s += 1.1 * LINGER_S
        handle.put(sampled(2))
        await asyncio.sleep(0.01)
        assert heard == [sampled(1), sampled(2)]
        task.cancel()

    asyncio.run(scene())


def test_the_lease_is_lost_by_who_takes_nothing_and_not_by_who_waits(clock: Clock):
    async def scene() -> None:
        handle, heard = make_handle(clock), []
        handle.put(sampled(1))
        assert not handle.lease_lost(clock.now_s + 5, 10) and handle.lease_lost(clock.now_s + 11, 10)
        task = await listening(handle, heard)
        handle.put(sampled(2))
        assert not handle.lease_lost(clock.now_s + 11, 10)  # it is known to wait, and was not woken yet
        task.cancel()

    asyncio.run(scene())
