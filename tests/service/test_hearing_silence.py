"""The silence around a recording's words is not listened to: recognisers hear words in it."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from moss_engine.audio.turn_taking import FRAME_SAMPLES
from moss_engine.audio.voice_activity import AFTER_S, BEFORE_S, spoken_part
from moss_engine.build import find_detector
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.load import load_recogniser
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.service.recordings import Hearing
from tests.audio.test_turn_taking import SAMPLE
from tests.service.test_hearing import Listener
from tests.ui.test_page_ingest import Loud

FRAME_S = FRAME_SAMPLES / RATE_HZ


def tone(seconds: float) -> np.ndarray:
    return 0.5 * np.sin(np.arange(round(seconds * RATE_HZ))).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def test_what_lies_around_the_words_is_cut_but_for_a_margin():
    wave = np.concatenate([silence(1.0), tone(1.0), silence(0.5), tone(1.0), silence(2.0)])
    kept = len(spoken_part(Loud(), wave)) / RATE_HZ
    assert kept == pytest.approx(BEFORE_S + 2.5 + AFTER_S, abs=2 * FRAME_S)


@pytest.mark.parametrize("wave", [silence(1.0), silence(0.0), tone(0.01), tone(2.0)])
def test_where_there_is_nothing_to_cut_it_stays(wave):
    assert np.array_equal(spoken_part(Loud(), wave), wave)


async def test_a_recording_is_heard_without_its_silence_and_keeps_its_length():
    class Long(Listener):
        def transcribe(self, wave: np.ndarray) -> Heard:
            return Heard(f"{len(wave) / RATE_HZ:.1f}")

    hearing = Hearing(RecogniserWorker(Long(Heard(""))), Loud())
    try:
        found = await hearing.transcribe(np.concatenate([tone(1.0), silence(2.0)]), RATE_HZ)
    finally:
        hearing.close()
    assert float(found.text) < 1.4 and found.seconds == 3.0


@pytest.fixture(scope="module")
def said() -> list[np.ndarray]:
    """Two sentences of the built-in voice, together and one by one."""
    wave, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    at_rate = np.interp(np.arange(0, len(wave), rate_hz / RATE_HZ), np.arange(len(wave)), wave)
    return [at_rate.astype(np.float32)]


@pytest.mark.speech
@pytest.mark.parametrize("noise", [0.0, 0.0005, 0.002])
@pytest.mark.parametrize("seconds", [1.0, 2.0])
async def test_silence_and_quiet_noise_behind_a_sentence_add_no_words(said, seconds, noise):
    pytest.importorskip("moonshine_voice")
    pytest.importorskip("silero_vad")
    recogniser, _ = load_recogniser("moonshine")
    hearing = Hearing(RecogniserWorker(recogniser), find_detector())
    rng = np.random.default_rng(1)
    try:
        for wave in said:
            alone = await hearing.transcribe(wave, RATE_HZ)
            tail = rng.normal(0.0, noise, round(seconds * RATE_HZ))
            found = await hearing.transcribe(np.concatenate([wave, tail]).astype("f4"), RATE_HZ)
            assert found.text == alone.text
    finally:
        hearing.close()
