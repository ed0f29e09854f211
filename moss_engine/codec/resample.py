"""Changing the sample rate of a whole recording."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

MAX_KERNEL_VALUES = 1 << 20
"""Of the filters of all output phases: 44,101 Hz alone has 16,000 phases. Between two rates that
want more, soxr's filter takes their place."""
BLOCK_VALUES = 1 << 22


def resample(
    wave: Tensor, from_hz: int, to_hz: int, *, zero_crossings: int = 24, roll_off: float = 0.95
) -> Tensor:
    """float32 [samples] -> [about samples * to_hz / from_hz], by a Hann-windowed sinc.

    The sinc reaches over `zero_crossings` on either side and cuts off at `roll_off` of that rate;
    with 6 and 0.99 the result is that of torchaudio's Resample. Memory stays within a few times the
    samples for any two rates.
    """
    if from_hz == to_hz:
        return wave
    common = math.gcd(from_hz, to_hz)
    old, new = from_hz // common, to_hz // common
    cutoff = roll_off * min(old, new)  # in cycles per two common periods
    reach = math.ceil(zero_crossings * old / cutoff)
    if new * (2 * reach + old) > MAX_KERNEL_VALUES:
        import soxr

        found = soxr.resample(wave.cpu().numpy(), from_hz, to_hz)
        return torch.from_numpy(found).to(wave.device)
    kernel = _kernel(old, new, reach, cutoff, zero_crossings).to(wave.device)  # [new, taps]
    padded = torch.nn.functional.pad(wave, (reach, reach + old))
    blocks = padded.unfold(0, kernel.shape[1], old)  # [periods, taps], a view
    step = max(1, BLOCK_VALUES // kernel.shape[1])
    # products, not a convolution: on a GPU those may round to 10 bits
    return torch.cat(
        [blocks[i : i + step] @ kernel.T for i in range(0, len(blocks), step)]
    ).reshape(-1)[: -(-len(wave) * new // old)]


@lru_cache(maxsize=16)
def _kernel(old: int, new: int, reach: int, cutoff: float, zero_crossings: int) -> Tensor:
    offsets = torch.arange(-reach, reach + old, dtype=torch.float64)[None] / old
    phases = torch.arange(new, dtype=torch.float64)[:, None] / new
    return _windowed_sinc((offsets - phases) * cutoff, zero_crossings, cutoff / old).float()


def _windowed_sinc(times: Tensor, zero_crossings: int, scale: float) -> Tensor:
    """`times` float64 in zero crossings from the filter's centre."""
    window = torch.cos(
        times.clamp(-zero_crossings, zero_crossings) * (math.pi / zero_crossings / 2)
    ).square()
    return torch.sinc(times) * window * scale
