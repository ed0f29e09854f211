"""The ConvNeXt block of the source-filter generator and of the pitch network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from moss_engine.codec.vocoder.pasts import Pasts

KERNEL, MLP_RATIO = 7, 3
FIRST_SCALE = 0.2
MEL_MEAN, MEL_SCALE = -5.5, 3.0


class Convolution(nn.Conv1d):
    """A convolution over KERNEL steps, `look_ahead` of them in the future."""

    def __init__(self, inputs: int, outputs: int, look_ahead: int, groups: int = 1) -> None:
        super().__init__(inputs, outputs, KERNEL, groups=groups)
        self.look_ahead, self.look_back = look_ahead, KERNEL - 1 - look_ahead

    def whole(self, x: Tensor) -> Tensor:
        """[batch, inputs, steps] -> [batch, outputs, steps] with zeros around"""
        return self(pad(x, (self.look_back, self.look_ahead)))


class Block(nn.Module):
    """Depthwise convolution, norm, MLP with a trained scale that begins small, residual."""

    def __init__(self, width: int, look_ahead: int) -> None:
        super().__init__()
        self.depthwise = Convolution(width, width, look_ahead, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = (
            nn.Linear(width, MLP_RATIO * width),
            nn.Linear(MLP_RATIO * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), FIRST_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width, steps] -> the same; zeros stand before the start and after the end."""
        return self._inside(pad(x, (self.depthwise.look_back, self.depthwise.look_ahead)))

    def advance(self, x: Tensor, pasts: Pasts) -> Tensor:
        """The next steps, `look_ahead` late."""
        return self._inside(pasts.joined(x, KERNEL - 1))

    def _inside(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).transpose(1, 2))
        y = (self.narrow(gelu(self.widen(y))) * self.scale).transpose(1, 2)
        return x[..., self.depthwise.look_back : x.shape[-1] - self.depthwise.look_ahead] + y


def normal(mel: Tensor) -> Tensor:
    """Log-mel -> about zero mean and unit variance"""
    return (mel - MEL_MEAN) / MEL_SCALE
