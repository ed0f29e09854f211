"""A running service over a scripted runtime, and what listeners do with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from moss_engine.api.events import Accepted, AudioChunk, Event, Failed, Finished
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, SpeechService, stream, taken
from moss_engine.api.tokens import Row, spoken_codes
from moss_engine.codec.base import VoiceCloner
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import ClonedVoices
from tests.fakes import (
    IDS,
    LIMITS,
    PAD,
    SPOKEN,
    FakeCodec,
    FakeProcessor,
    FakeRuntime,
    make_request,
    scripted,
)
from tests.ui import page_support

Result = TypeVar("Result")

PATIENCE_S = 30.0  # how long a test waits for what must happen
TALK = [SPOKEN[2], *(Row(PAD, code % 30) for code in range(180)), Row(PAD, IDS.eosp), SPOKEN[-1]]
"""A reply of 180 codes, 7.2 s."""


INFO = replace(
    page_support.INFO,
    modes=(Mode("speech", "Speech", "text", "speech", "", False, True, None),),
    voices=("plain",),
    sampling=make_request().sampling,
    ids=IDS,
    pieces=(),
)


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as over:
        return over.value
    raise AssertionError("it waits for something")


@contextmanager
def served(
    runtime: FakeRuntime | None = None,
    codec: FakeCodec | None = None,
    processor: FakeProcessor | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    info: ServiceInfo = INFO,
    cloner: VoiceCloner | None = None,
    one_gpu: bool = False,
    **options: float,
) -> Iterator[LocalService]:
    """A running service; when the test is over no reply may be open, every block must be back and
    both threads gone."""
    before = set(threading.enumerate())
    runtime, processor = runtime or FakeRuntime(scripted(SPOKEN)), processor or FakeProcessor()
    config = EngineConfig(**options)
    engine = Engine(runtime, processor, config, samples_per_code=960, clock=clock)
    voices = ClonedVoices(cloner) if cloner else None
    service = LocalService(
        engine, codec or FakeCodec(), config, info, voices, one_gpu=one_gpu, clock=clock
    )
    service.start()
    for executor in (service.accept_thread, service._voice_thread):
        executor.submit(int).result()  # its thread is there, before another service's
    try:
        yield service
        if not engine.fault:
            wait_until(lambda: at_rest(service) and not service._replies.all())
            engine.check_integrity()
            stats = at_once(service.stats()).engine
            assert (stats.blocks_used, stats.blocks_reserved, stats.leaked_blocks) == (0, 0, 0)
    finally:
        service.close()
    left = set(threading.enumerate()) - before
    assert all(thread.name.startswith("asyncio") for thread in left), left
    assert engine.runtime.closed


def at_rest(service: LocalService) -> bool:
    """Whether no reply is running or waiting."""
    engine = at_once(service.stats()).engine
    return engine.running == engine.waiting == 0


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what had to happen did not"
        time.sleep(0.002)


def hold_at(runtime: FakeRuntime, step: int) -> threading.Event:
    """Let the runtime wait before this step, and all later ones, until the event is set."""
    go_on = threading.Event()
    runtime.before_forward = lambda: len(runtime.batches) < step or go_on.wait(PATIENCE_S)
    return go_on


def talking(**limits: int) -> FakeRuntime:
    return FakeRuntime(scripted(TALK), replace(LIMITS, num_blocks=256, **limits))


def ask(text: str = "hello", **values) -> Request:
    return make_request(text, **{"max_rows": 190, **values})


async def rest(reply: ReplyStream) -> list[Event]:
    """All events of a reply that are still to come."""
    return [event async for event in taken(reply)]


async def listen(service: SpeechService, request: Request) -> list[Event]:
    return [event async for event in stream(service, request)]


def hear(service: SpeechService, request: Request) -> list[Event]:
    return asyncio.run(listen(service, request))


def listen_to(reply: ReplyStream) -> list[Event]:
    return asyncio.run(rest(reply))


def heard(events: list[Event]) -> np.ndarray:
    """All samples of a stream; asserts that they follow each other without a gap."""
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    position = 0
    for chunk in chunks:
        assert chunk.start_sample == position and len(chunk.samples) > 0
        position += len(chunk.samples)
    return (
        np.concatenate([chunk.samples for chunk in chunks]) if chunks else np.zeros(0, np.float32)
    )


def sound_of(rows: tuple[Row, ...]) -> np.ndarray:
    return np.repeat(np.array(spoken_codes(rows, IDS), np.float32) / 100, 960)


def assert_well_formed(events: list[Event]) -> None:
    assert isinstance(events[0], Accepted)
    assert [isinstance(event, Finished | Failed) for event in events] == [False] * (
        len(events) - 1
    ) + [True]
    for chunks in (True, False):  # the two threads' events each in their own order
        times_s = [event.time_s for event in events if isinstance(event, AudioChunk) == chunks]
        assert times_s == sorted(times_s)


async def take(events, kind: type, count: int = 1) -> None:
    """Take events until `count` of a kind have come."""
    while count:
        count -= isinstance(await anext(events), kind)


def broken(error: Exception):
    def fail(*_: object) -> None:
        raise error

    return fail
