"""How a voice's pitch ends: whether its last syllables are stressed, and whether it falls on them.

Sentences end in words that carry stress; who hesitates does so behind words that carry none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moss_engine.audio.turn_taking import RATE_HZ

STEP, WINDOW, FFT = RATE_HZ // 100, RATE_HZ // 25, 1024
LOWEST_HZ, HIGHEST_HZ = 60, 400
VOICED = 0.45
"""A window is voiced where so much of its power repeats one period later."""
AUDIBLE = 1e-4
"""Least power of a voiced window, as a share of the loudest one's."""
LAST, END = 20, 8
"""Voiced steps of 10 ms that are taken for the last syllables, and for their end."""
FEWEST = 8
MOST = 8.0
"""Semitones; anything beyond is an octave error."""

_HANN = np.hanning(WINDOW).astype(np.float32)


def semitones(pcm: np.ndarray) -> np.ndarray:
    """int16 [n] at RATE_HZ -> pitch in semitones above 1 Hz, float64 [voiced steps]."""
    if len(pcm) < WINDOW:
        return np.zeros(0)
    wave = pcm.astype(np.float32) / 32768.0
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::STEP]
    windows = (windows - windows.mean(axis=1, keepdims=True)) * _HANN
    again = np.fft.irfft(np.abs(np.fft.rfft(windows, FFT)) ** 2)[:, : RATE_HZ // LOWEST_HZ]
    shortest = RATE_HZ // HIGHEST_HZ
    periods = shortest + again[:, shortest:].argmax(axis=1)
    power, repeated = again[:, 0], again[np.arange(len(again)), periods]
    voiced = (power > AUDIBLE * power.max()) & (repeated > VOICED * power)
    return 12 * np.log2(RATE_HZ / periods[voiced])


class Ending(NamedTuple):
    """How far above its usual pitch a voice was in its last syllables and at their end, in
    semitones; 0 where there is too little voice to know. `voiced_s`: how long there was voice."""

    last: float
    end: float
    voiced_s: float


def ending(pcm: np.ndarray) -> Ending:
    """int16 [n] at RATE_HZ."""
    found = semitones(pcm)
    voiced_s = len(found) * STEP / RATE_HZ
    if len(found) < FEWEST:
        return Ending(0.0, 0.0, voiced_s)
    above = [np.median(found[-num:]) - np.median(found) for num in (LAST, END)]
    last, end = np.clip(above, -MOST, MOST)
    return Ending(float(last), float(end), voiced_s)
