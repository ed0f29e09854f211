"""The torch runtime over a folder in 4 bits: the contract against a reference of its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moss_engine.runtime.eager.runtime import TorchRuntime, load_torch_runtime
from scripts.quantize_folder import quantize_folder
from tests.runtime.runtime_contract import LIMITS, RuntimeContract


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in 4 bits, heads in 8."""
    from tests.fixtures.make_tiny_checkpoint import write_checkpoint

    folder = tmp_path_factory.mktemp("packed")
    write_checkpoint(folder / "whole")
    quantize_folder(folder / "whole", folder / "four", 4, [], 8, "cpu", wide=0.0)
    return folder / "four"


class TestFloat32(RuntimeContract):
    """Only the order of sums differs from the reference."""

    tolerance = drift = 2e-5
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TorchRuntime:
        return load_torch_runtime(
            tiny_checkpoint, LIMITS, device=torch.device("cpu"), dtype=torch.float32, threads=1
        )
