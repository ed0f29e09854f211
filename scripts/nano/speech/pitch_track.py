"""F0 of a recording: normalised autocorrelation, and the smoothest path through each frame's best
lags."""

from __future__ import annotations

import numpy as np

MIN_HZ, MAX_HZ = 55.0, 420.0
CANDIDATES = 5
LAG_COST, JUMP_COST, TURN_COST, UNVOICED_COST = 0.03, 0.5, 0.25, 0.55
"""Costs of a path: of an octave's longer lag, of an octave's jump, of a change of voicing, and of
an unvoiced frame (a voiced one costs 1 - correlation)."""
SILENCE_DB = -45.0


def track_f0(wave: np.ndarray, sample_rate_hz: int, hop: int) -> np.ndarray:
    """float32 [frames] in Hz, 0 where unvoiced; frame k is that of sample (k + 1/2) * hop, for
    len(wave) // hop frames."""
    longest, shortest = int(sample_rate_hz / MIN_HZ), int(sample_rate_hz / MAX_HZ)
    correlation, loud = _correlations(np.asarray(wave, np.float64), hop, longest)
    lags, scores = _best_lags(correlation, shortest)
    octaves = np.log2(lags)
    cost = 1 - scores + LAG_COST * (octaves - np.log2(shortest))
    cost[~loud] += 1.0
    cost = np.concatenate([cost, np.full((len(cost), 1), UNVOICED_COST)], axis=1)
    chosen = _cheapest_path(cost, octaves)
    f0 = np.zeros(len(cost), np.float32)
    voiced = chosen < CANDIDATES
    f0[voiced] = sample_rate_hz / lags[voiced, chosen[voiced]]
    return f0


def _correlations(wave: np.ndarray, hop: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Normalised correlation of each frame with itself [frames, longest + 2], and which frames are
    not silent."""
    frames, window = len(wave) // hop, 2 * longest
    half = (window + longest) // 2
    padded = np.pad(wave, (half, half + window))
    starts = np.arange(frames) * hop + hop // 2
    segments = padded[starts[:, None] + np.arange(window + longest + 2)]
    size = 1 << int(np.ceil(np.log2(2 * window + longest)))
    first = np.fft.rfft(segments[:, :window], size)
    product = np.fft.irfft(np.conj(first) * np.fft.rfft(segments, size), size)[:, : longest + 2]
    power = np.cumsum(np.pad(segments**2, ((0, 0), (1, 0))), axis=1)
    energy = power[:, window : window + longest + 2] - power[:, : longest + 2]
    level = energy[:, 0] / window
    loud = level > 10 ** (SILENCE_DB / 10) * max(level.max(initial=0.0), 1e-9)
    return product / np.sqrt(energy * energy[:, :1] + 1e-9), loud


def _best_lags(correlation: np.ndarray, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Each frame's highest peaks, refined by a parabola: lags and scores [frames, CANDIDATES]"""
    inner, before, after = (
        correlation[:, shortest:-1],
        correlation[:, shortest - 1 : -2],
        correlation[:, shortest + 1 :],
    )
    peaks = np.where((inner >= before) & (inner > after), inner, -1.0)
    best = np.argsort(-peaks, axis=1)[:, :CANDIDATES]
    rows = np.arange(len(peaks))[:, None]
    left, middle, right = before[rows, best], inner[rows, best], after[rows, best]
    bend = np.minimum(left - 2 * middle + right, -1e-9)
    shift = np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return best + shortest + shift, peaks[rows, best]


def _cheapest_path(cost: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    """Index of each frame's choice, the last column being "unvoiced" """
    total, came_from = cost[0], np.zeros(cost.shape, np.int64)
    for k in range(1, len(cost)):
        step = np.full((CANDIDATES + 1, CANDIDATES + 1), TURN_COST)
        step[:-1, :-1] = JUMP_COST * np.abs(octaves[k - 1][:, None] - octaves[k][None])
        step[-1, -1] = 0.0
        ways = total[:, None] + step
        came_from[k] = ways.argmin(0)
        total = ways.min(0) + cost[k]
    chosen = np.zeros(len(cost), np.int64)
    chosen[-1] = total.argmin()
    for k in range(len(cost) - 1, 0, -1):
        chosen[k - 1] = came_from[k][chosen[k]]
    return chosen
