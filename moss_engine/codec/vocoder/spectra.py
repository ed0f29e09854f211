"""Spectra of overlapping Hann windows of four hops, and back."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

OVERLAP = 4
WINDOW_POWER = 1.5
"""Sum of the squared Hann windows that cover a sample, at four hops a window."""


def spectra_of(wave: Tensor, hop: int) -> Tensor:
    """[batch, (frames + 3) * hop] -> complex [batch, frames, 2 * hop + 1]; frame k begins at sample
    k * hop."""
    return torch.fft.rfft(wave.unfold(-1, OVERLAP * hop, hop) * _window(OVERLAP * hop, wave.device))


def wave_of(spectra: Tensor, hop: int) -> Tensor:
    """Complex [batch, frames, 2 * hop + 1] -> [batch, (frames + 3) * hop]; the outer 3 hops lack
    their neighbours."""
    frames = torch.fft.irfft(spectra, OVERLAP * hop) * _window(OVERLAP * hop, spectra.device)
    quarters = frames.unflatten(-1, (OVERLAP, hop)).unbind(2)
    shifted = [pad(part, (0, 0, k, OVERLAP - 1 - k)) for k, part in enumerate(quarters)]
    return torch.stack(shifted).sum(0).flatten(1) / WINDOW_POWER


@lru_cache(maxsize=8)
def _window(size: int, device: torch.device) -> Tensor:
    # It is kept: made while serving, it must serve a later training of the process too.
    with torch.inference_mode(False):
        return torch.hann_window(size, device=device)
