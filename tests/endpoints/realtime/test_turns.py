"""Turns that are judged by their words: answered ahead, mended, and not stopped by a murmur."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import numpy as np
import pytest
import soundfile

from moss_engine.api.transcript import Transcript
from moss_engine.audio import turn_judge
from moss_engine.audio.turn_taking import LEAD_S
from moss_engine.endpoints.realtime.wire import RATE_HZ
from tests.audio.test_turn_taking import SAMPLE
from tests.endpoints.endpoint_support import running
from tests.endpoints.realtime.realtime_support import MANUAL, connected, respond, send, until, write
from tests.endpoints.realtime.test_talking import PAUSE
from tests.ui.page_support import INFO, FakeService, Script, soon

pytest.importorskip("silero_vad")
WHOLE = "Tell me a joke."
SHORT_PAUSE, END = PAUSE[: round(0.5 * RATE_HZ)], PAUSE[: round(0.75 * RATE_HZ)]
BLOCK_S, FASTER = 0.05, 2.0


class Ears(FakeService):
    """Understands `words`, whatever is said."""

    words = WHOLE

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        self.encoded.append((wave, sample_rate_hz))
        return Transcript(self.words, "Scripted", len(wave) / sample_rate_hz)

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
        return Transcript(self.words, "Scripted", len(wave) / sample_rate_hz)


@pytest.fixture(scope="module")
def listening():
    service = Ears(info=replace(INFO, recogniser="Scripted"))
    with running(service) as url:
        yield service, url


@pytest.fixture
def ears(listening, monkeypatch):
    monkeypatch.setattr(turn_judge, "load_melody", lambda: None)
    listening[0].reset(Script(seconds=3.0, first_s=0.02, rtf=0.3))
    listening[0].words = WHOLE
    return listening[0]


@pytest.fixture
def talk(listening, ears):
    def talking(detection: dict | None = None):
        audio = {"input": {"turn_detection": detection}}
        session = detection and {"type": "realtime", "audio": audio}
        return connected(listening[1], session)

    return talking


@pytest.fixture
def counted(listening):
    def count(name: str) -> float:
        lines = httpx.get(f"{listening[1]}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    return count


async def speak(connection, pcm: np.ndarray) -> None:
    """In half of its time: a microphone's sound comes bit by bit."""
    size = round(BLOCK_S * RATE_HZ)
    for start in range(0, len(pcm), size):
        await send(connection, pcm[start : start + size])
        await asyncio.sleep(BLOCK_S / FASTER)


@pytest.fixture(scope="module")
def spoken() -> np.ndarray:
    """int16 [n]: words of a voice without a pause in them."""
    wave, rate_hz = soundfile.read(SAMPLE, dtype="int16")
    assert rate_hz == RATE_HZ
    return wave[57_000:94_000]


async def test_an_answer_is_begun_before_its_turn_is_over_and_told_after_it(talk, ears, spoken):
    """An eager listener would answer at once; this one waits 3 s, with the answer made."""
    detection = {"type": "server_vad", "silence_duration_ms": 3000}
    async with talk(detection) as connection:
        await speak(connection, np.concatenate([spoken, SHORT_PAUSE]))
        assert await soon(lambda: ears.requests)
        events = await until(connection, "input_audio_buffer.speech_started")
        assert len(events) == 1, "nothing else was told"
        await speak(connection, np.concatenate([PAUSE, PAUSE]))
        events = await until(connection, "response.done")
    kinds = [event.type for event in events]
    order = [
        "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
        "conversation.item.added", "conversation.item.done", "response.created",
        "response.output_item.added", "conversation.item.added",
    ]  # fmt: skip
    assert kinds[: len(order)] == order and kinds.count("response.created") == 1
    assert (
        events[order.index("response.output_item.added") + 1].previous_item_id == events[1].item_id
    )
    assert events[-1].response.status == "completed" and len(ears.requests) == 1


