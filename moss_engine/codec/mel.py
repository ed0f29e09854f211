"""Log-mel spectrograms of a MelSpec."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.codec.base import MelSpec

FLOOR = 1e-5
LOG_FLOOR = -11.512925464970229
"""The log-mel of digital silence, ln(FLOOR)."""


def log_mel(wave: Tensor, spec: MelSpec) -> Tensor:
    """float32 [..., samples] in [-1, 1] -> log-mel float32 [..., num_mels, frames], a frame for
    every `hop_size` samples.

    Needs more than (n_fft - hop_size) / 2 samples, since the ends are mirrored by so many.
    """
    edge = (spec.n_fft - spec.hop_size) // 2
    assert wave.shape[-1] > edge, (
        f"{wave.shape[-1]} samples are too few for a mel of n_fft {spec.n_fft}"
    )
    flat = wave.reshape(-1, wave.shape[-1])
    mel = log_mel_of_padded(pad(flat, (edge, edge), mode="reflect"), spec)
    return mel.reshape(*wave.shape[:-1], *mel.shape[-2:])


def log_mel_of_padded(wave: Tensor, spec: MelSpec) -> Tensor:
    """As `log_mel`, for [batch, samples] with (n_fft - hop_size) / 2 samples of context."""
    window, filters = _window_and_filters(spec, wave.device)
    with torch.autocast(wave.device.type, enabled=False):
        spectrum = torch.stft(
            wave.float(),
            spec.n_fft,
            spec.hop_size,
            spec.win_size,
            window,
            center=False,
            return_complex=True,
        )
        magnitude = (
            torch.view_as_real(spectrum).square().sum(-1) + 1e-9
        ).sqrt()  # [batch, n_fft / 2 + 1, frames]
        return (filters @ magnitude).clamp_min(FLOOR).log()


@lru_cache(maxsize=8)
def _window_and_filters(spec: MelSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    # They are kept: made while serving, they must serve a later training of the process too.
    with torch.inference_mode(False):
        return torch.hann_window(spec.win_size, device=device), slaney_filters(spec).to(device)


def slaney_filters(spec: MelSpec) -> Tensor:
    """Slaney's mel filter bank, equal areas: float32 [num_mels, n_fft / 2 + 1].

    Linear below 1 kHz, logarithmic above.
    """
    ends = _mel_of_hz(torch.tensor([spec.fmin_hz, spec.fmax_hz], dtype=torch.float64))
    steps = torch.linspace(0, 1, spec.num_mels + 2, dtype=torch.float64)
    corners = _hz_of_mel(ends[0] + (ends[1] - ends[0]) * steps)[:, None]  # [num_mels + 2, 1]
    bins = torch.linspace(0, spec.sample_rate_hz / 2, spec.n_fft // 2 + 1, dtype=torch.float64)
    rising = (bins - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins) / (corners[2:] - corners[1:-1])
    return (torch.minimum(rising, falling).clamp_min(0) * 2 / (corners[2:] - corners[:-2])).float()


_LOG_STEP = 27 / torch.log(torch.tensor(6.4, dtype=torch.float64))


def _mel_of_hz(hz: Tensor) -> Tensor:
    return torch.where(hz < 1000, hz * 3 / 200, 15 + _LOG_STEP * (hz.clamp_min(1000) / 1000).log())


def _hz_of_mel(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, mel * 200 / 3, 1000 * ((mel.clamp_min(15) - 15) / _LOG_STEP).exp())
