"""How a voice's pitch ends."""

from __future__ import annotations

import numpy as np
import pytest

from moss_engine.audio.pitch import MOST, ending, semitones
from moss_engine.audio.turn_taking import RATE_HZ


def voice(*parts: tuple[float, float]) -> np.ndarray:
    """int16 [n]: so many seconds at so many Hz, with the overtones of a voice."""
    hertz = np.concatenate([np.full(round(seconds * RATE_HZ), pitch) for seconds, pitch in parts])
    turns = 2 * np.pi * np.cumsum(hertz) / RATE_HZ
    return np.rint(3000 * sum(np.sin(k * turns) / k for k in range(1, 8))).astype(np.int16)


@pytest.mark.parametrize("hertz", [90.0, 210.0])
def test_pitch_is_that_of_the_voice_in_noise_too(hertz):
    noise = np.random.default_rng(0).normal(0.0, 300.0, RATE_HZ)
    found = semitones((voice((1.0, hertz)) + noise).astype(np.int16))
    assert len(found) > 80 and np.abs(found - 12 * np.log2(hertz)).max() < 0.5


def test_a_stress_on_the_last_syllable_and_a_fall_on_it_are_told_apart():
    high = ending(voice((1.0, 100.0), (0.3, 150.0)))
    fall = ending(voice((1.0, 100.0), (0.25, 150.0), (0.08, 80.0)))
    low = ending(voice((1.0, 100.0), (0.3, 80.0)))
    assert high[0] == pytest.approx(7.0, abs=0.3) and high[1] == pytest.approx(7.0, abs=0.3)
    assert fall[1] < -3.0 < fall[0] and low[0] < -3.0


def test_silence_behind_changes_nothing_and_without_a_voice_nothing_is_known():
    spoken = voice((1.0, 100.0), (0.3, 150.0))
    silent = np.zeros(RATE_HZ // 5, np.int16)
    assert ending(np.concatenate([spoken, silent])) == pytest.approx(ending(spoken), abs=0.2)
    for nothing in (silent, silent[:10], silent[:0]):
        assert ending(nothing) == (0.0, 0.0, 0.0)
    assert max(map(abs, ending(voice((1.0, 100.0), (0.3, 350.0)))[:2])) <= MOST
    assert ending(spoken).voiced_s == pytest.approx(1.3, abs=0.1)
