"""HiFT's network, which shapes the spectrum of a source by a mel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, pad

from moss_engine.codec.device import Convolution, Format
from moss_engine.codec.vocoder.hift.weights import HiftWeights, ResidualBlock

MAX_MAGNITUDE = 100.0
_MULTIPLE = 8
"""Tensor cores take so many channels at a time; the spectrum's are filled up with zeros."""


class _Block:
    """Residual convolutions between Snakes."""

    def __init__(self, block: ResidualBlock, form: Format) -> None:
        self._dilations, self._fused = block.dilations, form.fused
        self._first = [Convolution(affine, form) for affine in block.first]
        self._second = [Convolution(affine, form) for affine in block.second]
        self._first_snakes, self._second_snakes = block.first_snakes, block.second_snakes

    def add_to(self, mixed: Tensor, x: Tensor, scale: float, *, adds_up: bool) -> None:
        """mixed (+)= scale * block(x)"""
        if self._fused:
            self._add_fused(mixed, x, scale, adds_up=adds_up)
            return
        for i, dilation in enumerate(self._dilations):
            first, second = self._first[i], self._second[i]
            reach = (first.weight.shape[-1] - 1) // 2
            hidden = first(_snake(x, self._first_snakes[i]), reach * dilation, dilation)
            x = x + second(_snake(hidden, self._second_snakes[i]), reach)
        if adds_up:
            mixed.add_(x, alpha=scale)
        else:
            torch.mul(x, scale, out=mixed)

    def _add_fused(self, mixed: Tensor, x: Tensor, scale: float, *, adds_up: bool) -> None:
        from moss_engine.kernels.codec.snake import hift_snake, mix

        pending, bias = x, None
        for i, dilation in enumerate(self._dilations):
            first, second = self._first[i], self._second[i]
            reach = (first.weight.shape[-1] - 1) // 2
            add = None if bias is None else x
            bent, x = hift_snake(pending, self._first_snakes[i], bias, add)
            hidden = first(bent, reach * dilation, dilation, biased=False)
            bent, _ = hift_snake(hidden, self._second_snakes[i], first.bias)
            pending, bias = second(bent, reach, biased=False), second.bias
        assert bias is not None, "a block has dilations"
        mix(mixed, pending, bias, x, scale, adds_up=adds_up)


def _snake(x: Tensor, frequency: Tensor) -> Tensor:
    """x + sin(frequency * x)^2 / frequency"""
    frequency = frequency[:, None, None]
    return x + torch.sin(x * frequency).square() / (frequency + 1e-9)


class HiftNetwork:
    """For one HiFT, in float32 and one operation after the other, or on a GPU, `fused`, in `dtype`.
    Spectra are made in float32."""

    def __init__(
        self, weights: HiftWeights, dtype: torch.dtype = torch.float32, *, fused: bool = False
    ) -> None:
        self._weights, self._form = weights, Format(dtype, fused)
        missing = -len(weights.forward) % _MULTIPLE if fused else 0
        self._forward = pad(weights.forward, (0, 0, 0, missing))
        self._pre = Convolution(weights.pre, self._form)
        self._ups = [Convolution(level.up, self._form) for level in weights.levels]
        self._downs = [
            Convolution(level.source_down, self._form, inputs=missing) for level in weights.levels
        ]
        self._source_blocks = [_Block(level.source_block, self._form) for level in weights.levels]
        self._blocks = [
            [_Block(block, self._form) for block in level.blocks] for level in weights.levels
        ]
        wide = Format(torch.float32, fused)
        self._post = Convolution(weights.post, wide, outputs=missing)

    def __call__(self, mel: Tensor, source: Tensor) -> Tensor:
        """mel [streams, mels, frames], source [streams, frames * samples_per_frame] -> samples of
        the source's shape"""
        config, form = self._weights.config, self._form
        half = config.n_fft // 2
        windows = pad(source[:, None], (half, half), mode="reflect")[:, 0].unfold(
            1, config.n_fft, config.hop
        )
        spectrum = linear(windows, self._forward).transpose(1, 2)[:, :, None]
        spectrum = form.of(spectrum.to(form.dtype))
        x = self._pre(form.of(mel[:, :, None].to(form.dtype)), 3)
        for i, (up, down, blocks) in enumerate(zip(self._ups, self._downs, self._blocks)):
            kernel, rate = config.upsample_kernels[i], config.upsample_rates[i]
            x = up.transposed(leaky_relu(x, config.slope), (kernel - rate) // 2, rate)
            if i == len(self._ups) - 1:
                x = form.of(torch.cat([x[..., 1:2], x], -1))  # a reflection
            stride = config.source_strides[i]
            seen = down(spectrum, 0 if stride == 1 else stride // 2, stride=stride)
            self._source_blocks[i].add_to(x, seen, 1.0, adds_up=True)
            mixed = torch.empty_like(x)
            for number, block in enumerate(blocks):
                block.add_to(mixed, x, 1 / len(blocks), adds_up=number > 0)
            x = mixed
        x = self._post(leaky_relu(x.float()), 3)[:, : len(self._weights.forward), 0]
        return _wave(self._weights, x).clamp(-config.limit, config.limit)


def _wave(weights: HiftWeights, x: Tensor) -> Tensor:
    """Logs of magnitudes, and phases [batch, n_fft + 2, frames] -> [batch, (frames - 1) * hop]"""
    config = weights.config
    bins, half = config.n_fft // 2 + 1, config.n_fft // 2
    magnitude, phase = x[:, :bins].exp().clamp_max(MAX_MAGNITUDE), x[:, bins:].sin()
    parts = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1).transpose(1, 2)
    summed = _overlapped(linear(parts, weights.inverse), config.hop)
    square = weights.window.square().expand(1, x.shape[-1], -1)
    wave = summed / _overlapped(square, config.hop).clamp_min(1e-11)
    return wave[:, half : half + (x.shape[-1] - 1) * config.hop]


def _overlapped(frames: Tensor, hop: int) -> Tensor:
    """[batch, frames, size], each `hop` samples behind the last -> their sum [batch, samples]"""
    count = -(-frames.shape[2] // hop)
    parts = pad(frames, (0, count * hop - frames.shape[2])).unflatten(2, (count, hop)).unbind(2)
    return (
        torch.stack([pad(part, (0, 0, k, count - 1 - k)) for k, part in enumerate(parts)])
        .sum(0)
        .flatten(1)
    )
