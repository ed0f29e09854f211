"""What a loudspeaker plays, taken out of what a microphone beside it hears.

An adaptive filter in the frequency domain follows the way from loudspeaker to microphone, with the
gain of a Kalman filter (Enzner and Vary, "Frequency-domain adaptive Kalman filter for acoustic echo
control in hands-free telephones", 2006; in partitions: Kuech, Mabande and Enzner, 2014). Whoever
talks meanwhile is noise of its measurement, so that no detector of double talk is needed, and its
own uncertainty says how much of an echo may be left.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
"""Samples at 16 kHz that are filtered at a time."""
REACH_S = 0.45
"""The latest echo that is cancelled, counted from when its sound went to the loudspeaker."""
PARTS = round(REACH_S * 16_000 / BLOCK)

COUPLING = 0.01
"""Expected |response|^2 of each partition before anything was heard."""
KEEPS = 0.9995**2
"""Share of the response that is kept from block to block, as rooms change."""
SMOOTH = 0.8
"""Smoothing of the residual's power, from block to block."""
LEFT = 0.01
"""Share of an echo's power that no linear filter removes."""
WORSE, MOSTLY = 1.5, 0.7
"""The response is wrong where the residual has WORSE times the power that was heard and MOSTLY of
it is thought to be echo."""
WRONG_SMOOTH, WRONG_BINS = 0.9, 9
"""That test is smoothed over past blocks, and over so many neighbouring frequencies."""
NOISE = 4e-6
"""Power over all frequencies that is too low to interrupt an answer."""
SILENT = 1e-4
"""Below this peak nothing is played."""


class EchoCanceller:
    """Cancels the echo in one microphone's sound."""

    def __init__(self) -> None:
        bins = BLOCK + 1
        self._played = np.zeros((PARTS, bins), np.complex64)  # spectra of blocks, newest first
        self._response = np.zeros((PARTS, bins), np.complex64)
        self._doubt = np.full((PARTS, bins), COUPLING, np.float32)  # variance of the response
        self._last = np.zeros(BLOCK, np.float32)
        self._remains = np.full(bins, 1e-3, np.float32)
        self._powers = np.zeros((3, bins), np.float32)  # of cleaned, heard and echo, on average
        self._quiet = PARTS + 2  # blocks since something was played

    @property
    def idle(self) -> bool:
        """Whether the echo of what was played has died away."""
        return self._quiet > PARTS + 1

    def push(self, heard: np.ndarray, played: np.ndarray) -> tuple[np.ndarray, float]:
        """float32 [n] of microphone and loudspeaker, whole blocks, in [-1, 1] -> what others said,
        float32 [n], and the power of the echo that may be left in it, on average."""
        cleaned = np.empty_like(heard)
        left = 0.0
        for start in range(0, len(heard), BLOCK):
            part = slice(start, start + BLOCK)
            cleaned[part], power = self._block(heard[part], played[part])
            left += power
        return cleaned, left * BLOCK / max(1, len(heard))

    def _block(self, heard: np.ndarray, played: np.ndarray) -> tuple[np.ndarray, float]:
        self._quiet = 0 if np.abs(played).max() > SILENT else self._quiet + 1
        if self.idle:
            return heard, 0.0
        spectrum = np.fft.rfft(np.concatenate([self._last, played]))
        self._last = played
        self._played = np.roll(self._played, 1, axis=0)
        self._played[0] = spectrum
        echo = np.fft.irfft((self._played * self._response).sum(axis=0))[BLOCK:]
        cleaned = (heard - echo).astype(np.float32)
        behind = np.zeros((2, BLOCK), np.float32)
        both = np.concatenate([behind, np.stack([cleaned, heard])], axis=1)
        error, with_echo = np.fft.rfft(both)
        self._remains = SMOOTH * self._remains + (1 - SMOOTH) * np.abs(error) ** 2
        self._forget_what_is_wrong(np.stack([error, with_echo, with_echo - error]))
        self._doubt = KEEPS * self._doubt + (1 - KEEPS) * np.abs(self._response) ** 2
        power = np.abs(self._played) ** 2
        unsure = (power * self._doubt).sum(axis=0) / 2
        gain = self._doubt / (unsure + self._remains + 1e-6)
        step = np.fft.irfft(gain * self._played.conj() * error, axis=1)
        step[:, BLOCK:] = 0.0  # a response is no longer than its partition
        self._response += np.fft.rfft(step, axis=1)
        self._doubt -= gain * power * self._doubt / 2
        left = float(unsure.sum()) / BLOCK**2 + LEFT * float(np.mean(echo**2))
        return cleaned, left

    def _forget_what_is_wrong(self, spectra: np.ndarray) -> None:
        """Where the filter adds more than it removes, the echo path has changed: a device was
        exchanged, or one of the streams lost a moment. Those frequencies are learned anew, unless
        the residual is no louder than the room's noise."""
        self._powers = WRONG_SMOOTH * self._powers + (1 - WRONG_SMOOTH) * np.abs(spectra) ** 2
        cleaned, heard, echo = (smooth(power) for power in self._powers)
        wrong = (cleaned > WORSE * heard) & (echo > MOSTLY * heard)
        wrong &= cleaned > NOISE * WRONG_BINS * BLOCK
        self._response[:, wrong] = 0.0
        self._doubt[:, wrong] = COUPLING


def smooth(power: np.ndarray) -> np.ndarray:
    """Over neighbouring frequencies."""
    return np.convolve(power, np.ones(WRONG_BINS, np.float32), "same")
