"""What the tests of the TensorRT runtime share: an engine of a checkpoint, built and opened with
some library."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.export.target import BuildTarget
from moss_engine.export.tensorrt import build_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE, is_float8
from moss_engine.models.layout import parts, stream_parts
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.engine_manifest import EngineManifest
from moss_engine.runtime.tensorrt.library import Library, describe
from moss_engine.runtime.tensorrt.load import bound_weights
from moss_engine.runtime.tensorrt.runtime import TrtRuntime
from tests.runtime.tensorrt import trt_emulator, trt_emulator_old

EMULATOR = describe("tensorrt", trt_emulator)
OLD_EMULATOR = describe("tensorrt", trt_emulator_old)


def assert_large_values_pass(
    library: Library, folder: Path, limits: Limits, device: torch.device
) -> None:
    """A float16 engine with gated values beyond float16 gives nearly the logits of the emulated
    float32 one."""
    rows = tuple(Row(text, 3) for text in range(7, 27))
    batch = ScheduledBatch((ScheduledSequence(rows, 0, tuple(range(8)), True),))
    exact = make_runtime(
        EMULATOR, folder, limits, "float32", "bound", torch.device("cpu"), stretched=True
    )
    found = make_runtime(library, folder, limits, "float16", "bound", device, stretched=True)
    for wanted, logits in zip(exact.forward(batch), found.forward(batch), strict=True):
        assert (logits.cpu() - wanted).abs().max() < 0.02 * wanted.abs().max()


def manifest_of(library: Library, limits: Limits, dtype: str, weights: str) -> EngineManifest:
    return EngineManifest(
        backend=library.backend,
        checkpoint_digest="c",
        library_version=library.version,
        compute_capability="9.0",
        dtype=dtype,
        weights=weights,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_batch=limits.max_batch,
        max_step_rows=limits.max_step_rows,
        max_seq_len=limits.max_seq_len,
        plan_digest="p",
        plan_bytes=1,
    )


def layout_of(folder: Path, config: ModelConfig, dtype: str) -> dict[str, Tensor]:
    return dict(stream_parts(folder, config, getattr(torch, dtype)))


def float8_layout_of(
    folder: Path, config: ModelConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The layout with float8 matrices, for inputs of magnitudes up to 8, and what they stand for in
    float32."""
    float8: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    layout = parts(config)
    for name, tensor in layout_of(folder, config, "bfloat16").items():
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
    device: torch.device,
    *,
    stretched: bool = False,
) -> TrtRuntime:
    """Build and open an engine. `stretched` makes the first layer's gated values, and so the
    residual stream behind it, far larger than float16's 65504.
    """
    config = ModelConfig.from_file(folder / "config.json")
    layout = layout_of(folder, config, dtype)
    if stretched:
        layout["layers.0.gate_up"] *= 400
    return open_runtime(library, config, layout, limits, dtype, weights, device)


def open_runtime(
    library: Library,
    config: ModelConfig,
    layout: dict[str, Tensor],
    limits: Limits,
    dtype: str,
    weights: str,
    device: torch.device,
) -> TrtRuntime:
    target = BuildTarget(library.backend, weights, None, limits)
    plan = build_plan(
        library,
        config,
        dtype,
        target,
        layout.items() if weights == "baked" else None,
        lambda line: None,
        effort=0,
    )
    bound = bound_weights(library, dtype, layout.items(), device) if weights == "bound" else {}
    return TrtRuntime(
        library,
        plan,
        manifest_of(library, limits, dtype, weights),
        config,
        limits,
        bound,
        RuntimeInfo(library.backend, library.version, str(device), dtype, "test"),
        device,
    )
