"""The TensorRT runtime and network on a CPU: the contract, against an emulator that has nothing but bound addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moss_engine.runtime.trt import TrtRuntime
from tests.runtime_contract import LIMITS, RuntimeContract
from tests.trt_support import EMULATOR, assert_large_values_pass, make_runtime

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


def test_gated_values_beyond_float16_pass(tiny_checkpoint):
    assert_large_values_pass(EMULATOR, tiny_checkpoint, LIMITS, CPU)
