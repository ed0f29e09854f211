"""Changing the sample rate of a whole recording."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ZERO_CROSSINGS = 24
ROLL_OFF = 0.95


def resample(wave: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """float32 [samples] -> [ceil(samples * to_hz / from_hz)], by a Hann-windowed sinc below the lower Nyquist rate."""
    if from_hz == to_hz:
        return wave
    common = math.gcd(from_hz, to_hz)
    old, new = from_hz // common, to_hz // common
    cutoff = ROLL_OFF * min(old, new)  # in cycles per two common periods
    reach = math.ceil(ZERO_CROSSINGS * old / cutoff)
    offsets = torch.arange(-reach, reach + old, dtype=torch.float64)[None] / old
    times = (offsets - torch.arange(new, dtype=torch.float64)[:, None] / new) * cutoff  # [new, taps], in zero crossings
    window = torch.cos(times.clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS) * math.pi / ZERO_CROSSINGS / 2).square()
    kernel = (torch.sinc(times) * window * cutoff / old).float()
    padded = torch.nn.functional.pad(wave, (reach, reach + old))
    phases = torch.nn.functional.conv1d(padded[None, None], kernel[:, None].to(wave.device), stride=old)
    return phases[0].t().reshape(-1)[: -(-len(wave) * new // old)]
