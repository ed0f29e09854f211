"""One visitor, however busy, takes nothing from another: microphones, recordings, files that are
being sent, conversations."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from moss_engine.api.errors import BusyError, ParameterError
from moss_engine.api.request import Speech
from moss_engine.ui import conversation as sessions_module
from moss_engine.ui.audio_in import ingest as module
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.conversation import Sessions
from moss_engine.ui.turn import Turn
from tests.ui.page_support import FakeService, soon

RATE_HZ = 16_000
SECOND = np.full(RATE_HZ, 5000, np.int16)


async def hear(_wave: np.ndarray, _rate_hz: int) -> Speech:
    return Speech((1,))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ingest(clock) -> AudioIngest:
    return AudioIngest(hear, None, max_s=5.0, clock=clock)


async def test_many_recordings_of_one_visitor_leave_those_of_another(clock, monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES", 5 * SECOND.nbytes)
    kept = AudioIngest(hear, None, max_s=5.0, clock=clock)
    other = kept.keep(SECOND, RATE_HZ, visitor="other")
    for _ in range(24):
        mine = kept.keep(SECOND, RATE_HZ, visitor="many")
        await mine.heard
    assert (await kept.said(other.key)).speech.codes == (1,)
    assert (await kept.said(mine.key)).speech.codes == (1,)


async def test_a_recording_is_known_for_five_minutes_and_not_longer(clock):
    kept = AudioIngest(hear, None, max_s=5.0, clock=clock)
    recording = kept.keep(SECOND, RATE_HZ)
    clock.now_s = module.KEPT_S
    assert (await kept.said(recording.key)).speech.codes == (1,)
    clock.now_s += 0.1
    with pytest.raises(ParameterError, match="not known any more"):
        await kept.said(recording.key)


async def test_a_recording_that_nobody_asks_for_is_forgotten_by_itself(monkeypatch):
    monkeypatch.setattr(module, "KEPT_S", -1.0)  # at the next turn of the loop
    kept = AudioIngest(hear, None, max_s=5.0, clock=lambda: 0.0)
    kept.keep(SECOND, RATE_HZ)
    assert await soon(lambda: not kept._recordings)


async def test_one_visitor_cannot_fill_the_queue_of_what_waits_to_be_understood(clock):
    gate = asyncio.Event()

    async def slowly(_wave: np.ndarray, _rate_hz: int) -> Speech:
        await gate.wait()
        return Speech((1,))

    kept = AudioIngest(slowly, None, max_s=5.0, clock=clock)
    for _ in range(module.MAX_PENDING_OF_VISITOR):
        kept.keep(SECOND, RATE_HZ, visitor="many")
    with pytest.raises(BusyError):
        kept.keep(SECOND, RATE_HZ, visitor="many")
    other = kept.keep(SECOND, RATE_HZ, visitor="other")
    gate.set()
    assert (await kept.said(other.key)).speech.codes == (1,)


def test_half_sent_files_are_few_and_leave_room_for_others(ingest):
    with contextlib.ExitStack() as sending:
        for _ in range(module.MAX_FILES_OF_VISITOR):
            sending.enter_context(ingest.receiving("many"))
        with pytest.raises(BusyError), ingest.receiving("many"):
            pass
        with ingest.receiving("other"):
            pass
    with ingest.receiving("many"):
        pass


KEY = "0123456789abcdef" * 2


class Left(FakeService):
    """Notes who left."""

    async def remove_voice(self, session_id: str) -> None:
        self.cancelled.append(session_id)


async def test_many_sessions_of_one_visitor_push_out_their_own(clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MAX_CONVERSATIONS", 20)
    kept = Sessions(Left(), clock)
    other = kept.of("other's tab", "other")
    for number in range(300):
        clock.now_s += 0.1
        kept.of(f"tab {number}", "many")
    assert kept.of("other's tab", "other") is other
    gone = kept._service.cancelled
    assert await soon(lambda: len(gone) == 300 - 19) and "other's tab" not in gone


async def test_a_conversation_that_is_not_used_is_forgotten(clock):
    kept = Sessions(Left(), clock)
    old, used = kept.of("old", name=KEY), kept.of("used")
    clock.now_s = sessions_module.STATE_S + 1.0
    kept.of("used")
    kept.sweep()
    assert await soon(lambda: kept._service.cancelled == ["old"]) and kept.find(KEY) is None
    assert kept.of("used") is used and kept.of("old", name=KEY) is not old


async def test_a_conversation_outlives_its_session_by_its_name_until_it_is_renewed():
    kept = Sessions(FakeService())
    first = kept.of("session", name=KEY)
    assert kept.of("session", name=KEY) is first and kept.of("session") is not first
    first.turns.append(Turn())
    await kept.come_back("another session", "visitor", KEY)
    assert kept.find(KEY) is first and first.session_id == "another session"
    first.voice = "voice"
    second = kept.renew(first)
    assert second is not first and second.voice == "voice" and not second.turns
    assert kept.find(KEY) is second


async def test_conversations_are_looked_through_as_long_as_there_are_some(monkeypatch):
    monkeypatch.setattr(sessions_module, "SWEEP_S", 0.0)
    sessions = Sessions(Left())
    conversation = sessions.of("tab", "visitor")
    assert await soon(lambda: sessions._sweeping is not None)
    assert sessions.of("tab", "visitor") is conversation
    conversation.used_s = -sessions_module.STATE_S - 1e9
    assert await soon(lambda: sessions._service.cancelled and sessions._sweeping is None)
