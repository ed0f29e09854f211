"""The CUDA runtime keeps the contract of every runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.models.checkpoint import expected_tensors, stream_tensors  # noqa: E402
from moss_engine.models.config import ModelConfig  # noqa: E402
from moss_engine.models.layout import Bits, bits_of_format, stored_bits  # noqa: E402
from moss_engine.runtime.cuda.runtime import CudaRuntime  # noqa: E402
from moss_engine.runtime.cuda.weights import allocate, fill  # noqa: E402
from scripts.quantize_folder import quantize_folder  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, INTERPRETED, make_runtime  # noqa: E402
from tests.runtime.runtime_contract import LIMITS, RuntimeContract  # noqa: E402


def load(folder: Path, dtype: torch.dtype, bits: Bits | None = None) -> CudaRuntime:
    config = ModelConfig.from_file(folder / "config.json")
    weights = allocate(config, dtype, DEVICE, bits=bits)
    tensors = stream_tensors(
        folder,
        expected_tensors(config),
        dtype=dtype,
        keep_int8=bits is not None,
        keep_int4=bits is not None,
    )
    fill(weights, config, tensors)
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


# One row meets machine instructions that round the vector to 11 bits of mantissa.
PACKED = 1e-4 if INTERPRETED else 2e-2


class TestInt8(RuntimeContract):
    """The stored weights, widened in the products."""

    tolerance = drift = PACKED
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> CudaRuntime:
        config = ModelConfig.from_file(tiny_checkpoint / "config.json")
        return load(tiny_checkpoint, torch.float32, bits_of_format(config, "int8"))


class TestInt4(RuntimeContract):
    """A folder in 4 bits against a reference of the same values."""

    tolerance = drift = PACKED
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def tiny_checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        from tests.fixtures.make_tiny_checkpoint import write_checkpoint

        folder = tmp_path_factory.mktemp("packed")
        write_checkpoint(folder / "whole")
        quantize_folder(folder / "whole", folder / "four", 4, [], 8, "cpu", wide=0.0)
        return folder / "four"

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> CudaRuntime:
        config = ModelConfig.from_file(tiny_checkpoint / "config.json")
        return load(tiny_checkpoint, torch.float32, stored_bits(tiny_checkpoint, config))
