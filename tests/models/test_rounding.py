"""Rounding to 4 bits that loses less than the nearest values."""

from __future__ import annotations

import pytest
import torch

from moss_engine.models.packed import (
    gptq4,
    lost_power,
    lost_power4,
    pack4,
    quantise4,
    round4,
    searched_scales4,
    widen4,
)


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(24, 128, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """Rows in which inputs go together, as in a network, and one input is never used."""
    generator = torch.Generator().manual_seed(2)
    mixed = torch.randn(400, 16, generator=generator) @ torch.randn(16, 128, generator=generator)
    rows = mixed + 0.3 * torch.randn(400, 128, generator=generator)
    rows[:, 5] = 0
    return rows


def test_searched_scales_lose_less_of_the_weights(weight: torch.Tensor) -> None:
    scale = searched_scales4(weight, 64)
    plain = lost_power4(weight, *quantise4(weight, 64))
    assert lost_power4(weight, pack4(round4(weight, scale), 64), scale) < 0.95 * plain < 0.02


def test_calibration_loses_less_of_the_output(weight: torch.Tensor, inputs: torch.Tensor) -> None:
    products = inputs.T @ inputs
    values, scale = quantise4(weight, 64)
    plain = lost_power4(weight, values, scale, products)
    integers, scale = gptq4(weight, products, 64)
    assert integers.min() >= -8 and integers.max() <= 7
    calibrated = widen4(pack4(integers, 64), scale)
    lost = lost_power(weight, calibrated, products)
    assert lost < 0.3 * plain
    wanted, found = inputs @ weight.T, inputs @ calibrated.T
    assert ((found - wanted).square().sum() / wanted.square().sum()).item() == pytest.approx(
        lost, rel=0.01
    )


def test_an_input_that_is_never_seen_stays_near(weight: torch.Tensor, inputs: torch.Tensor) -> None:
    integers, scale = gptq4(weight, inputs.T @ inputs, 64)
    near = widen4(pack4(integers, 64), scale)[:, 5]
    assert (near - weight[:, 5]).abs().max() <= scale.float().abs().max() * 2