async def test_who_goes_on_was_never_answered(talk, ears, spoken, counted):
    detection = {"type": "server_vad", "silence_duration_ms": 1000}
    before = counted('moss_speech_ahead_total{outcome="thrown_away"}')
    async with talk(detection) as connection:
        await speak(connection, np.concatenate([spoken, END, spoken, PAUSE]))
        events = await until(connection, "response.done")
    kinds = [event.type for event in events]
    assert kinds.count("response.created") == kinds.count("input_audio_buffer.committed") == 1
    assert counted('moss_speech_ahead_total{outcome="thrown_away"}') > before
    assert len(ears.requests[-1].messages) == 1
    assert await soon(lambda: not ears.open)


async def test_a_turn_that_goes_on_behind_its_judged_end_is_answered_once(
    talk, ears, spoken, counted
):
    before = counted("moss_speech_turns_mended_total")
    async with talk() as connection:
        await speak(connection, np.concatenate([spoken, END]))
        first = await until(connection, "input_audio_buffer.committed")
        await speak(connection, np.concatenate([spoken, PAUSE]))
        events = await until(connection, "response.done")
        while events[-1].response.status == "cancelled":
            assert events[-1].response.status_details.reason == "turn_detected"
            events += await until(connection, "response.done")
    deleted = [e.item_id for e in events if e.type == "conversation.item.deleted"]
    assert first[-1].item_id in deleted
    (request,) = [ears.requests[-1]]
    assert len(request.messages) == 1, "nothing is left of the first part and its answer"
    whole = max(len(wave) / rate for wave, rate in ears.encoded)
    assert whole > 2 * len(spoken) / RATE_HZ, "both parts were understood as one"
    assert counted("moss_speech_turns_mended_total") == before + 1
    assert events[-1].response.status == "completed"


@pytest.mark.parametrize(
    ("before", "word", "goes_on"),
    [
        ("Tell me a story about a", "King.", True),
        ("Tell me a story about a", "Mhm.", False),
        ("Tell me a story about a", "Yeah.", False),
        (WHOLE, "King.", False),
    ],
)
async def test_a_soft_last_word_over_the_answer_to_an_open_end_is_part_of_the_turn(
    talk, ears, spoken, counted, before, word, goes_on
):
    """The pause ends while it is said: too soft and too short to interrupt anything."""
    ears.script, ears.words = Script(seconds=9.0, first_s=0.02, rtf=0.4), before
    mended = counted("moss_speech_turns_mended_total")
    soft = (spoken[: round(0.4 * RATE_HZ)] * 0.1).astype(np.int16)
    async with talk() as connection:
        await speak(connection, spoken)
        await speak(connection, PAUSE[: round(1.05 * RATE_HZ)])
        first = await until(connection, "response.output_audio.delta")
        ears.words, ears.script = word, Script(seconds=0.2)
        await speak(connection, np.concatenate([soft, PAUSE]))
        events = await until(connection, "response.done")
        assert events[-1].response.status == ("cancelled" if goes_on else "completed")
        if goes_on:
            events += await until(connection, "response.done")
    assert counted("moss_speech_turns_mended_total") == mended + goes_on
    assert len(ears.requests[-1].messages) == 1, "nothing is left of the first part's answer"
    (part,) = [e.item_id for e in first if e.type == "input_audio_buffer.committed"]
    deleted = [e.item_id for e in events if e.type == "conversation.item.deleted"]
    assert (part in deleted) is goes_on
    longest = max((len(wave) for wave, _ in ears.encoded), default=0)
    assert (longest > len(spoken) + len(soft)) is goes_on, "both parts were understood as one"


@pytest.mark.parametrize(("words", "stops"), [("Mhm.", False), ("Stop!", True)])
async def test_a_murmur_does_not_stop_an_answer_and_words_do(talk, ears, spoken, words, stops):
    ears.script = Script(seconds=9.0, first_s=0.02, rtf=0.4)
    async with talk() as connection:
        await speak(connection, np.concatenate([spoken, END]))
        await until(connection, "response.output_audio.delta")
        await speak(connection, np.concatenate([PAUSE, PAUSE]))  # too late to go on
        ears.words, ears.script = words, Script(seconds=0.2)
        await speak(connection, np.concatenate([spoken[: round(0.8 * RATE_HZ)], PAUSE]))
        events = await until(connection, "response.done")
        kinds = [event.type for event in events]
        assert ("input_audio_buffer.speech_started" in kinds) is stops
        assert events[-1].response.status == ("cancelled" if stops else "completed")
        if stops:
            await until(connection, "response.done")  # of an answer to them


