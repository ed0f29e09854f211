"""Linear weights in 8 and 4 bits: value = integer * scale, one float16 scale per row or group.

8 bits: int8 [rows, inputs] and scales [rows], as checkpoints store them. 4 bits: uint8 [rows,
inputs / 2] and scales [rows, inputs / group]; of each group of G inputs, byte j holds input j in
its lower and input j + G / 2 in its upper half, each as integer + 8. With the products of
calibration inputs every column's rounding error is spread over the columns still to be rounded
(GPTQ); without them only each group's scale is searched.
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
    """Scales as float16, with none of them zero."""
    half = scale.half()
    return torch.where(half == 0, torch.ones_like(half), half)


# Parts of a group's largest value that may become the largest integer.
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
DAMPING = 0.01
"""What is added to the diagonal of the inputs' products, as a share of its mean."""


def searched_scales4(weight: Tensor, group: int, squares: Tensor | None = None) -> Tensor:
    """float16 scales [rows, groups] whose nearest integers lose least of weight [rows, inputs],
    each input weighted by its sum of squares [inputs] (None: all alike)."""
    wide = weight.float()
    largest = scales4(wide, group)
    chosen, best = largest, None
    for clip in CLIPS:
        scale = (clip * largest.float()).half()
        rounded = round4(wide, scale).float().unflatten(1, (-1, group))
        lost = (rounded * scale.float().unsqueeze(2)).flatten(1).sub_(wide).square_()
        if squares is not None:
            lost *= squares
        lost = lost.unflatten(1, (-1, group)).sum(2)
        if best is None:
            best = lost
            continue
        chosen = torch.where(lost < best, scale, chosen)
        best = torch.minimum(lost, best)
    return chosen


def gptq4(weight: Tensor, products: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Integers int8 [rows, inputs] and scales [rows, groups] that lose little of the output.

    products [inputs, inputs] is the sum over calibration rows of x^T x. The error of each column
    is made up for by those after it; a group's scale is searched when its turn comes.
    """
    left = weight.float().clone()
    spread, squares = _inverse_root(products.float()), products.diagonal().float()
    integers, scales = torch.empty_like(left, dtype=torch.int8), []
    for start in range(0, left.shape[1], group):
        end = start + group
        scale = searched_scales4(left[:, start:end], group, squares[start:end])
        scales.append(scale)
        step = scale.float().squeeze(1)
        errors = torch.empty(len(left), group, device=left.device)
        for at in range(start, end):
            column = left[:, at]
            rounded = (column / step).round_().clamp_(-8, 7)
            integers[:, at] = rounded.to(torch.int8)
            error = (column - rounded * step) / spread[at, at]
            left[:, at + 1 : end] -= error[:, None] * spread[at, at + 1 : end]
            errors[:, at - start] = error
        left[:, end:] -= errors @ spread[start:end, end:]
    return integers, torch.cat(scales, 1)


def lost_power(weight: Tensor, rounded: Tensor, products: Tensor | None = None) -> float:
    """The share of the output's power that rounding takes away, or with None of the weights'."""
    wide, difference = weight.float(), weight.float() - rounded.float()
    if products is None:
        return (difference.square().sum() / wide.square().sum()).item()
    matrix = products.float()
    lost = ((difference @ matrix) * difference).sum()
    return (lost / ((wide @ matrix) * wide).sum()).item()


def _inverse_root(products: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse; inputs that were always 0 are left uncorrelated."""
    matrix = products.clone()
    diagonal = matrix.diagonal()
    unseen = diagonal == 0
    diagonal[unseen] = 1.0
    diagonal += DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    return torch.linalg.cholesky(inverse, upper=True)
