"""What a network keeps between two pushes of a stream.

A streamed network runs the same layers over every push, in the same order; each takes what it needs
of its earlier inputs from here. Nothing is written to: a push makes new tensors, so that the old
ones still hold the stream as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


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
