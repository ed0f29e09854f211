"""PCM at 24 kHz -> 16 kHz, block by block, for what listens at that rate."""

from __future__ import annotations

import numpy as np

FROM_HZ = 24_000
REACH = 24
"""Samples on either side that an output sample is made of."""
CUTOFF_HZ = 7_200.0


def _kernel(offset: float) -> np.ndarray:
    """float32 [2 * REACH + 1]: a windowed sinc around a place `offset` samples after the middle."""
    times = np.arange(-REACH, REACH + 1) - offset
    cutoff = 2 * CUTOFF_HZ / FROM_HZ
    taps = cutoff * np.sinc(cutoff * times) * np.cos(np.pi * times / (2 * REACH + 2)) ** 2
    return (taps / taps.sum()).astype(np.float32)


KERNELS = (_kernel(0.0), _kernel(0.5))
"""The first of two output samples lies on an input sample, the second half-way to the next."""


class Downsampler:
    """Gives two samples for every three, REACH input samples late."""

    def __init__(self) -> None:
        self._held = np.zeros(REACH, np.float32)

    def push(self, pcm: np.ndarray) -> np.ndarray:
        """int16 [n] -> int16 [2 n / 3, more or less]."""
        held = np.concatenate([self._held, pcm.astype(np.float32)])
        num_pairs = max(0, (len(held) - 2 * REACH - 2) // 3 + 1)
        if not num_pairs:
            self._held = held
            return np.empty(0, np.int16)
        windows = np.lib.stride_tricks.sliding_window_view(held, 2 * REACH + 1)
        out = np.empty((num_pairs, 2), np.float32)
        out[:, 0] = windows[0 : 3 * num_pairs : 3] @ KERNELS[0]
        out[:, 1] = windows[1 : 3 * num_pairs : 3] @ KERNELS[1]
        self._held = held[3 * num_pairs :]
        return np.clip(np.rint(out.ravel()), -32768, 32767).astype(np.int16)
