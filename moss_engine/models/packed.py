"""Linear weights in 8 and 4 bits: value = integer * scale, one float16 scale per row or group.

8 bits: int8 [rows, inputs] and scales [rows], as checkpoints store them. 4 bits: uint8 [rows,
inputs / 2] and scales [rows, inputs / group]; of each group of G inputs, byte j holds input j in
its lower and input j + G / 2 in its upper half, each as integer + 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUPS = (128, 64, 32)
"""Inputs that share a scale in 4 bits: the largest of these that divides a matrix' inputs."""


def group_of(inputs: int) -> int | None:
    """The group size of a matrix with so many inputs, or None if it cannot have 4 bits."""
    return next((group for group in GROUPS if inputs % group == 0), None)


def pack4(integers: Tensor, group: int) -> Tensor:
    """Integers from -8 to 7 [rows, inputs] -> uint8 [rows, inputs / 2]."""
    low, high = (integers + 8).to(torch.uint8).unflatten(1, (-1, 2, group // 2)).unbind(2)
    return (low | high << 4).flatten(1)


def unpack4(values: Tensor, group: int) -> Tensor:
    """uint8 [rows, inputs / 2] -> int8 [rows, inputs]."""
    halves = values.unflatten(1, (-1, group // 2))
    both = torch.stack([halves & 15, halves >> 4], 2)
    return both.flatten(1).to(torch.int8) - 8


def scales4(weight: Tensor, group: int) -> Tensor:
    """float16 [rows, groups]: the value of largest magnitude of each group becomes -8."""
    groups = weight.float().unflatten(1, (-1, group))
    at = groups.abs().argmax(2, keepdim=True)
    return _usable(groups.gather(2, at).squeeze(2) / -8)


def round4(weight: Tensor, scale: Tensor) -> Tensor:
    """int8 [rows, inputs]: the nearest integers from -8 to 7 in scales [rows, groups]."""
    groups = weight.float().unflatten(1, (scale.shape[1], -1))
    return (groups / scale.float().unsqueeze(2)).round_().clamp_(-8, 7).to(torch.int8).flatten(1)


def widen4(values: Tensor, scale: Tensor) -> Tensor:
    """Packed values and scales [rows, groups] -> float32 [rows, inputs]."""
    group = 2 * values.shape[1] // scale.shape[1]
    integers = unpack4(values, group).float().unflatten(1, (-1, group))
    return (integers * scale.float().unsqueeze(2)).flatten(1)


def quantise4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Plain rounding: weight [rows, inputs] -> packed values, scales."""
    scale = scales4(weight, group)
    return pack4(round4(weight, scale), group), scale


def quantise8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Plain rounding: weight [rows, inputs] -> int8 of the same shape, float16 scales [rows]."""
    wide = weight.float()
    scale = _usable(wide.abs().amax(1) / 127)
    return (wide / scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def _usable(scale: Tensor) -> Tensor:
    """As float16, of which none is zero."""
    half = scale.half()
    return torch.where(half == 0, torch.ones_like(half), half)
