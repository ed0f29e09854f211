"""Hands-free turns with a recogniser: pauses by what was said, murmurs, coughs and the page's own
echo."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from moss_engine.api.request import Speech
from moss_engine.api.transcript import Transcript
from moss_engine.audio import turn_judge
from moss_engine.audio.hearing import MOST_S
from moss_engine.audio.turn_judge import WAITS_S
from moss_engine.audio.turn_taking import FRAME_S, RATE_HZ
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.audio_in.microphone import LOOK_S, MicSession
from tests.ui.test_page_ingest import Loud, silence, tone

BLOCK_S = 0.064


class Ear:
    """Understands what is written down; counts who asks."""

    def __init__(self, text: str):
        self.text, self.glimpses, self.whole = text, 0, 0

    async def transcribe_partial(self, wave: np.ndarray, rate_hz: int) -> Transcript | None:
        self.glimpses += 1
        return Transcript(self.text, "Ear", len(wave) / rate_hz)

    async def hear(self, wave: np.ndarray, rate_hz: int) -> Speech:
        self.whole += 1
        return Speech((), Transcript(self.text, "Ear", len(wave) / rate_hz))


class Foreign(Ear):
    """Takes another language for a murmur, and says that it is not sure."""

    async def transcribe_partial(self, wave: np.ndarray, rate_hz: int) -> Transcript | None:
        return Transcript(self.text, "Ear", len(wave) / rate_hz, sure=False)


def ingest_of(ear: Ear, *, by_words: bool = True) -> AudioIngest:
    return AudioIngest(
        ear.hear, Loud(), max_s=20.0, transcribe_partial=ear.transcribe_partial, by_words=by_words
    )


async def feed(
    ingest: AudioIngest, wave: np.ndarray, *, answering: bool = False, saying: str = ""
) -> list:
    """Every answer, block by block, as a microphone sends them."""
    microphone, answers = MicSession(ingest), []
    microphone.begin(hands_free=True)
    size = round(BLOCK_S * RATE_HZ)
    for start in range(0, len(wave), size):
        body = wave[start : start + size].astype("<i2").tobytes()
        answers.append(await microphone.hear(body, answering=answering, end=False, saying=saying))
        await asyncio.sleep(0)
        working = asyncio.all_tasks() - {asyncio.current_task()}
        if working:
            await asyncio.wait(working)
    return answers


def pause_before_the_end(answers: list, speech_s: float) -> float:
    ended = next(index for index, answer in enumerate(answers) if answer.utterance)
    return (ended + 1) * BLOCK_S - speech_s


@pytest.mark.parametrize(
    ("text", "pause"), [("What time is it?", WAITS_S[0]), ("What is the capital of", WAITS_S[-1])]
)
async def test_the_pause_that_ends_a_turn_depends_on_what_was_said(text, pause, monkeypatch):
    monkeypatch.setattr(turn_judge, "load_melody", lambda: None)  # of tones it knows nothing
    ear = Ear(text)
    answers = await feed(ingest_of(ear), np.concatenate([tone(1.5), silence(2.0)]))
    assert pause - FRAME_S <= pause_before_the_end(answers, 1.5) <= pause + 3 * BLOCK_S
    assert any(answer.talking and answer.text == text for answer in answers)
    assert any(answer.pauses for answer in answers)


async def test_what_was_understood_in_the_pause_is_not_listened_to_again():
    ear = Ear("What time is it?")
    ingest = ingest_of(ear)
    answers = await feed(ingest, np.concatenate([tone(1.5), silence(2.0)]))
    (key,) = [answer.utterance for answer in answers if answer.utterance]
    said = await ingest.said(key)
    assert said.speech.transcript.text == ear.text and ear.whole == 0
    assert 1 <= ear.glimpses <= 6


async def test_a_monologue_is_heard_once_it_is_over():
    ear = Ear("And so on.")
    ingest = ingest_of(ear)
    answers = await feed(ingest, np.concatenate([tone(19.0), silence(1.5)]))
    (key,) = [answer.utterance for answer in answers if answer.utterance]
    assert len((await ingest.said(key)).pcm) > 19.0 * RATE_HZ
    assert ear.whole == 1 and ear.glimpses <= MOST_S / LOOK_S + 1


async def test_a_cough_and_a_murmur_are_no_question_and_interrupt_nothing():
    for text in ("", "Mm-hmm."):
        wave = np.concatenate([silence(0.5), tone(0.6), silence(2.0)])
        answers = await feed(ingest_of(Ear(text)), wave, answering=True)
        assert any(answer.talking for answer in answers)
        assert not any(answer.talking and answer.sure for answer in answers)
        assert not any(answer.utterance for answer in answers)


async def test_the_answers_own_words_interrupt_nothing():
    ear = Ear("So please wait for me.")
    wave = np.concatenate([silence(0.5), tone(1.5), silence(2.0)])
    answers = await feed(ingest_of(ear), wave, answering=True, saying="at noon, so please wait for")
    assert any(answer.talking and answer.text == ear.text for answer in answers)
    assert not any(answer.utterance or (answer.talking and answer.sure) for answer in answers)
    answers = await feed(ingest_of(ear), wave, answering=True, saying="It is noon.")
    assert any(answer.talking and answer.sure for answer in answers)
    assert sum(bool(answer.utterance) for answer in answers) == 1


@pytest.mark.parametrize(("by_words", "count"), [(False, 1), (True, 0)])
async def test_what_the_recogniser_cannot_make_out_is_for_the_checkpoint_to_hear(by_words, count):
    ingest = ingest_of(Foreign("Ah, ah, ah."), by_words=by_words)
    answers = await feed(ingest, np.concatenate([tone(1.5), silence(2.0)]))
    assert sum(bool(answer.utterance) for answer in answers) == count


async def test_a_word_interrupts_as_soon_as_it_is_understood():
    wave = np.concatenate([silence(0.5), tone(1.5)])
    answers = await feed(ingest_of(Ear("Stop it.")), wave, answering=True)
    sure = next(index for index, a in enumerate(answers) if a.talking and a.sure)
    assert sure * BLOCK_S - 0.5 < 0.6
