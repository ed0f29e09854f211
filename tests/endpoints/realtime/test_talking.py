"""Hands-free: turns are found in a client's sound, and talking interrupts the answer."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from moss_engine.api.request import Speech
from moss_engine.endpoints.realtime.connection import Connection
from moss_engine.endpoints.realtime.conversation import Item
from moss_engine.endpoints.realtime.listening import Listening
from moss_engine.endpoints.realtime.wire import RATE_HZ
from tests.audio.test_turn_taking import SAMPLE
from tests.endpoints.realtime.realtime_support import MANUAL, send, until, write
from tests.endpoints.realtime.test_realtime import lingering_behind
from tests.ui.page_support import CODE_SAMPLES, IDS, INFO, Row, Script, soon

pytest.importorskip("silero_vad")
PAUSE = np.zeros(round(1.5 * RATE_HZ), np.int16)


@pytest.fixture(scope="module")
def said() -> np.ndarray:
    """int16 [n]: a sentence of a voice and a pause."""
    wave, rate_hz = soundfile.read(SAMPLE, dtype="int16")
    assert rate_hz == RATE_HZ
    return np.concatenate([wave, PAUSE])


async def test_a_turn_is_found_understood_and_answered(connect, service, said):
    async with connect() as connection:
        await send(connection, said)
        events = await until(connection, "response.done")
    kinds = [event.type for event in events]
    assert kinds[:5] == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
    ]  # fmt: skip
    assert len({event.item_id for event in events[:3]}) == 1
    assert 0 <= events[0].audio_start_ms < events[1].audio_end_ms
    assert events[-1].response.status == "completed"
    assert isinstance(service.requests[-1].messages[-1].content, Speech)


async def test_a_question_in_one_piece_is_heard_whole(connect, service, said):
    async with connect() as connection:
        await send(connection, np.concatenate([PAUSE, said]), 10**7)
        await until(connection, "response.done")
    words_s = (len(said) - len(PAUSE)) / RATE_HZ
    assert 0.8 * words_s < max(len(wave) / rate for wave, rate in service.encoded) < words_s + 1


async def test_talking_interrupts_the_answer(connect, service, said, monkeypatch):
    service.script = Script(seconds=30.0, rtf=0.5)
    lingering = lingering_behind("input_audio_buffer.speech_started")
    monkeypatch.setattr(Connection, "_emit", lingering)
    async with connect() as connection:
        await send(connection, said)
        await until(connection, "response.output_audio.delta")
        await send(connection, said[: len(said) - len(PAUSE)])
        events = await until(connection, "response.done")
        kinds = [event.type for event in events]
        started = kinds.index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in kinds[started + 1 :]
        response = events[-1].response
        assert response.status == "cancelled"
        assert response.status_details.reason == "turn_detected"
        assert await soon(lambda: not service.open)


async def found_and_asked_for(connection, said, asked) -> None:
    """A turn that the service found is asked about while it is not understood yet."""
    await send(connection, said)
    await until(connection, "conversation.item.done")
    assert await soon(lambda: asked)
    await connection.response.create()
    await write(connection, "And this?")


async def test_a_turn_that_is_asked_for_while_it_is_recognised_is_answered_once(
    connect, service, said, slow_ears
):
    asked, may = slow_ears
    async with connect() as connection:
        await found_and_asked_for(connection, said, asked)
        may.set()
        assert (await until(connection, "response.done"))[-1].response.status == "completed"
        await connection.response.cancel()
        assert (await until(connection, "error"))[-1].error.code == "response_cancel_not_active"
    assert len(service.requests) == 1


async def test_a_response_that_waits_for_its_turn_to_be_recognised_is_cancelled_at_once(
    connect, service, said, slow_ears
):
    asked, may = slow_ears
    async with connect() as connection:
        await found_and_asked_for(connection, said, asked)
        await connection.response.cancel()
        assert (await until(connection, "response.done"))[-1].response.status == "cancelled"
        may.set()
        await write(connection, "And this?")
        assert service.requests == []


async def test_hanging_up_while_a_turn_is_recognised_gives_the_place_back(
    connect, service, said, slow_ears, monkeypatch
):
    asked, may = slow_ears
    left = []
    close = Listening.close
    monkeypatch.setattr(Listening, "close", lambda self: (left.append(self), close(self)))
    async with connect() as connection:
        await found_and_asked_for(connection, said, asked)
        await connection.response.cancel()
    assert await soon(lambda: left)
    may.set()
    assert service.requests == []


async def test_turns_that_interrupt_nothing_are_answered_one_after_another(connect, service, said):
    service.script = Script(seconds=2.0, rtf=0.4)
    detection = {"type": "server_vad", "interrupt_response": False}
    session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    async with connect(session) as connection:
        for _ in range(2):
            await send(connection, said)
        events = [event for _ in range(2) for event in await until(connection, "response.done")]
        last = events[-1].response.id
        await connection.response.cancel()
        assert (await until(connection, "error"))[-1].error.code == "response_cancel_not_active"
    told = [event for event in events if event.type in ("response.created", "response.done")]
    assert [event.type for event in told] == ["response.created", "response.done"] * 2
    assert [event.response.id for event in told[::2]] == [e.response.id for e in told[1::2]]
    assert last == told[-1].response.id


async def test_a_buffer_nobody_commits_is_bounded(connect):
    async with connect(MANUAL) as connection:
        await send(
            connection, np.ones(round((INFO.max_speech_s + 0.5) * RATE_HZ), np.int16), 48_000
        )
        sentence = (await until(connection, "error"))[-1].error.message
        assert "was emptied; commit sooner" in sentence


def test_an_answer_is_cut_to_what_was_heard():
    rows = (Row(300, 0), Row(1, 0), *(Row(2, code) for code in range(10)), Row(2, IDS.eosp))
    item = Item("item_1", "assistant", True, rows=rows, num_samples=10 * CODE_SAMPLES)
    item.words = [(0, "One."), (5 * CODE_SAMPLES, " Two.")]
    assert item.transcript == "One. Two."
    item.cut(3 * CODE_SAMPLES + 1, INFO)
    assert item.rows == rows[:6] and item.transcript == "One."
    item.cut(0, INFO)
    assert item.rows == () and item.transcript == "" and item.content(INFO.modes[1]) is None
