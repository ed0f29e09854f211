"""What the tests of engine files share: engines of a checkpoint, built and opened with some
library, and a conversation with them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.export.tensorrt import BuildTarget, build_plan, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE, is_float8
from moss_engine.models.layout import parts, stream_parts
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits, Logits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.engine_manifest import PLAN_NAME, EngineManifest, write_engine_manifest
from moss_engine.runtime.tensorrt.engine import Library, describe
from moss_engine.runtime.tensorrt.runtime import EngineFile, TrtRuntime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime
from tests.runtime.tensorrt.stand_in import PLANS, TENSORRT, installed

CPU = torch.device("cpu")
STAND_IN = describe("tensorrt", TENSORRT)
LLM_STAND_IN = describe("tensorrt_llm", TENSORRT)
LLM_LIMITS = Limits(block_size=8, num_blocks=128, max_batch=6, max_step_rows=96, max_seq_len=512)
"""A block holds a power of two rows, at least 8."""


def layout_of(folder: Path, dtype: str) -> dict[str, Tensor]:
    config = ModelConfig.from_file(folder / "config.json")
    return dict(stream_parts(folder, config, getattr(torch, dtype)))


def float8_layout_of(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The layout with float8 matrices, for inputs of magnitudes up to 8, and what they stand for in
    float32."""
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
    limits: Limits,
    dtype: str,
    weights: str,
    device: torch.device = CPU,
) -> TrtRuntime:
    """Build and open an engine of TensorRT or TensorRT-RTX."""
    config, layout = ModelConfig.from_file(folder / "config.json"), layout_of(folder, dtype)
    return open_runtime(library, config, layout, limits, dtype, weights, device)


def open_runtime(
    library: Library,
    config: ModelConfig,
    layout: Mapping[str, Tensor],
    limits: Limits,
    dtype: str,
    weights: str,
    device: torch.device = CPU,
) -> TrtRuntime:
    target = BuildTarget(library.backend, dtype, weights, None, limits, effort=0)
    baked = layout.items() if weights == "baked" else None
    plan = build_plan(library, config, target, baked, lambda line: None)
    made_of = (library.backend, "none", library.version, "8.9", dtype, weights)
    manifest = EngineManifest(*made_of, **dataclasses.asdict(limits), plan_digest="p", plan_bytes=1)
    return TrtRuntime(engine_file(library, plan, manifest, config, layout, limits, device))


def engine_file(
    library: Library,
    plan: object,
    manifest: EngineManifest,
    config: ModelConfig,
    layout: Mapping[str, Tensor],
    limits: Limits,
    device: torch.device,
) -> EngineFile:
    is_bound = manifest.weights == "bound"
    bound = {name: tensor.to(device) for name, tensor in layout.items()} if is_bound else {}
    info = RuntimeInfo(library.backend, library.version, str(device), manifest.dtype, "test")
    return EngineFile(library, plan, manifest, config, limits, bound, info, device)


def make_llm_runtime(
    folder: Path,
    out: Path,
    dtype: str = "float32",
    weights: str = "baked",
    device: torch.device = CPU,
    layout: Mapping[str, Tensor] | None = None,
    limits: Limits = LLM_LIMITS,
) -> TrtLlmRuntime:
    """Build and open an engine of TensorRT-LLM, with a pool that the plugin may touch."""
    config = ModelConfig.from_file(folder / "config.json")
    layout = layout or layout_of(folder, dtype)
    target = BuildTarget("tensorrt_llm", dtype, weights, None, limits)
    baked = layout.items() if weights == "baked" else None
    with installed(folder=out):
        path = out / PLAN_NAME
        manifest = build_llm_plan(config, target, path, baked, lambda line: None)
    plan = path.read_bytes()
    file = engine_file(LLM_STAND_IN, plan, manifest, config, layout, limits, device)
    runtime = TrtLlmRuntime(file)
    give_pool(runtime, plan)
    return runtime


def give_pool(runtime: TrtLlmRuntime, plan: bytes) -> None:
    plugin = PLANS[plan].plugin
    assert plugin is not None
    plugin.memory.append(runtime._pool)


def build_folder(
    backend: str, checkpoint: Path, folder: Path, limits: Limits, weights: str = "bound"
) -> Path:
    """A float32 engine folder, as the build command leaves it."""
    config = ModelConfig.from_file(checkpoint / "config.json")
    target = BuildTarget(backend, "float32", weights, None, limits, checkpoint_digest(checkpoint))
    baked = layout_of(checkpoint, "float32").items() if weights == "baked" else None
    folder.mkdir(exist_ok=True)
    build = build_llm_plan if backend == "tensorrt_llm" else build_tensorrt_plan
    with installed(folder=folder.parent):
        manifest = build(config, target, folder / PLAN_NAME, baked, lambda line: None)
    write_engine_manifest(folder, manifest)
    return folder


def prefill(runtime: Runtime, num_rows: int = 20) -> Logits:
    """Logits of the last of some rows."""
    rows = tuple(Row(text, 3) for text in range(7, 7 + num_rows))
    return runtime.forward(ScheduledBatch((ScheduledSequence(rows, 0, (5, 1, 7, 0, 3), True),)))


def conversation(runtime: Runtime) -> list[Logits]:
    """A chunked prompt, decoding, a second turn, mixed steps, tables out of order: what a serving
    day has."""
    chance = random.Random(5)
    rows = [
        [Row(chance.randrange(7, 40), chance.randrange(8)) for _ in range(30)] for _ in range(2)
    ]
    tables = [(9, 2, 77, 30, 5, 61, 14, 3), (50, 4, 8, 100, 21, 66, 7, 12)]
    steps = [
        [(0, 0, 8, False)],
        [(0, 8, 14)],
        [(0, 14, 15), (1, 0, 10)],
        [(1, 10, 11), (0, 15, 16)],
        [(0, 16, 17), (1, 11, 21)],
        [(1, 21, 22), (0, 17, 18)],
    ]
    found = []
    for step in steps:
        sequences = [
            ScheduledSequence(tuple(rows[which][start:end]), start, tables[which], not unsampled)
            for which, start, end, *unsampled in step
        ]
        logits = runtime.forward(ScheduledBatch(tuple(sequences)))
        found.append(Logits(logits.text.cpu().clone(), logits.audio.cpu().clone()))
    return found


def agrees(found: list[Logits], expected: list[Logits]) -> bool:
    return all(
        torch.allclose(one, other, rtol=0, atol=2e-5)
        for ours, theirs in zip(found, expected, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
