"""BigVGAN's anti-aliased activation with everything constant computed once; the same function, in
fewer passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d


class FoldedActivation(nn.Module):
    """Upsampling by 2, Snake, downsampling by 2, for inference, from the package's `Activation1d`
    with trained weights.

    Snake's b sin^2(a x) is b / 2 - b / 2 cos(2 a x); the downsampling filter passes the constant b
    / 2 unchanged, so it becomes that convolution's bias. Padding repeats the end samples, as in the
    package.
    """

    up_filter: Tensor
    down_filter: Tensor
    double_frequency: Tensor
    minus_half: Tensor
    offset: Tensor

    def __init__(self, activation: Any) -> None:
        super().__init__()
        snake, up, down = activation.act, activation.upsample, activation.downsample.lowpass
        frequency = snake.alpha.detach()
        magnitude = getattr(snake, "beta", snake.alpha).detach()
        if snake.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        half = 0.5 / (magnitude + snake.no_div_by_zero)
        channels = len(frequency)
        self.channels = channels
        self.up_edge: int = up.pad
        self.up_trim: tuple[int, int] = (up.pad_left, up.pad_right)
        self.down_edges: tuple[int, int] = (down.pad_left, down.pad_right)
        assert up.stride == down.stride == 2, "BigVGAN resamples by 2"
        self.register_buffer(
            "up_filter", (up.ratio * up.filter).expand(channels, -1, -1).contiguous()
        )
        self.register_buffer("down_filter", down.filter.expand(channels, -1, -1).contiguous())
        self.register_buffer("double_frequency", (2 * frequency).view(1, -1, 1))
        self.register_buffer("minus_half", -half.view(1, -1, 1))
        self.register_buffer("offset", half.clone())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, samples] -> the same"""
        samples = x.shape[-1]
        narrow = x.new_empty(x.shape[0], self.channels, samples + 2 * self.up_edge)
        narrow[..., self.up_edge : -self.up_edge] = x
        _fill_edges(narrow, self.up_edge, self.up_edge)
        wide = conv_transpose1d(narrow, self.up_filter, stride=2, groups=self.channels)
        wide = wide[..., self.up_trim[0] : -self.up_trim[1]]
        left, right = self.down_edges
        snaked = x.new_empty(x.shape[0], self.channels, 2 * samples + left + right)
        wave = (wide * self.double_frequency).cos_()
        torch.addcmul(wide, wave, self.minus_half, out=snaked[..., left : left + 2 * samples])
        _fill_edges(snaked, left, right)
        return conv1d(snaked, self.down_filter, self.offset, stride=2, groups=self.channels)


def _fill_edges(x: Tensor, left: int, right: int) -> None:
    x[..., :left] = x[..., left : left + 1]
    x[..., -right:] = x[..., -right - 1 : -right]


def fold_activations(network: nn.Module) -> None:
    """Replace every `Activation1d` of a generator that has its weights and will not be trained
    further."""
    for name, child in network.named_children():
        if type(child).__name__ == "Activation1d":
            setattr(network, name, FoldedActivation(child))
        else:
            fold_activations(child)
