"""Moonshine: what it hears of a voice, and the sentence where it is missing."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.load import load_recogniser
from moss_engine.recogniser.moonshine import MOST_S, Moonshine
from tests.audio.test_turn_taking import SAMPLE


@pytest.fixture(scope="module")
def recogniser():
    pytest.importorskip("moonshine_voice")
    found, why_not = load_recogniser("auto")
    assert found is not None and why_not is None
    yield found
    found.close()


@pytest.fixture(scope="module")
def said() -> np.ndarray:
    """float32 [n] at RATE_HZ: a sentence."""
    wave, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    at_rate = np.interp(np.arange(0, len(wave), rate_hz / RATE_HZ), np.arange(len(wave)), wave)
    return at_rate.astype(np.float32)


def test_a_sentence_is_heard_word_for_word(recogniser, said):
    heard = recogniser.transcribe(said)
    assert heard.text.lower().startswith("good morning") and "sun is finally out" in heard.text
    assert heard.sure


def test_every_word_has_its_time(recogniser, said):
    silence = np.zeros(RATE_HZ, np.float32)
    passed: list[None] = []
    heard = recogniser.transcribe(
        np.concatenate([silence, said, silence, said]), lambda: passed.append(None)
    )
    words = heard.words
    assert [word.text for word in words] == heard.text.split() and len(passed) == len(words)
    assert all(word.start_s <= word.end_s for word in words)
    assert all(a.end_s <= b.start_s for a, b in pairwise(words))
    assert heard.text == recogniser.transcribe(np.concatenate([silence, said, silence, said])).text
    first, second = (w for w in words if w.text.lower().startswith("morning"))
    assert 1.0 < first.start_s < 2.0
    gap_s = 1.0 + len(said) / RATE_HZ
    assert abs(second.start_s - first.start_s - gap_s) < 0.1


class Decoder:
    """Says "la" until the end of the recording; `margin` is how far it stands out."""

    def __init__(self, margin: float):
        self.margin = margin

    def get_inputs(self) -> list:
        return []

    def get_outputs(self) -> list:
        return [SimpleNamespace(name="logits")]

    def run(self, _names, _given) -> list[np.ndarray]:
        return [np.array([[[0.0, 0.0, 0.0, self.margin]]])]


@pytest.mark.parametrize(("margin", "sure"), [(5.0, True), (0.5, False)])
def test_what_is_hardly_likelier_than_anything_else_is_doubted(margin, sure):
    encoder = SimpleNamespace(run=lambda _names, _given: [np.zeros((1, 4, 2), np.float32)])
    listener = Moonshine(encoder, Decoder(margin), [b"", b"", b"", b"la"])
    heard = listener.transcribe(np.ones(RATE_HZ, np.float32))
    assert heard.text.startswith("lala") and heard.sure is sure


class Polite(Decoder):
    """Hears "Bye.", and thanks where the recording ends too soon behind it."""

    def run(self, _names, given) -> list[np.ndarray]:
        self.place = self.place + 1 if given["use_cache_branch"][0] else 0
        num_samples = given["encoder_attention_mask"].shape[1]
        said = (3, 2) if num_samples > 2 * RATE_HZ else (3, 4, 2)
        return [np.eye(5)[[[said[self.place]]]]]


def test_thanks_that_nobody_said_are_not_heard():
    encoder = SimpleNamespace(run=lambda *_: [None])
    recogniser = Moonshine(encoder, Polite(1.0), [b"", b"", b"", b"Bye.", b" Thank you."])
    assert recogniser.transcribe(np.ones(RATE_HZ)).text == "Bye."


def test_a_monologue_is_heard_in_parts(recogniser, said):
    pause = np.zeros(RATE_HZ // 2, np.float32)
    times = 1 + round(2 * MOST_S * RATE_HZ / len(said))
    heard = recogniser.transcribe(np.concatenate([said, pause] * times))
    assert heard.text.lower().count("good morning") == times and heard.sure


def test_silence_holds_no_words(recogniser):
    assert recogniser.transcribe(np.zeros(RATE_HZ, np.float32)) == Heard("")


def test_where_it_is_not_installed_the_command_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found, why_not = load_recogniser("auto")
    assert (
        found is None and why_not is not None and "pip install moonshine-voice==0.0.65" in why_not
    )
    with pytest.raises(MissingPackageError, match=r"pip install moonshine-voice"):
        load_recogniser("moonshine")


def test_none_listens_and_an_unknown_one_is_refused():
    found, why_not = load_recogniser("none")
    assert found is None and why_not is not None and "--recogniser" in why_not
    with pytest.raises(ConfigError, match="auto, none, moonshine"):
        load_recogniser("whisper")
