"""The judges of the vocoder's adversarial training: of folded waves, and of complex spectra."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad
from torch.nn.utils.parametrizations import weight_norm

PERIODS, SIZES = (2, 3, 5, 7, 11), (2048, 1024, 512)
SLOPE = 0.1
SPECTRUM_POWER = 0.3


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
