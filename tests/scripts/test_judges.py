"""The judges of speech: words, and sound; and what the built-in voice sounds like to them."""

from __future__ import annotations

import numpy as np
import pytest

from moss_engine import open_service
from scripts.judges.sound import RATE_HZ, SoundJudges, prepared
from scripts.judges.words import count_errors
from scripts.sentences import EVERYDAY, HARVARD

SENTENCES = (*HARVARD[:2], *EVERYDAY[:2])
MIN_MEAN, MIN_WORST, MIN_DNSMOS = 4.1, 3.5, 2.9


@pytest.fixture(scope="module")
def judges() -> SoundJudges:
    return SoundJudges()


@pytest.fixture(scope="module")
def replies() -> list[np.ndarray]:
    with open_service() as service:
        return [service.say(text, seed=1).samples for text in SENTENCES]


@pytest.mark.speech
def test_the_built_in_voice_sounds_good(judges, replies):
    figures = judges.figures("replies", replies, 24_000)
    assert figures["distillmos_replies"] >= MIN_MEAN, figures
    assert figures["distillmos_replies_worst"] >= MIN_WORST, figures
    assert figures["dnsmos_replies"] >= MIN_DNSMOS, figures


@pytest.mark.speech
def test_the_judges_hear_noise(judges, replies):
    noise = 0.02 * np.random.default_rng(0).normal(size=len(replies[0])).astype(np.float32)
    spoiled = replies[0] + noise
    assert judges.distillmos(spoiled, 24_000) < judges.distillmos(replies[0], 24_000) - 0.5
    assert judges.dnsmos(spoiled, 24_000) < judges.dnsmos(replies[0], 24_000) - 0.2


def test_silence_around_and_level_do_not_matter():
    wave = np.sin(np.arange(24_000) * 0.05).astype(np.float32) * 0.3
    padded = np.pad(0.1 * wave, 12_000)
    alone, found = prepared(wave, 24_000), prepared(padded, 24_000)
    assert abs(len(found) - len(alone)) <= 0.16 * RATE_HZ
    assert np.sqrt(np.mean(alone**2)) == pytest.approx(10 ** (-24 / 20), rel=1e-3)
    with pytest.raises(AssertionError, match="silence"):
        prepared(np.zeros(100, np.float32), 24_000)


def test_words_are_compared_as_they_are_spoken():
    assert count_errors("Twenty-one men, didn't go!", "21 men didn't go") == (0, 5)
    assert count_errors("a b c d", "a x c") == (2, 4)
    assert count_errors("a b c", "a x c d") == (2, 3)
