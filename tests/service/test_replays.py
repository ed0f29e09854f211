"""A reply is spoken again from its rows, sample by sample, and the network does not run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Finished, FinishReason, Sampled, TextDelta
from moss_engine.api.request import Message, Recorded, Request, Text
from moss_engine.api.service import stream
from moss_engine.api.tokens import Row
from moss_engine.build import build_talking_service
from moss_engine.config import EngineConfig, TalkConfig
from tests.fakes import FakeRuntime, make_request, scripted
from tests.service.service_support import TALK, served


async def heard(service, request: Request):
    events = [event async for event in stream(service, request)]
    chunks = [event.samples for event in events if isinstance(event, AudioChunk)]
    return np.concatenate(chunks), events


def recorded_of(events) -> tuple[Recorded, ...]:
    """What `stream` gave, as its one part."""
    rows: list[Row] = []
    pauses = []
    for event in events:
        if isinstance(event, Sampled):
            assert event.part == 0
            if event.silence:
                pauses.append((len(rows), event.silence))
            rows.append(event.row)
    texts = [(e.start_sample, e.text) for e in events if isinstance(e, TextDelta)]
    return (Recorded(tuple(rows), tuple(texts), tuple(pauses)),)


@pytest.fixture(scope="module")
def built_in():
    service = build_talking_service(EngineConfig(), TalkConfig(recogniser="none"))
    service.start()
    yield service
    service.close()


def asked(service, mode: str, text: str) -> Request:
    info = asyncio.run(service.describe())
    sampling = replace(info.sampling, seed=5)
    messages = (Message("user", Text(text)),)
    return Request("asked", "visitor", messages, mode, sampling, info.voices[0])


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("read", "Good morning. The sun is out, and it costs $25."),
        ("chat", "What is seven plus five?"),
    ],
)
def test_the_built_in_voice_says_the_same_again(built_in, mode, text):
    names = [mode.name for mode in asyncio.run(built_in.describe()).modes]
    name = next(name for name in names if name.startswith(mode))
    request = asked(built_in, name, text)
    first, events = asyncio.run(heard(built_in, request))
    recorded = recorded_of(events)
    again, told = asyncio.run(heard(built_in, replace(request, recorded=recorded)))
    assert np.array_equal(first, again), "the sound differs"
    texts = ["".join(e.text for e in es if isinstance(e, TextDelta)) for es in (events, told)]
    rows = [[e.row for e in es if isinstance(e, Sampled)] for es in (events, told)]
    assert texts[0] == texts[1] and rows[0] == rows[1]
    assert bool(recorded[0].pauses) is (mode == "read"), "pauses are not heard again"


async def test_the_network_does_not_run_and_no_place_is_taken():
    runtime = FakeRuntime(scripted(TALK))
    with served(runtime) as service:
        request = replace(make_request("again"), recorded=(Recorded(tuple(TALK), ((0, "Hi"),)),))
        events = [event async for event in service.submit(request).events()]
        assert runtime.batches == [] and isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.STOP
        assert sum(len(e.samples) for e in events if isinstance(e, AudioChunk)) == 180 * 960


async def test_no_more_is_made_than_the_listener_may_have_ahead():
    with served(run_ahead_s=2.0) as service:
        long = (Recorded(tuple(Row(TALK[1].text, 3) for _ in range(4000)), ()),)
        reply = service.submit(replace(make_request("again"), recorded=long))
        made = 0
        async for event in reply.events(acknowledge=False):
            if isinstance(event, AudioChunk):
                made += len(event.samples)
                assert made <= (2.0 + 64 * 0.04 + 1) * 24_000
            if made > 24_000:
                break
        assert service.stats().outcomes.get("stop", 0) == 0


async def test_stop_ends_it():
    with served(run_ahead_s=2.0) as service:
        long = (Recorded(tuple(Row(TALK[1].text, 3) for _ in range(4000)), ()),)
        reply = service.submit(replace(make_request("again"), recorded=long))
        last = None
        async for event in reply.events():
            if isinstance(event, AudioChunk):
                reply.cancel()
            last = event
        assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED


@pytest.mark.parametrize("rows", [(), (Row(65, 0),)])
def test_rows_without_sound_are_refused(rows):
    with served() as service:
        request = replace(make_request("again"), recorded=(Recorded(rows, ()),))
        with pytest.raises(MossError, match="holds no sound"):
            service.submit(request)
