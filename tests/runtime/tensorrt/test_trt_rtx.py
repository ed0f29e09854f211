"""TensorRT-RTX builds engines ahead of time on a machine without a GPU: the network is one that the
library takes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")

from moss_engine.api.errors import ConfigError
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.export.target import BuildTarget
from moss_engine.export.tensorrt import build_tensorrt_plan
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import Limits
from tests.runtime.tensorrt.trt_support import layout_of

ADA = "8.9"


def test_nano_is_built_with_its_weights(tmp_path: Path) -> None:
    """For sm_89; two cores have two minutes for it."""
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    target = BuildTarget("tensorrt_rtx", "baked", ADA, Limits(16, 128, 4, 512, 2048))
    started = time.perf_counter()
    built = build_tensorrt_plan(
        config,
        "bfloat16",
        target,
        tmp_path / "plan",
        layout_of(NANO_CHECKPOINT, config, "bfloat16").items(),
        print,
    )
    assert time.perf_counter() - started < 120
    assert built.compute_capability == ADA
    assert (tmp_path / "plan").stat().st_size > 2 * 19_000_000  # its 19.7 M weights are inside


def test_the_published_size_is_built_with_bound_weights(tmp_path: Path) -> None:
    """All 40 layers; the plan holds no weights, which take 18 GB."""
    target = BuildTarget("tensorrt_rtx", "bound", ADA, Limits(16, 1024, 4, 512, 4096))
    started = time.perf_counter()
    build_tensorrt_plan(PUBLISHED, "bfloat16", target, tmp_path / "plan", None, print)
    assert time.perf_counter() - started < 120
    assert 1 << 20 < (tmp_path / "plan").stat().st_size < 1 << 26


def test_three_layers_of_full_width_are_built_with_bound_weights(tmp_path: Path) -> None:
    """One layer of each block; the plan holds no weights, which take 3 GB."""
    config = dataclasses.replace(PUBLISHED, num_shared_layers=1, num_modality_layers=1)
    target = BuildTarget("tensorrt_rtx", "bound", ADA, Limits(16, 1024, 4, 512, 4096))
    build_tensorrt_plan(config, "float16", target, tmp_path / "plan", None, print)
    assert 1 << 20 < (tmp_path / "plan").stat().st_size < 1 << 26


@pytest.mark.parametrize(
    ("wanted", "refused"), [("9.0", "'9.0'"), ("8.9,banana", "'banana'"), ("8.9,", "''")]
)
def test_a_gpu_that_rtx_does_not_serve_is_refused(
    tmp_path: Path, wanted: str, refused: str
) -> None:
    """Before anything is done: the weights to be baked are not even asked for."""
    config = dataclasses.replace(PUBLISHED, num_shared_layers=1, num_modality_layers=1)
    target = BuildTarget("tensorrt_rtx", "baked", wanted, Limits(16, 64, 1, 64, 512))
    with pytest.raises(ConfigError, match=f"builds nothing for compute capability {refused}"):
        build_tensorrt_plan(config, "bfloat16", target, tmp_path / "plan", None, print)
