"""TensorRT-RTX builds engines ahead of time on a machine without a GPU: the network is one that the
library takes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")

from moss_engine.api.errors import ConfigError
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.export.network import Ops, Value
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.tensorrt.engine import load_library
from moss_engine.runtime.tensorrt_llm.runtime import ATTENTION
from tests.runtime.engines import stand_in
from tests.runtime.engines.support import LLM_LIMITS, float8_layout_of

ADA = "8.9"


def as_release_10(trt: ModuleType) -> SimpleNamespace:
    """TensorRT-RTX's module under the version of a TensorRT with the same interface."""
    return SimpleNamespace(**{**vars(trt), "__version__": "10.14.1"})


def test_nano_is_built_with_its_weights(tmp_path: Path) -> None:
    """For sm_89, with the builder's least effort."""
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    limits = Limits(16, 128, 4, 512, 2048)
    target = BuildTarget("tensorrt_rtx", "float8", ADA, limits, effort=0)
    (weights, _), plan = float8_layout_of(NANO_CHECKPOINT), tmp_path / "plan"
    built = build_tensorrt_plan(config, target, plan, weights.items(), print)
    assert built.compute_capability == ADA
    assert plan.stat().st_size > 19_000_000  # its 19.7 M weights are inside


def test_the_published_size_is_built_without_weights(tmp_path: Path) -> None:
    """All 40 layers; the plan holds no weights, which take 18 GB."""
    target = BuildTarget("tensorrt_rtx", "bfloat16", ADA, Limits(16, 1024, 4, 512, 4096))
    started = time.perf_counter()
    build_tensorrt_plan(PUBLISHED, target, tmp_path / "plan", None, print)
    assert time.perf_counter() - started < 120
    assert 1 << 20 < (tmp_path / "plan").stat().st_size < 1 << 26


def test_the_network_around_the_plugin_is_built(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of TensorRT-LLM, in float8, with the queries of every row in the plugin's place,
    which takes constants and inputs of the real network."""
    trt = load_library("tensorrt_rtx").module

    def queries(*, qkv, num_heads, hidden_size_per_head, **given):
        network = qkv.network.trt_network
        assert all(isinstance(given[name].trt_tensor, trt.ITensor) for name in ATTENTION)
        flat = Value(qkv.trt_tensor, "bfloat16", tuple(qkv.trt_tensor.shape))
        ops = Ops(load_library("tensorrt_rtx"), network)
        kept.append(ops)
        found = ops.part(flat, 0, num_heads * hidden_size_per_head, ops.num_rows(flat))
        return SimpleNamespace(trt_tensor=found.tensor), None

    class Builder:
        def __init__(self) -> None:
            self.trt_builder = trt.Builder(trt.Logger(trt.Logger.WARNING))

        def create_network(self) -> SimpleNamespace:
            flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
            network = self.trt_builder.create_network(flags)
            return SimpleNamespace(trt_network=network, plugin_config=SimpleNamespace())

    kept: list[Ops] = []
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    float8, _ = float8_layout_of(tiny_checkpoint)
    monkeypatch.setattr(stand_in, "gpt_attention", queries)
    monkeypatch.setattr(stand_in, "LlmBuilder", Builder)
    target = BuildTarget("tensorrt_llm", "float8", None, LLM_LIMITS)
    with stand_in.installed(tensorrt=as_release_10(trt), folder=tmp_path):
        build_llm_plan(config, target, tmp_path / "plan", float8.items(), print)
    assert len(kept) == config.num_layers and (tmp_path / "plan").stat().st_size > 1 << 14


@pytest.mark.parametrize(
    ("wanted", "refused"), [("9.0", "'9.0'"), ("8.9,banana", "'banana'"), ("8.9,", "''")]
)
def test_a_gpu_that_rtx_does_not_serve_is_refused(
    tmp_path: Path, wanted: str, refused: str
) -> None:
    """Before anything is done: the weights are not even asked for."""
    config = dataclasses.replace(PUBLISHED, num_shared_layers=1, num_modality_layers=1)
    target = BuildTarget("tensorrt_rtx", "float8", wanted, Limits(16, 64, 1, 64, 512))
    with pytest.raises(ConfigError, match=f"builds nothing for compute capability {refused}"):
        build_tensorrt_plan(config, target, tmp_path / "plan", None, print)
