"""A BigVGAN with a harmonic source and an inverse STFT as its last upsampling.

Its residual blocks and activations are those of the `bigvgan` package. They run at 250 and 1,500 Hz
alone: the inverse STFT (n_fft 64, hop 16) does the rest, so that anti-aliased activations, the
larger part of a BigVGAN's cost on a CPU, are few. The spectra of F0 pulses and of noise are added
at both rates, and come out shaped.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.streamed import Pasts
from moss_engine.codec.vocoder.bigvgan import ACTIVATION_REACH, import_bigvgan_module
from moss_engine.codec.vocoder.source_filter import (
    KERNEL,
    OVERLAP,
    SOURCE_DELAY,
    Convolution,
    PitchNetwork,
    normal,
    spectra_of,
    wave_of,
)

RATES, KERNELS = (5, 6), (15, 12)
HOP = MOSS_MEL.hop_size // math.prod(RATES)
BINS = OVERLAP * HOP // 2 + 1
EDGE = (OVERLAP - 1) * HOP // 2
"""Samples of a spectrum's window before the first sample of its step."""
BLOCK_KERNELS, DILATIONS = (3, 7), (1, 3)
ENTER_AHEAD, LEAVE_KERNEL = 1, 7
NOISE_SAMPLES = 1 << 16
"""Length after which a stream's noise repeats."""
MAX_LOG_GAIN = 5.0
FIRST_LOG_GAIN = -2.0


class Stage(NamedTuple):
    """One upsampling in a stream: its source convolution, and how long mel and source wait for each
    other."""

    size: int
    stride: int
    wait: int
    source_wait: int


def _reach(dilation: int) -> int:
    return ACTIVATION_REACH + max(BLOCK_KERNELS) // 2 * dilation