async def test_the_words_that_are_heard_of_a_long_answer_do_not_stop_it(talk, ears, spoken):
    ears.script = Script(seconds=24.0, first_s=0.02, rtf=0.01)
    text = "At noon the old train leaves. " + "Then it goes through the hills. " * 12
    async with talk() as connection:
        await write(connection, text)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")
        ears.words = "At noon the."
        await speak(connection, np.concatenate([spoken[: round(1.1 * RATE_HZ)], PAUSE]))
        await connection.input_audio_buffer.clear()
        events = await until(connection, "input_audio_buffer.cleared")
    assert "input_audio_buffer.speech_started" not in [event.type for event in events]


async def test_times_are_those_of_the_whole_session(talk, ears, spoken):
    async with talk() as connection:
        await send(connection, PAUSE)
        audio = {"input": {"turn_detection": {"type": "server_vad"}}}
        await connection.session.update(session={"type": "realtime", "audio": audio})
        await send(connection, np.concatenate([spoken, PAUSE]))
        events = await until(connection, "input_audio_buffer.speech_stopped")
    started = next(e for e in events if e.type == "input_audio_buffer.speech_started")
    before_ms = 1000 * len(PAUSE) // RATE_HZ
    assert before_ms - 1000 * LEAD_S <= started.audio_start_ms < before_ms + 500
    assert events[-1].audio_end_ms > before_ms + 1000 * len(spoken) // RATE_HZ


async def test_a_buffer_that_is_cleared_leaves_nothing_of_its_turn(talk, ears, spoken):
    ears.script = Script(seconds=12.0, first_s=0.02, rtf=0.1)
    async with talk() as connection:
        await speak(connection, np.concatenate([spoken, END]))
        await until(connection, "response.done")
        await speak(connection, PAUSE)
        ears.words = "Mhm."
        await speak(connection, spoken[: round(0.5 * RATE_HZ)])  # over what is still played
        await connection.input_audio_buffer.clear()
        await until(connection, "input_audio_buffer.cleared")
        ears.words = WHOLE
        await speak(connection, np.concatenate([SHORT_PAUSE, spoken, PAUSE]))
        events = await until(connection, "response.done")
    assert [e.type for e in events].count("input_audio_buffer.speech_started") == 1
    assert events[-1].response.status == "completed"


async def test_what_is_held_of_a_turn_is_left_to_the_client_that_commits(talk, ears, spoken):
    async with talk({"type": "server_vad"}) as connection:
        await send(connection, spoken)
        begun = (await until(connection, "input_audio_buffer.speech_started"))[-1]
        await connection.session.update(session=MANUAL)
        await send(connection, PAUSE)
        await connection.input_audio_buffer.commit()
        committed = (await until(connection, "input_audio_buffer.committed"))[-1]
        assert committed.item_id == begun.item_id
        assert (await respond(connection))[-1].response.status == "completed"
    heard_s = len(ears.encoded[-1][0]) / ears.encoded[-1][1]
    assert heard_s >= 0.9 * (len(spoken) + len(PAUSE)) / RATE_HZ


async def test_a_turn_in_which_its_detection_changes_is_heard_whole(talk, ears, spoken):
    async with talk({"type": "server_vad"}) as connection:
        await send(connection, spoken)
        begun = (await until(connection, "input_audio_buffer.speech_started"))[-1]
        audio = {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}}
        await connection.session.update(session={"type": "realtime", "audio": audio})
        await send(connection, PAUSE)
        events = await until(connection, "response.done")
    assert {e.item_id for e in events if e.type.startswith("input_audio_buffer")} == {begun.item_id}
    assert len(ears.encoded[-1][0]) >= 0.9 * len(spoken)


async def test_a_turn_is_left_to_the_client_that_answers_itself(talk, ears, spoken):
    async with talk({"type": "semantic_vad", "create_response": False}) as connection:
        await speak(connection, np.concatenate([spoken, PAUSE]))
        await until(connection, "input_audio_buffer.committed")
        assert ears.requests == []
        await respond(connection)
    assert len(ears.requests) == 1
