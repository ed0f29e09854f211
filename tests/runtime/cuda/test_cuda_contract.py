"""The CUDA runtime keeps the contract of every runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.models.checkpoint import expected_tensors, stream_tensors  # noqa: E402
from moss_engine.models.config import ModelConfig  # noqa: E402
from moss_engine.runtime.cuda.runtime import CudaRuntime  # noqa: E402
from moss_engine.runtime.cuda.weights import allocate, fill  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, INTERPRETED, make_runtime  # noqa: E402
from tests.runtime.runtime_contract import LIMITS, RuntimeContract  # noqa: E402


def load(folder: Path, dtype: torch.dtype) -> CudaRuntime:
    config = ModelConfig.from_file(folder / "config.json")
    weights = allocate(config, dtype, DEVICE)
    fill(weights, config, stream_tensors(folder, expected_tensors(config), dtype=dtype))
    return make_runtime(weights, config, LIMITS)


class TestFloat32(RuntimeContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa,
    through four layers."""

    tolerance = drift = 1e-4
    exact_batch = False  # one row alone goes through other kernels than several

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> CudaRuntime:
        return load(tiny_checkpoint, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="bfloat16 products need a GPU")
class TestBfloat16(RuntimeContract):
    """Weights, activations and KV are rounded to 8 bits of mantissa."""

    tolerance = drift = 0.15
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> CudaRuntime:
        return load(tiny_checkpoint, torch.bfloat16)
