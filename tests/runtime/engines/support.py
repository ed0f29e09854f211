"""What the tests of engine files share: engines of a checkpoint, built and opened with some
library."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE, is_float8
from moss_engine.models.layout import parts, stream_parts
from moss_engine.runtime.base import Limits, Logits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import PLAN_NAME
from moss_engine.runtime.tensorrt.engine import Library, describe
from moss_engine.runtime.tensorrt.runtime import EngineFile, EngineRuntime, TrtRuntime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime
from tests.runtime.engines.stand_in import TENSORRT, installed

CPU = torch.device("cpu")
STAND_IN = describe("tensorrt", TENSORRT)
LLM_STAND_IN = describe("tensorrt_llm", TENSORRT)
LLM_LIMITS = Limits(block_size=8, num_blocks=128, max_batch=6, max_step_rows=96, max_seq_len=512)
"""A block holds a power of two rows, at least 8."""


def layout_of(folder: Path, dtype: str) -> dict[str, Tensor]:
    config = ModelConfig.from_file(folder / "config.json")
    return dict(stream_parts(folder, config, getattr(torch, dtype)))


def float8_layout_of(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The layout with float8 matrices, for inputs of magnitudes up to 8, and the values that it
    stands for in float32."""
    float8: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    layout = parts(ModelConfig.from_file(folder / "config.json"))
    for name, tensor in layout_of(folder, "bfloat16").items():
        float8[name], exact[name] = tensor, tensor.float()
        if is_float8(name, layout[name]):
            scale = torch.full((1,), 2.0**-9)
            float8 |= {
                name: (tensor / scale).to(torch.float8_e4m3fn),
                name + WEIGHT_SCALE: scale,
                name + INPUT_SCALE: torch.full((1,), 2.0**-6),
            }
            exact[name] = float8[name].float() * scale
    return float8, exact


def make_runtime(
    library: Library,
    folder: Path,
    limits: Limits = LLM_LIMITS,
    dtype: str = "float32",
    device: torch.device = CPU,
    layout: Mapping[str, Tensor] | None = None,
) -> EngineRuntime:
    """Build and open an engine of a checkpoint, or with other weights."""
    config = ModelConfig.from_file(folder / "config.json")
    is_llm, is_bound = library.backend == "tensorrt_llm", dtype != "float8"
    layout = layout or (layout_of(folder, dtype) if is_bound else float8_layout_of(folder)[0])
    target = BuildTarget(library.backend, dtype, None, limits, effort=0)
    build = build_llm_plan if is_llm else build_tensorrt_plan
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / PLAN_NAME
        if library.module is TENSORRT:
            stack.enter_context(installed(folder=path.parent))
        weights = None if is_bound else layout.items()
        manifest = build(config, target, path, weights, lambda line: None)
        plan = path.read_bytes()
    bound = {name: tensor.to(device) for name, tensor in layout.items()} if is_bound else {}
    info = RuntimeInfo(library.backend, library.version, str(device), dtype, "test")
    file = EngineFile(library, plan, manifest, config, limits, bound, info, device)
    return TrtLlmRuntime(file) if is_llm else TrtRuntime(file)


def prefill(runtime: Runtime) -> Logits:
    """Logits of the last of some rows."""
    rows = tuple(Row(text, 3) for text in range(7, 27))
    return runtime.forward(ScheduledBatch((ScheduledSequence(rows, 0, (5, 1, 7, 0, 3), True),)))


def torch_runtime(folder: Path, limits: Limits) -> Runtime:
    return load_torch_runtime(folder, limits, device=CPU, dtype=torch.float32, threads=1)


def assert_agrees(
    runtime: EngineRuntime, folder: Path, ends: tuple[int, ...] = (9, 10, 20)
) -> None:
    """Run a sequence up to each of these rows; its logits must be the torch runtime's."""
    reference, start = torch_runtime(folder, runtime.limits), 0
    rows, table = tuple(Row(7 + i, i) for i in range(20)), (5, 1, 7, 0, 3)
    for end in ends:
        batch = ScheduledBatch((ScheduledSequence(rows[start:end], start, table, True),))
        for ours, theirs in zip(runtime.forward(batch), reference.forward(batch), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
        start = end
