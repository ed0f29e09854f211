"""What a vocoder is trained against: spectral distances, and critics."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad
from torch.nn.utils.parametrizations import weight_norm

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import log_mel

RESOLUTIONS = ((2048, 480, 96), (1024, 240, 80), (512, 120, 48), (256, 60, 24))
"""(n_fft, hop, bands up to half the sample rate) of the spectral losses"""

PERIODS, SIZES = (2, 3, 5, 7, 11), (2048, 1024, 512)
SLOPE = 0.1
SPECTRUM_POWER = 0.3
PART_SIZES, PART_POWER = (2048, 1024, 512, 256), 0.5


def mel_distance(fake: Tensor, real: Tensor, spec: MelSpec) -> Tensor:
    """Mean absolute difference of log-mels in nats: of the codec's mel `spec`, and of mels over the
    whole band at four resolutions, which alone teach what lies above `spec.fmax_hz`.

    Waves are [batch, samples].
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


def part_distance(fake: Tensor, real: Tensor) -> Tensor:
    """Mean absolute difference of the compressed complex spectra over the sizes"""
    differences = [
        compressed_spectra(fake, size, PART_POWER) - compressed_spectra(real, size, PART_POWER)
        for size in PART_SIZES
    ]
    return torch.stack([difference.abs().mean() for difference in differences]).mean()


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


class PeriodCritic(nn.Module):
    """Looks at a wave folded into columns of `period` samples."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths, strides = (1, 16, 64, 128, 256, 256), (3, 3, 3, 3, 1)
        layers = zip(widths, widths[1:], strides)
        self.layers = nn.ModuleList(_layer(a, b, (5, 1), (stride, 1)) for a, b, stride in layers)
        self.judge = _layer(widths[-1], 1, (3, 1), (1, 1))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[batch, samples] -> the maps of every layer, the scores last"""
        x = pad(wave, (0, -wave.shape[-1] % self.period)).unflatten(1, (-1, self.period))[:, None]
        return _judged(x, self.layers, self.judge)


class SpectrumCritic(nn.Module):
    """Looks at the complex spectra of windows of `size` samples, quiet parts raised."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        first, last = _layer(2, 32, (3, 9), (1, 1)), _layer(32, 32, (3, 3), (1, 1))
        self.layers = nn.ModuleList(
            [first, *(_layer(32, 32, (3, 9), (1, 2)) for _ in range(3)), last]
        )
        self.judge = _layer(32, 1, (3, 3), (1, 1))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[batch, samples] -> the maps of every layer, the scores last"""
        return _judged(compressed_spectra(wave, self.size, SPECTRUM_POWER), self.layers, self.judge)


def make_critics() -> nn.ModuleList:
    return nn.ModuleList([*map(PeriodCritic, PERIODS), *map(SpectrumCritic, SIZES)])


def compressed_spectra(wave: Tensor, size: int, power: float) -> Tensor:
    """[batch, samples] -> real and imaginary parts with magnitudes to the `power`: [batch, 2,
    frames, bins]"""
    with torch.autocast(wave.device.type, enabled=False):
        window = torch.hann_window(size, device=wave.device)
        spectra = torch.view_as_real(
            torch.stft(wave.float(), size, size // 4, window=window, return_complex=True)
        )
        squared = spectra.square().sum(-1, keepdim=True)
        return (spectra * (squared + 1e-6) ** ((power - 1) / 2)).permute(0, 3, 2, 1)


def _layer(
    inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int]
) -> nn.Module:
    return weight_norm(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel[0] // 2, kernel[1] // 2))
    )


def _judged(x: Tensor, layers: nn.ModuleList, judge: nn.Module) -> list[Tensor]:
    maps = []
    for layer in layers:
        x = leaky_relu(layer(x), SLOPE)
        maps.append(x)
    return [*maps, judge(x)]
