"""What visitors say: turned into codes, words and voices, beside everything else and without the
silence around it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import AudioEmptyError, UnknownVoiceError
from moss_engine.api.events import Finished
from moss_engine.audio.turn_taking import FRAME_SAMPLES
from moss_engine.audio.voice_activity import AFTER_S, BEFORE_S, spoken_part
from moss_engine.build import find_detector
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.load import load_recogniser
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.service.recordings import SpeechEncoder, Transcriber
from tests.audio.test_turn_taking import SAMPLE
from tests.fakes import FakeCodec
from tests.service.service_support import PATIENCE_S, ask, rest, served
from tests.ui.test_audio_in import Loud


class Listener:
    """Hears what it was given."""

    name, language = "Listener", "English"

    def __init__(self, heard: Heard):
        self.heard = heard

    def transcribe(self, wave: np.ndarray, between: object = None) -> Heard:
        return self.heard

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("heard", "sentence"),
    [
        (Heard(""), r"Listener heard no words; speak a sentence in English\."),
        (Heard("Gluten, Morgan.", False), r"it understands English only; say it in English"),
    ],
)
async def test_no_words_and_another_language_are_a_sentence(heard, sentence):
    with (
        closing(Transcriber(RecogniserWorker(Listener(heard)))) as transcriber,
        pytest.raises(AudioEmptyError, match=sentence),
    ):
        await transcriber.transcribe(silence(1.0), RATE_HZ)


FRAME_S = FRAME_SAMPLES / RATE_HZ


def tone(seconds: float) -> np.ndarray:
    return 0.5 * np.sin(np.arange(round(seconds * RATE_HZ))).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def test_what_lies_around_the_words_is_cut_but_for_a_margin():
    wave = np.concatenate([silence(1.0), tone(1.0), silence(0.5), tone(1.0), silence(2.0)])
    kept = len(wave[spoken_part(Loud(), wave)]) / RATE_HZ
    assert kept == pytest.approx(BEFORE_S + 2.5 + AFTER_S, abs=2 * FRAME_S)


@pytest.mark.parametrize("wave", [silence(1.0), silence(0.0), tone(0.01), tone(2.0)])
def test_where_there_is_nothing_to_cut_it_stays(wave):
    assert np.array_equal(wave[spoken_part(Loud(), wave)], wave)


async def test_a_recording_is_heard_without_its_silence_and_keeps_its_length():
    class Long(Listener):
        def transcribe(self, wave: np.ndarray, between: object = None) -> Heard:
            return Heard(f"{len(wave) / RATE_HZ:.1f}")

    with closing(Transcriber(RecogniserWorker(Long(Heard(""))), Loud())) as transcriber:
        found = await transcriber.transcribe(np.concatenate([tone(1.0), silence(2.0)]), RATE_HZ)
    assert float(found.text) < 1.4 and found.seconds == 3.0


@pytest.mark.speech
async def test_silence_and_quiet_noise_behind_a_sentence_add_no_words():
    pytest.importorskip("moonshine_voice")
    pytest.importorskip("silero_vad")
    wave, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    recogniser, _ = load_recogniser("moonshine")
    rng = np.random.default_rng(1)
    with closing(Transcriber(RecogniserWorker(recogniser), find_detector())) as transcriber:
        alone = await transcriber.transcribe(wave, rate_hz)
        for noise in (0.0, 0.002):
            tail = rng.normal(0.0, noise, 2 * rate_hz)
            found = await transcriber.transcribe(np.concatenate([wave, tail]).astype("f4"), rate_hz)
            assert found.text == alone.text


def test_a_recording_whose_visitor_left_is_dropped_at_once():
    """A small file holds a long silence, and whoever sent it may hang up and send another one."""
    begun, may = threading.Event(), threading.Event()

    def encode(wave: np.ndarray, rate_hz: int) -> list[int]:
        begun.set()
        assert may.wait(PATIENCE_S)
        return [len(wave)]

    with closing(SpeechEncoder(encode, on_fault=lambda: None)) as encoder:
        first = encoder.submit(np.zeros(1, np.float32), 24_000)
        assert begun.wait(PATIENCE_S)
        wave = np.zeros(9, np.float32)
        held = weakref.ref(wave)
        second, third = encoder.submit(wave, 24_000), encoder.submit(np.zeros(3, np.float32), 1)
        del wave
        assert second.cancel() and held() is None and encoder.num_pending == 2
        may.set()
        assert (first.result(PATIENCE_S), third.result(PATIENCE_S)) == ((1,), (3,))
    assert encoder.num_pending == 0


class SlowCloner(FakeCodec):
    """Makes no voice before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def add(self, name: str, *_: object) -> None:
        assert self.may.wait(PATIENCE_S)
        super().add(name)


async def test_a_request_does_not_wait_for_the_voices_of_others_and_no_refusal_names_them():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1, "asyncio"))  # on a small machine they are few
    codec, wave = SlowCloner(), np.ones(9, np.float32)
    with served(codec=codec, cloner=codec) as service:
        adding = [
            asyncio.ensure_future(service.add_voice(session_id, wave, 24_000, (1,)))
            for session_id in "ab"
        ]
        await asyncio.sleep(0)
        reply = await asyncio.wait_for(service.submit(ask()), PATIENCE_S / 2)
        assert isinstance((await rest(reply))[-1], Finished)
        assert not any(task.done() for task in adding)
        codec.may.set()
        made = [voice.name for voice in await asyncio.gather(*adding)]
        assert codec.voices == ("plain", *made)
        assert (await service.submit(replace(ask(), voice=made[0]))).request_id
        with pytest.raises(UnknownVoiceError) as told:
            await service.submit(replace(ask(), voice="nobody"))
        assert "plain" in str(told.value) and not any(name in str(told.value) for name in made)
        await service.remove_voice("a")
        assert codec.voices == ("plain", made[1])