def _stages() -> tuple[list[Stage], int]:
    """The stages, and the samples that a stream is behind the mel."""
    features = (SOURCE_DELAY + OVERLAP * HOP - EDGE) // HOP - 1  # steps that the source is behind
    behind, left, stages = ENTER_AHEAD, math.prod(RATES), []
    for rate in RATES:
        behind, left = (behind + 1) * rate, left // rate
        size, stride = (2 * left, left) if left > 1 else (3, 1)
        ready, rest = divmod(features + (size - stride) - (size - stride) // 2, stride)
        assert rest == 0, "the source convolution's steps and those of the mel coincide"
        stages.append(Stage(size, stride, max(0, ready - behind), stride * max(0, behind - ready)))
        behind = max(behind, ready) + sum(map(_reach, DILATIONS))
    return stages, (behind + ACTIVATION_REACH + LEAVE_KERNEL // 2) * HOP + EDGE


STAGES, DELAY = _stages()


class SourceBigVgan(nn.Module):
    """Log-mel and pulses -> the spectra of a voiced and a free part, every 16 samples."""

    SIZES = ("width", "pitch_width")
    delay = DELAY
    noise: Tensor

    def __init__(self, width: int, pitch_width: int) -> None:
        super().__init__()
        self.enter = Convolution(MOSS_MEL.num_mels, width, ENTER_AHEAD)
        self.ups, self.sources, self.blocks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for rate, kernel, stage in zip(RATES, KERNELS, STAGES, strict=True):
            padding, width = (kernel - rate) // 2, width // 2
            self.ups.append(nn.ConvTranspose1d(2 * width, width, kernel, rate, padding=padding))
            padding = (stage.size - stage.stride) // 2
            self.sources.append(
                nn.Conv1d(4 * BINS, width, stage.size, stage.stride, padding=padding)
            )
            self.blocks.append(nn.ModuleList(_amp_block(width, kernel) for kernel in BLOCK_KERNELS))
        self.activation = _activation(width)
        self.leave = nn.Conv1d(width, 6 * BINS, LEAVE_KERNEL, padding=LEAVE_KERNEL // 2)
        with torch.no_grad():
            self.leave.bias.view(2, 3, BINS)[:, 0] = FIRST_LOG_GAIN  # type: ignore[union-attr]
        self.pitch = PitchNetwork(pitch_width)
        drawn = torch.randn(NOISE_SAMPLES, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", drawn, persistent=False)

    def spectra(self, mel: Tensor, source: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Voiced and free spectra, complex [batch, 30 * frames, BINS] each.

        `mel` [batch, num_mels, frames]; the pulses and the noise have EDGE samples around those of
        the frames.
        """
        given = _features(torch.stack([source, noise], 1))
        x = self.enter.whole(normal(mel))
        for up, add, blocks in zip(self.ups, self.sources, self.blocks, strict=True):
            x = up(x) + add(given)
            x = torch.stack([block(x) for block in blocks]).mean(0)  # type: ignore[union-attr]
        return self._finish(self.leave(self.activation(x)))

    def _finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, 6 * BINS, steps] -> voiced and free spectra, complex [batch, steps, BINS]"""
        values = x.float().transpose(1, 2).unflatten(2, (2, 3, BINS))
        gain = values[:, :, :, 0].clamp_max(MAX_LOG_GAIN).exp()
        voiced, free = torch.complex(gain * values[:, :, :, 1], gain * values[:, :, :, 2]).unbind(2)
        return voiced, free

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor:
        """The next frames [batch, num_mels, frames] -> samples [batch, frames * hop], `delay`
        late"""
        source = self.pitch.advance(mel, pasts)
        count = pasts.summed(torch.ones_like(source, dtype=torch.int64))
        given = torch.stack([source, self.noise[(count - 1) % NOISE_SAMPLES]], 1)
        given = _features(pasts.joined(given, (OVERLAP - 1) * HOP))
        x = self.enter(pasts.joined(normal(mel), KERNEL - 1))
        for rate, stage, up, add, blocks in zip(
            RATES, STAGES, self.ups, self.sources, self.blocks, strict=True
        ):
            x = pasts.delayed(up(pasts.joined(x, 2))[..., rate:-rate], stage.wait)
            inputs = pasts.joined(
                pasts.delayed(given, stage.source_wait), stage.size - stage.stride
            )
            x = x + _valid(add, inputs)
            advanced = [_advance_block(block, x, pasts) for block in blocks]  # type: ignore[union-attr]
            x = torch.stack(advanced).mean(0)
        reach = ACTIVATION_REACH + LEAVE_KERNEL // 2
        x = self.leave(self.activation(pasts.joined(x, 2 * reach)))[..., reach:-reach]
        voiced, free = self._finish(x)
        return pasts.overlapped(wave_of(voiced + free, HOP), (OVERLAP - 1) * HOP)

    def parts(self, mel: Tensor, source: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
        """Voiced and free part [batch, samples] of a crop without its `left` and `right` frames of
        context.

        `source` are the pulses of the whole crop with at least EDGE samples more at both ends.
        """
        hop = MOSS_MEL.hop_size
        spare = (source.shape[-1] - mel.shape[-1] * MOSS_MEL.hop_size) // 2 - EDGE
        source = source[:, spare : source.shape[-1] - spare]
        voiced, free = self.spectra(mel, source, torch.randn_like(source))
        inside = slice(EDGE + left * hop, EDGE + (mel.shape[-1] - right) * hop)
        return wave_of(voiced, HOP)[:, inside], wave_of(free, HOP)[:, inside]


def _features(waves: Tensor) -> Tensor:
    """Pulses and noise [batch, 2, (steps + 3) * HOP] -> their spectra as [batch, 4 * BINS,
    steps]"""
    spectra = spectra_of(waves.flatten(0, 1), HOP).unflatten(0, (-1, 2)) / HOP
    return torch.view_as_real(spectra).permute(0, 1, 3, 4, 2).flatten(1, 3)


def _valid(convolution: Any, x: Tensor) -> Tensor:
    """The convolution's outputs that need no padding"""
    return torch.nn.functional.conv1d(x, convolution.weight, convolution.bias, convolution.stride)


def _advance_block(block: Any, x: Tensor, pasts: Pasts) -> Tensor:
    """The package's residual block over the next steps, all kernels as late as the longest."""
    for activation, convolution, dilation in zip(
        block.activations, block.convs, DILATIONS, strict=True
    ):
        reach = _reach(dilation)
        x = pasts.joined(x, 2 * reach)
        x = (x + convolution(activation(x)))[..., reach:-reach]
    return x


def _amp_block(width: int, kernel: int) -> nn.Module:
    package = import_bigvgan_module("bigvgan")
    settings = import_bigvgan_module("env").AttrDict(
        {"snake_logscale": True, "use_cuda_kernel": False}
    )
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore", FutureWarning)
        block = package.AMPBlock2(settings, width, kernel, DILATIONS, activation="snakebeta")
        block.remove_weight_norm()
    return block


def _activation(width: int) -> nn.Module:
    package = import_bigvgan_module("bigvgan")
    snake = package.activations.SnakeBeta(width, alpha_logscale=True)
    return package.TorchActivation1d(activation=snake)
