"""Moonshine: what it hears of a voice, and the sentence where it is missing."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.recogniser.base import RATE_HZ
from moss_engine.recogniser.load import load_recogniser
from tests.audio.test_turn_taking import SAMPLE


@pytest.fixture(scope="module")
def recogniser():
    pytest.importorskip("moonshine_voice")
    found, why_not = load_recogniser("auto")
    assert found is not None and why_not is None
    yield found
    found.close()


def test_a_sentence_is_heard_word_for_word(recogniser):
    wave, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    at_rate = np.interp(np.arange(0, len(wave), rate_hz / RATE_HZ), np.arange(len(wave)), wave)
    heard = recogniser.transcribe(at_rate.astype(np.float32))
    assert heard.lower().startswith("good morning") and "sun is finally out" in heard


def test_silence_holds_no_words(recogniser):
    assert recogniser.transcribe(np.zeros(RATE_HZ, np.float32)) == ""


def test_where_it_is_not_installed_the_command_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found, why_not = load_recogniser("auto")
    assert found is None and why_not is not None and "requirements-talk.txt" in why_not
    with pytest.raises(MissingPackageError, match=r"requirements-talk\.txt"):
        load_recogniser("moonshine")


def test_none_listens_and_an_unknown_one_is_refused():
    found, why_not = load_recogniser("none")
    assert found is None and why_not is not None and "--recogniser" in why_not
    with pytest.raises(ConfigError, match="auto, none, moonshine"):
        load_recogniser("whisper")
