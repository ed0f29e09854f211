"""Losses of the vocoder's training."""

from __future__ import annotations

import torch
from torch import Tensor

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import log_mel

RESOLUTIONS = ((2048, 480, 96), (1024, 240, 80), (512, 120, 48), (256, 60, 24))
"""(n_fft, hop, bands up to half the sample rate) of the spectral losses"""


def mel_distance(fake: Tensor, real: Tensor, spec: MelSpec) -> Tensor:
    """Mean absolute difference of log-mels in nats: of `spec` itself, and over the whole band at
    four resolutions.

    Waves are [batch, samples]. Above `spec.fmax_hz` only the second part teaches.
    """
    total = (log_mel(fake, spec) - log_mel(real, spec)).abs().mean()
    for n_fft, hop, bands in RESOLUTIONS:
        wide = MelSpec(
            spec.sample_rate_hz,
            n_fft,
            n_fft,
            hop,
            bands,
            fmin_hz=0.0,
            fmax_hz=spec.sample_rate_hz / 2,
        )
        total = total + (log_mel(fake, wide) - log_mel(real, wide)).abs().mean() / len(RESOLUTIONS)
    return total / 2


def stft_distance(fake: Tensor, real: Tensor) -> Tensor:
    """Spectral convergence and log-magnitude L1 over the resolutions, for waves [batch, samples]"""
    total = fake.new_zeros(())
    for n_fft, hop, _ in RESOLUTIONS:
        a, b = _magnitude(fake, n_fft, hop), _magnitude(real, n_fft, hop)
        total = total + (a - b).norm() / b.norm().clamp_min(1e-3) + (a.log() - b.log()).abs().mean()
    return total / len(RESOLUTIONS)


def _magnitude(wave: Tensor, n_fft: int, hop: int) -> Tensor:
    window = torch.hann_window(n_fft, device=wave.device)
    with torch.autocast(wave.device.type, enabled=False):
        spectrum = torch.stft(wave.float(), n_fft, hop, n_fft, window, return_complex=True)
        return (torch.view_as_real(spectrum).square().sum(-1) + 1e-7).sqrt()


def discriminator_loss(real_scores: list[Tensor], fake_scores: list[Tensor]) -> Tensor:
    """Least squares: real towards 1, fake towards 0"""
    real = torch.stack([(1 - score.float()).square().mean() for score in real_scores])
    fake = torch.stack([score.float().square().mean() for score in fake_scores])
    return real.sum() + fake.sum()


def adversarial_loss(fake_scores: list[Tensor]) -> Tensor:
    return torch.stack([(1 - score.float()).square().mean() for score in fake_scores]).sum()


def feature_distance(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Sum over all discriminator layers of the mean absolute difference"""
    pairs = zip((f for maps in real for f in maps), (f for maps in fake for f in maps), strict=True)
    return torch.stack([(a.detach().float() - b.float()).abs().mean() for a, b in pairs]).sum()
