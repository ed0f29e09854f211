"""An answer that is begun before it is asked for: taken by the same question, and by no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from moss_engine.api.errors import BusyError
from moss_engine.api.events import AudioChunk, Finished
from moss_engine.api.request import Text
from moss_engine.api.service import request_of
from moss_engine.endpoints.ahead import Ahead
from moss_engine.endpoints.figures import Figures
from tests.ui.page_support import INFO, FakeService, Script, soon

ASKED = request_of(INFO, Text("What time is it?"), "tab")
AGAIN = replace(ASKED, request_id="another")
OTHER = request_of(INFO, Text("What time is it in Vienna?"), "tab")


@pytest.fixture
def service() -> FakeService:
    return FakeService(Script(seconds=1.0, first_s=0.0, rtf=0.0))


@pytest.fixture
def ahead(service) -> Ahead:
    return Ahead(service, Figures())


def counted(ahead: Ahead, outcome: str) -> float:
    return ahead._figures.ahead.labels(outcome)._value.get()


async def test_the_same_question_gets_every_event_of_what_was_begun(service, ahead):
    ahead.begin(ASKED)
    assert await soon(lambda: service.over)
    reply = await ahead.take(AGAIN)
    events = [event async for event in reply.events()]
    assert isinstance(events[-1], Finished)
    assert sum(len(e.samples) for e in events if isinstance(e, AudioChunk)) == INFO.sample_rate_hz
    assert service.requests == [ASKED] and counted(ahead, "released") == 1
    assert await ahead.take(AGAIN) is None, "it is heard once"


async def test_another_question_gets_a_new_answer_and_the_place(service, ahead):
    service.script = Script(seconds=5.0, rtf=1.0)
    ahead.begin(ASKED)
    assert await soon(lambda: service.open)
    assert await ahead.take(OTHER) is None
    assert not service.open and ahead.seed is None and counted(ahead, "thrown_away") == 1


async def test_what_failed_or_was_stopped_is_asked_once_more(service, ahead):
    service.script = Script(error=BusyError("All places are taken."))
    ahead.begin(ASKED)
    assert await ahead.take(AGAIN) is None
    service.script = Script(seconds=5.0, rtf=1.0)
    ahead.begin(ASKED)
    assert await soon(lambda: service.open)
    await service.cancel_session("tab")
    assert await soon(lambda: not service.open)
    assert await ahead.take(AGAIN) is None


async def test_who_stops_waiting_for_what_was_begun_is_no_matter_of_who_asks_next(
    service, ahead, monkeypatch
):
    submit, may = service.submit, asyncio.Event()

    async def slowly(request):
        await may.wait()
        return await submit(request)

    monkeypatch.setattr(service, "submit", slowly)
    ahead.begin(ASKED)
    taking = asyncio.ensure_future(ahead.take(AGAIN))
    await asyncio.sleep(0.01)
    taking.cancel()
    await asyncio.wait({taking})
    assert taking.cancelled()
    may.set()
    assert await ahead.take(AGAIN) is None and not service.open


async def test_nothing_is_begun_while_somebody_waits(service, ahead):
    service.waiting = 1
    ahead.begin(ASKED)
    assert await ahead.take(AGAIN) is None and service.requests == []
