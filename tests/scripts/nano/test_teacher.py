"""The teacher's speech: word times, the second voice, rates, codes of words."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scripts.nano.codes import code_starts
from scripts.nano.prompts import draw_speed, draw_takes
from scripts.nano.speech.second_voice import FRAME_SAMPLES, TRACT, convert, lower_hz, teacher_speed
from scripts.nano.speech.teacher_voice import code_labels, join_words, spelled_a
from scripts.nano.speech.voices import MAX_RATE, MIN_RATE, RATE_TOKENS, RATES, rate_token

KNOWN = frozenset("abcdefgh ,.!")


def test_words_begin_at_their_first_sound():
    spoken = join_words(
        [("ab", True), (",", False), ("cd", False), ("!", True), ("e f", False), (".", False)],
        KNOWN,
    )
    assert spoken.phonemes == "ab ,cd! e f."
    assert [spoken.phonemes[begin] for begin in spoken.word_begins] == ["a", "c", "e"]


def test_a_large_a_within_a_sentence_is_the_letter_and_at_its_start_the_article():
    assert spelled_a(["A", "man", "came", "at", "ten", "A", "M"]) == [5]
    assert spelled_a(["the", "N", "A", "S", "A", "team"]) == [2, 4]
    assert spelled_a(["Am", "I", "in", "plan", "A", "or", "B"]) == [4]
    assert spelled_a(["A", ",", "B", ",", "and", "C", "."]) == [0]
    assert spelled_a(["She", "said", ":", "A", "fool", "said", "so", "."]) == []


def test_every_code_has_the_phoneme_of_its_middle_and_a_mark_of_stress_that_of_its_vowel():
    ids = np.array([0, 60, 156, 70, 16, 80, 0])
    labels = code_labels(ids, "tˈɑ d", np.array([2, 2, 1, 3, 2, 4, 2]), 0.025, num_codes=9)
    assert labels.tolist() == [0, 60, 70, 70, 0, 0, 80, 80, 0]


def test_first_word_keeps_its_onset_and_starts_never_fall():
    starts = code_starts((0.31, 0.42, 0.41, 9.0), num_codes=20)
    assert starts.dtype == np.uint16
    assert starts.tolist() == [0, 11, 11, 19]


def tone(f0_hz: float, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten harmonics and their F0 a frame."""
    time_s = np.arange(frames * FRAME_SAMPLES) / 24_000
    wave = sum(np.cos(2 * np.pi * f0_hz * h * time_s) for h in range(1, 11)) / 20
    return wave, np.full(frames, f0_hz)


def strongest_hz(wave: np.ndarray) -> float:
    """The period with the highest autocorrelation between 60 and 300 Hz, in Hz."""
    part = wave[4000:12_000]
    spectrum = np.abs(np.fft.rfft(part, 2 * len(part))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(part)]
    lags = np.arange(80, 400)
    return 24_000 / lags[correlation[lags].argmax()]


def test_the_second_voice_is_lower_and_as_long_as_asked_for():
    wave, f0 = tone(200.0, 80)
    converted = convert(wave[None], f0)
    assert len(converted.waves[0]) == pytest.approx(len(wave) / TRACT, rel=0.01)
    assert strongest_hz(converted.waves[0]) == pytest.approx(float(lower_hz(f0)[0]), rel=0.03)
    assert converted.f0_hz[20:-20] == pytest.approx(lower_hz(f0)[0], rel=1e-6)
    assert teacher_speed(1.0) > 1.0


def test_a_speed_has_the_token_of_the_nearest_rate():
    assert [rate_token(rate) for rate in RATES] == list(RATE_TOKENS)
    assert rate_token(1.03) == "<rate:1.00>" and rate_token(1.05) == "<rate:1.08>"
    assert rate_token(0.1) == RATE_TOKENS[0] and rate_token(9.0) == RATE_TOKENS[-1]
    rng = random.Random(0)
    speeds = [draw_speed(rng) for _ in range(2000)]
    assert MIN_RATE - 0.001 <= min(speeds) < 0.7 and 1.5 < max(speeds) <= MAX_RATE + 0.001
    assert {voice for _ in range(20) for voice, _ in draw_takes(rng)} == {"ada", "ben"}


def test_the_second_voice_knows_where_its_pulses_are():
    wave, f0 = tone(200.0, 80)
    converted = convert(np.stack([wave, np.zeros_like(wave)]), f0)
    (voiced, rest), inside = converted.waves, slice(5000, 20_000)
    loudest = 5000 + np.flatnonzero(voiced[inside] > 0.9 * voiced[inside].max())
    turns = (converted.phase[loudest] + 0.5) % 1 - 0.5
    assert len(loudest) > 60 and np.abs(turns).max() < 0.03 and not rest.any()
