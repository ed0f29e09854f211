"""Weights in 8 and 4 bits: where each value lies, and that it is the nearest one."""

from __future__ import annotations

import torch

from moss_engine.models.packed import (
    group_of,
    pack4,
    quantise4,
    quantise8,
    round4,
    scales4,
    unpack4,
    widen4,
)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_byte_holds_two_inputs_half_a_group_apart() -> None:
    integers = torch.arange(-8, 8, dtype=torch.int8).repeat(4).view(1, 64)
    integers[0, 3], integers[0, 35] = -2, 7
    packed = pack4(integers, 64)
    assert packed.shape == (1, 32) and packed.dtype is torch.uint8
    assert packed[0, 3].item() == (-2 + 8) | (7 + 8) << 4
    assert torch.equal(unpack4(packed, 64), integers)


def test_groups_are_the_largest_that_divide() -> None:
    assert [group_of(size) for size in (12288, 384, 192, 96, 80)] == [128, 128, 64, 32, None]


def test_4_bits_are_the_nearest_of_their_group() -> None:
    weight = normal(6, 256)
    weight[2, 128:] = 0
    values, scale = quantise4(weight, 128)
    assert values.shape == (6, 128) and scale.shape == (6, 2) and scale.dtype is torch.float16
    lost = (widen4(values, scale) - weight).abs().unflatten(1, (2, 128))
    steps = scale.float().abs().unsqueeze(2)
    # half a step; a whole one at the far end, which has the integer 7 and no 8
    assert (lost <= 1.01 * steps).all() and (lost <= 0.51 * steps).float().mean() > 0.99
    assert not widen4(values, scale)[2, 128:].any()
    # the value of largest magnitude is met, whichever its sign
    assert (lost.flatten(1).gather(1, weight.abs().argmax(1, keepdim=True)) < 2e-3).all()
    assert torch.equal(pack4(round4(weight, scales4(weight, 128)), 128), values)


def test_8_bits_are_the_nearest_of_their_row() -> None:
    weight = normal(5, 96)
    values, scale = quantise8(weight)
    assert values.dtype is torch.int8 and scale.shape == (5,)
    widened = values.float() * scale.float()[:, None]
    assert ((widened - weight).abs() <= 0.51 * scale.float()[:, None] + 1e-6).all()
