"""The TensorRT runtime on a GPU with the TensorRT that is installed: the contract of every
runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from moss_engine.runtime.tensorrt.library import load_library  # noqa: E402
from moss_engine.runtime.tensorrt.runtime import TrtRuntime  # noqa: E402
from tests.runtime.runtime_contract import LIMITS, RuntimeContract  # noqa: E402
from tests.runtime.tensorrt.support import make_runtime  # noqa: E402
from tests.runtime.tensorrt.test_engines import assert_large_values_pass  # noqa: E402


class EngineContract(RuntimeContract):
    exact_batch = False
    dtype: str
    weights = "bound"

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        library, gpu = load_library("tensorrt"), torch.device("cuda")
        return make_runtime(library, tiny_checkpoint, LIMITS, cls.dtype, cls.weights, gpu)


class TestFloat32(EngineContract):
    """Only the order of sums differs from the reference."""

    dtype = "float32"
    tolerance = drift = 1e-3


class TestBoundFloat16(EngineContract):
    """Weights, and what products are made of, are rounded to 11 bits of mantissa."""

    dtype = "float16"
    tolerance = drift = 0.02


class TestBakedFloat16(TestBoundFloat16):
    weights = "baked"


def test_gated_values_beyond_float16_pass(tiny_checkpoint):
    assert_large_values_pass(load_library("tensorrt"), tiny_checkpoint, torch.device("cuda"))
