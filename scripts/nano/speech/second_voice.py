"""A second voice, made of the teacher's: deeper, and of a longer vocal tract.

The teacher's pitch pulses are known, so its sound is cut into grains of two periods around them,
and the grains are laid out again at the periods of the lower voice (PSOLA). The teacher speaks
faster than asked for by 1 / TRACT, and the result is slowed down by resampling, which lowers the
formants by TRACT and leaves the duration as asked for. Everything is linear in the sound: parts of
it that are converted alone add up to the whole converted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import resample_poly

from scripts.nano.speech.shards import SAMPLE_RATE_HZ

FRAME_SAMPLES = 300
"""Samples for each value of the teacher's F0, which comes at 80 Hz."""
VOICED_HZ = 40.0
TRACT_PERCENT = 84
TRACT = TRACT_PERCENT / 100
PITCH = 0.61
RANGE = 0.9
"""How much of the first voice's melody, in octaves, the second one's spans."""
CENTRE_HZ = 200.0
GAIN = 1.2
"""Makes it as loud as the first voice."""
HASTE = 1.06
"""Makes up for the teacher rounding durations up when it speaks fast."""
MIN_PULSES = 4


@dataclass(frozen=True)
class Converted:
    """waves: float32 [parts, samples]; f0_hz: float32 [frames], 0 where unvoiced;
    phase: [samples], in periods, whole at every pulse."""

    waves: np.ndarray
    f0_hz: np.ndarray
    phase: np.ndarray


def teacher_speed(speed: float) -> float:
    """The speed to ask of the teacher so that the second voice speaks at `speed`."""
    return speed * HASTE / TRACT


def lower_hz(f0_hz: np.ndarray) -> np.ndarray:
    """F0 of the first voice -> F0 of the second."""
    return PITCH * CENTRE_HZ * (np.maximum(f0_hz, VOICED_HZ) / CENTRE_HZ) ** RANGE


def f0_of_samples(f0_hz: np.ndarray) -> np.ndarray:
    """[frames] -> [frames * FRAME_SAMPLES], linear between the middles of frames, as the teacher's
    pulses have it."""
    at = (np.arange(len(f0_hz) * FRAME_SAMPLES) + 0.5) / FRAME_SAMPLES - 0.5
    return np.interp(at, np.arange(len(f0_hz)), f0_hz.astype(np.float64))


def phase_of(f0_hz: np.ndarray) -> np.ndarray:
    """F0 [frames] -> periods up to and with each sample [frames * FRAME_SAMPLES], as the teacher
    counts them."""
    return np.cumsum(np.maximum(f0_of_samples(f0_hz), VOICED_HZ)) / SAMPLE_RATE_HZ


def convert(waves: np.ndarray, f0_hz: np.ndarray) -> Converted:
    """Parts of the teacher's sound [parts, samples] and its F0 [frames] -> the same in the second
    voice."""
    length = waves.shape[1]
    assert length == len(f0_hz) * FRAME_SAMPLES
    f0, cycles = f0_of_samples(f0_hz), phase_of(f0_hz)
    voiced = f0 > VOICED_HZ
    starts = np.flatnonzero(np.floor(cycles[1:]) > np.floor(cycles[:-1])) + 1
    late = cycles % 1 * SAMPLE_RATE_HZ / np.maximum(f0, VOICED_HZ)
    target = lower_hz(f0) / TRACT
    sung, kept = np.zeros_like(waves, dtype=np.float64), np.ones(length)
    new_f0, pulses = np.zeros(length), []
    for begin, end in _runs(voiced):
        marks = starts[(starts >= begin) & (starts < end)]
        if len(marks) < MIN_PULSES:
            continue
        periods = np.append(np.diff(marks), marks[-1] - marks[-2])
        _make_room(kept, marks, periods)
        new_f0[marks[0] : marks[-1]] = target[marks[0] : marks[-1]]
        at = float(marks[0])
        while at <= marks[-1] + 1:
            nearest = int(np.abs(marks - at).argmin())
            place = round(at)
            gain = np.sqrt(f0[min(place, length - 1)] / target[min(place, length - 1)])
            _add_grain(sung, waves, int(marks[nearest]), place, int(periods[nearest]), gain)
            pulses.append(place - late[marks[nearest]])
            at += SAMPLE_RATE_HZ / target[min(place, length - 1)]
    both = GAIN * (sung + waves * kept)
    slowed = resample_poly(both, 100, TRACT_PERCENT, axis=1).astype(np.float32)
    middles = np.arange(FRAME_SAMPLES // 2, slowed.shape[1], FRAME_SAMPLES)
    source = np.minimum((middles * TRACT).astype(np.int64), length - 1)
    at = np.asarray(pulses or [0.0]) / TRACT
    phase = np.interp(np.arange(slowed.shape[1]), at, np.arange(len(at)))
    return Converted(slowed, (new_f0[source] * TRACT).astype(np.float32), phase)


def _runs(mask: np.ndarray) -> np.ndarray:
    """[n] bool -> [runs, 2] begin and end of every run of True"""
    edges = np.diff(mask.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges).reshape(-1, 2)


def _make_room(kept: np.ndarray, marks: np.ndarray, periods: np.ndarray) -> None:
    """Fade the untouched sound out around a voiced run, over one period on each side."""
    first, last = int(marks[0]), int(marks[-1])
    kept[first:last] = 0
    before, after = kept[max(0, first - periods[0]) : first], kept[last : last + periods[-1]]
    before *= np.cos(np.linspace(0, np.pi / 2, len(before))) ** 2
    after *= np.sin(np.linspace(0, np.pi / 2, len(after))) ** 2


def _add_grain(
    out: np.ndarray, source: np.ndarray, mark: int, place: int, period: int, gain: float
) -> None:
    low = min(period, mark, place)
    high = min(period, source.shape[1] - mark, out.shape[1] - place)
    if low + high <= 0:
        return
    window = 0.5 + 0.5 * np.cos(np.pi * np.arange(-low, high) / period)
    out[:, place - low : place + high] += source[:, mark - low : mark + high] * (window * gain)
