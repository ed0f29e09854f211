"""The TensorRT runtime and network on a CPU: the contract, against an emulator that has nothing but bound addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.trt import TrtRuntime
from moss_engine.tokens import Row
from tests.runtime_contract import LIMITS, RuntimeContract
from tests.trt_support import (
    EMULATOR,
    OLD_EMULATOR,
    assert_large_values_pass,
    float8_layout_of,
    make_runtime,
    open_runtime,
)

CPU = torch.device("cpu")


class TestBoundFloat32(RuntimeContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa, through four layers."""

    tolerance = drift = 1e-4
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(EMULATOR, tiny_checkpoint, LIMITS, "float32", "bound", CPU)


class TestBakedFloat16(RuntimeContract):
    """Weights, activations and KV are rounded to 11 bits of mantissa."""

    tolerance = drift = 0.02
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(EMULATOR, tiny_checkpoint, LIMITS, "float16", "baked", CPU)


class TestOldFloat16(TestBakedFloat16):
    """A release that types networks weakly."""

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(OLD_EMULATOR, tiny_checkpoint, LIMITS, "float16", "bound", CPU)


def test_gated_values_beyond_float16_pass(tiny_checkpoint):
    assert_large_values_pass(EMULATOR, tiny_checkpoint, LIMITS, CPU)


def test_float8_layers_are_near_their_widened_values(tiny_checkpoint):
    """Inputs of every layer's matrices have 3 bits of mantissa; weights are float8 on both sides."""
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    float8, exact = float8_layout_of(tiny_checkpoint, config)
    rows = tuple(Row(text, 3) for text in range(7, 27))
    batch = ScheduledBatch((ScheduledSequence(rows, 0, tuple(range(8)), True),))
    found, wanted = (open_runtime(EMULATOR, config, layout, LIMITS, dtype, weights, CPU).forward(batch)
                     for layout, dtype, weights in ((float8, "float8", "baked"), (exact, "float32", "bound")))
    for ours, theirs in zip(found, wanted, strict=True):
        assert 0 < (ours - theirs).norm() < 0.15 * theirs.norm()
