"""The page in front of a service in another process, whose clock is a day ahead: what holds in one
process holds there."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from moss_engine.api.events import Accepted, AudioChunk, Event, Finished, FinishReason
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui.config import PageConfig
from tests.ui.page_support import DEFAULTS, IDS, PATIENCE_S, free_port
from tests.ui.remote_service import RemoteService
from tests.ui.test_page_asking import (  # noqa: F401
    browser,
    tab,
    test_a_question_replaces_the_answer_before_it,
    test_an_answer_can_be_heard_again_and_kept,
    test_stop_right_after_asking,
)
from tests.ui.test_page_browser import pytestmark as pytestmark
from tests.ui.test_page_browser import (  # noqa: F401
    test_captions_follow_the_ear_and_not_the_model,
    test_closing_the_tab_ends_its_reply,
    test_heard_after_holds_the_server_and_the_way,
    test_stop_silences_the_page_and_frees_the_reply,
    test_two_tabs_speak_at_the_same_time,
    test_what_is_heard_is_what_was_sent_and_the_page_follows,
    visit,
)


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service, port = RemoteService(), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port
    page.close(verbose=False)
    service.close()


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


async def converse(service: RemoteService) -> tuple[list[Event], ServiceInfo]:
    request = Request("r", "s", (Message("user", Text("hello")),), "read", DEFAULTS)
    events = [event async for event in stream(service, request)]
    return events, await service.describe()


async def stop_before_listening(service: RemoteService) -> list[Event]:
    request = Request("r", "s", (Message("user", Text("hello")),), "read", DEFAULTS)
    reply = await service.submit(request)
    await service.cancel_session("s")
    return [event async for event in reply.events()]


def test_a_reply_is_stopped_before_anybody_listens_to_it(service):
    with ThreadPoolExecutor(1) as thread:
        events = thread.submit(asyncio.run, stop_before_listening(service)).result(PATIENCE_S)
    assert isinstance(events[-1], Finished) and events[-1].reason is FinishReason.CANCELLED
    assert service.cancelled == ["r"]


def test_a_reply_crosses_the_boundary_by_value(service):
    with ThreadPoolExecutor(1) as thread:  # the browser's event loop runs in this one
        events, info = thread.submit(asyncio.run, converse(service)).result(PATIENCE_S)
    assert events[0] == Accepted("r", 0.0, 0, 21) and isinstance(events[-1], Finished)
    assert all(0.0 <= event.time_s < PATIENCE_S for event in events), "a clock crossed the boundary"
    samples = np.concatenate([e.samples for e in events if isinstance(e, AudioChunk)])
    assert np.array_equal(np.trim_zeros(to_pcm16(samples), "f"), service.sent())
    assert info.ids == IDS
