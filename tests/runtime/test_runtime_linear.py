"""Linear layers of the torch runtime: products of 16-bit values for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from moss_engine.runtime.eager import network
from moss_engine.runtime.eager.network import FloatLinear, Int8Linear

MOST_ROWS = 200


@pytest.fixture
def numbers(monkeypatch) -> set[int]:
    """The numbers of rows that were multiplied."""
    found: set[int] = set()

    def noted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found.add(x.shape[0])
        return multiply(x, weight)

    multiply = F.linear
    monkeypatch.setattr(network.F, "linear", noted)
    return found


def layers() -> list[Int8Linear | FloatLinear]:
    values = torch.randint(-127, 128, (40, 48), dtype=torch.int8)
    scale = torch.rand(40) + 0.5
    return [
        Int8Linear(values, scale, torch.bfloat16),
        FloatLinear(torch.randn(40, 48, dtype=torch.bfloat16)),
    ]


def test_prompts_of_any_length_need_few_kernels(numbers):
    """oneDNN's kernels are kept for each number of rows: memory would grow with every new one."""
    for layer in layers():
        numbers.clear()
        for rows in range(1, MOST_ROWS):
            assert layer(torch.randn(rows, 48), 0).shape == (rows, 40)
        assert numbers == {16, 32, 48, 64, 128, 192, 256}


def test_a_row_has_the_same_values_whatever_it_is_multiplied_with():
    x = torch.randn(MOST_ROWS, 48)
    for layer in layers():
        together = layer(x, 0)
        for rows in (1, 15, 16, 17, 64, 65, 129):
            assert torch.equal(layer(x[:rows], 0), together[:rows])


def test_float32_rows_are_multiplied_as_they_are(numbers):
    FloatLinear(torch.randn(40, 48))(torch.randn(17, 48), 0)
    assert numbers == {17}
