"""Networks that run as streams: the block that those of the built-in voice are made of, and what
layers know of a stream.

A streamed network runs the same layers over every push, in the same order; each takes what it needs
of its earlier inputs from `Pasts`. Nothing is written to: a push makes new tensors, so that the old
ones still hold the stream as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from moss_engine.models.recording import Recording


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


Kept = tuple[Tensor, ...]
"""What the layers of one stream keep of it, each [1, ...]."""


class Pasts:
    """The kept tensors of one push, in the order of the layers; batched along their first axis."""

    def __init__(self, kept: Sequence[Tensor] | None) -> None:
        """None stands for zeros: a stream before its first push."""
        self._old, self.kept = kept, list[Tensor]()

    def _take(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        return like.new_zeros(shape) if self._old is None else self._old[len(self.kept)]

    def joined(self, x: Tensor, count: int) -> Tensor:
        """[..., n] -> [..., count + n], the last `count` inputs before them"""
        x = torch.cat([self._take(x, [*x.shape[:-1], count]), x], -1)
        self.kept.append(x[..., x.shape[-1] - count :])
        return x

    def delayed(self, x: Tensor, count: int) -> Tensor:
        """[..., n] -> [..., n], those of `count` inputs earlier"""
        return self.joined(x, count)[..., : x.shape[-1]]

    def overlapped(self, x: Tensor, count: int) -> Tensor:
        """[..., n + count] -> [..., n]; the last `count` are added to the next push's first."""
        past = self._take(x, [*x.shape[:-1], count])
        length = x.shape[-1] - count
        total = x + pad(past, (0, length))
        self.kept.append(total[..., length:])
        return total[..., :length]

    def summed(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., n]: the running sum, from the first push on"""
        total = self._take(x, [*x.shape[:-1], 1]) + x.cumsum(-1)
        self.kept.append(total[..., -1:])
        return total


def advanced(blocks: nn.Sequential, x: Tensor, pasts: Pasts) -> Tensor:
    """The next steps, as late as the blocks look ahead together."""
    for block in blocks:
        x = block.forward_padded(pasts.joined(x, block.look_back + block.look_ahead))  # pyright: ignore
    return x


class Streamed:
    """`advance`, a run of a network's layers over the next steps of some streams. On a CPU that of
    one stream is recorded, as with `example` behind `start`: no `if` may depend on sizes."""

    def __init__(
        self, advance: Callable[[Tensor, Pasts], Tensor], start: Kept, example: Tensor
    ) -> None:
        self._advance, self.start = advance, start
        self._one: Callable[..., tuple[Tensor, ...]] = self._run
        if example.device.type == "cpu":
            self._one = Recording(self._run, (example, *start))

    def __call__(self, x: Tensor, streams: Sequence[Kept]) -> tuple[Tensor, list[Kept]]:
        """x [streams, ...] -> what `advance` makes of it, and what each stream keeps."""
        run = self._one if len(streams) == 1 else self._run
        y, *news = run(x, *map(torch.cat, zip(*streams, strict=True)))
        return y, [tuple(new[i : i + 1] for new in news) for i in range(len(streams))]

    def _run(self, x: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        pasts = Pasts(kept)
        return self._advance(x, pasts), *pasts.kept
