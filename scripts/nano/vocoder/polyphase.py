"""BigVGAN's anti-aliased activation as shifted sums that a compiler fuses: the same function,
faster to train.

The package upsamples and downsamples with grouped convolutions, whose gradients are slow. Here both
filters work on the even and the odd samples of the doubled rate separately, so that everything
between two convolutions of the network is one chain of elementwise operations.
"""

from __future__ import annotations

from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

TAPS = 12
EDGE = TAPS // 4


def activate(
    x: Tensor,
    frequency: Tensor,
    inverse_magnitude: Tensor,
    up: tuple[float, ...],
    down: tuple[float, ...],
) -> Tensor:
    """Upsample by 2, x + sin^2(frequency x) / magnitude, downsample by 2; ends repeat their last
    sample.

    x: [batch, channels, samples]; frequency and inverse_magnitude: [1, channels, 1]; up, down: the
    12 filter taps.
    """
    samples = x.shape[-1]
    padded = pad(x, (EDGE, EDGE), mode="replicate")
    shifted = [padded[..., k : k + samples] for k in range(2 * EDGE + 1)]
    even: Any = sum(shifted[k] * up[TAPS - 1 - 2 * k] for k in range(TAPS // 2))
    odd: Any = sum(shifted[k + 1] * up[TAPS - 2 - 2 * k] for k in range(TAPS // 2))
    even = even + inverse_magnitude * torch.sin(even * frequency) ** 2
    odd = odd + inverse_magnitude * torch.sin(odd * frequency) ** 2
    first = even[..., :1].expand(*even.shape[:-1], EDGE)
    last = odd[..., -1:].expand(*odd.shape[:-1], EDGE)
    even, odd = torch.cat([first, even, last], -1), torch.cat([first, odd, last], -1)
    result: Any = sum(
        even[..., k + 1 : k + 1 + samples] * down[2 * k + 1]
        + odd[..., k : k + samples] * down[2 * k]
        for k in range(TAPS // 2)
    )
    return result


@lru_cache(maxsize=1)
def _compiled() -> Any:
    torch._dynamo.config.cache_size_limit = 128  # one version a shape, and there are a few shapes
    return torch.compile(activate, dynamic=False)


def use_polyphase(network: nn.Module, *, compiled: bool) -> None:
    """Make every `Activation1d` of a generator compute by `activate`; names and values of its
    weights stay."""
    function = _compiled() if compiled else activate
    module: Any
    for module in network.modules():
        if type(module).__name__ == "Activation1d":
            up = (module.upsample.ratio * module.upsample.filter).flatten().tolist()
            down = module.downsample.lowpass.filter.flatten().tolist()
            assert len(up) == len(down) == TAPS, "the package's filters have 12 taps"
            module.forward = MethodType(_forward(function, tuple(up), tuple(down)), module)


def _forward(function: Any, up: tuple[float, ...], down: tuple[float, ...]) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        snake = self.act
        frequency, magnitude = snake.alpha, getattr(snake, "beta", snake.alpha)
        if snake.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        inverse = 1 / (magnitude + snake.no_div_by_zero)
        return function(x, frequency.view(1, -1, 1), inverse.view(1, -1, 1), up, down)

    return forward
