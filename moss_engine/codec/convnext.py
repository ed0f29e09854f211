"""The block that the networks of the built-in voice's codec and vocoder are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad


class Block(nn.Module):
    """ConvNeXt: depthwise convolution, norm, MLP, residual; `look_ahead` of the taps lie in the
    future. With `scale` the MLP has a trained scale that begins with it."""

    def __init__(
        self,
        dim: int,
        kernel_size: int,
        mlp_ratio: int,
        look_ahead: int,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.look_ahead, self.look_back = look_ahead, kernel_size - 1 - look_ahead
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, dim * mlp_ratio)
        self.narrow = nn.Linear(dim * mlp_ratio, dim)
        self.scale = None if scale is None else nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, dim, steps] -> the same; zeros stand before the start and after the end."""
        return self.forward_padded(pad(x, (self.look_back, self.look_ahead)))

    def forward_padded(self, x: Tensor) -> Tensor:
        """[batch, dim, look_back + steps + look_ahead] -> [batch, dim, steps]"""
        hidden = self.norm(self.depthwise(x).transpose(1, 2))
        hidden = self.narrow(gelu(self.widen(hidden)))
        if self.scale is not None:
            hidden = hidden * self.scale
        return x[..., self.look_back : x.shape[-1] - self.look_ahead] + hidden.transpose(1, 2)
