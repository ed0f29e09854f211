"""Builds engine files of TensorRT, TensorRT-RTX and TensorRT-LLM."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.export.network import Network, Ops, PagedAttention, Value
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import EngineManifest
from moss_engine.runtime.tensorrt.engine import Library, compute_capability, load_library
from moss_engine.runtime.tensorrt.tensors import (
    EMBED,
    HEADS,
    HIDDEN,
    PARTS,
    ROTARY,
    WHOLE,
    EngineTensors,
    join_plans,
    profiles,
    rotary_table,
    weight_specs,
)

EFFORT = 3
Report = Callable[[str], None]
"""Called with a line that says what is being done now."""
Weights = Iterable[tuple[str, Tensor]]
"""The layout's tensors by name, in the engine's number format, on the CPU."""


@dataclass(frozen=True)
class BuildTarget:
    """What to build. `dtype` is float32, bfloat16 or float8; `compute_capability` is such as "8.9"
    or "8.6,8.9", or None for this machine's GPU; `checkpoint_digest` is the checkpoint's; `effort`
    is the builder's optimisation level, 0 to 5."""

    backend: str
    dtype: str
    compute_capability: str | None
    limits: Limits
    checkpoint_digest: str = "none"
    effort: int = EFFORT


def build_tensorrt_plan(
    config: ModelConfig, target: BuildTarget, path: Path, weights: Weights | None, report: Report
) -> EngineManifest:
    """Write a plan of TensorRT or TensorRT-RTX to `path`; returns what its manifest will say.

    `weights` are the float8 ones, None for any other format. Raises MissingPackageError without the
    library, and ConfigError for what it cannot build.
    """
    library = load_library(target.backend)
    capability = capability_of(library, target)
    plan = build_plan(library, config, target, weights, report)
    return write_plan(path, plan, library, capability, target, report)


def write_plan(
    path: Path,
    plan: Any,
    library: Library,
    capability: str,
    target: BuildTarget,
    report: Report,
    plugin_digest: str = "",
) -> EngineManifest:
    """Write a finished plan to a file; returns what the manifest will say of it."""
    report(f"writing {plan.nbytes / 1e6:.1f} MB")
    with path.open("wb") as file:
        file.write(plan)
    return EngineManifest(
        backend=target.backend,
        checkpoint_digest=target.checkpoint_digest,
        library_version=library.version,
        compute_capability=capability,
        dtype=target.dtype,
        limits=target.limits,
        plan_digest=hashlib.sha256(plan).hexdigest(),
        plan_bytes=plan.nbytes,
        plugin_digest=plugin_digest,
    )


def build_plan(
    library: Library,
    config: ModelConfig,
    target: BuildTarget,
    weights: Weights | None,
    report: Report,
) -> Any:
    """The plan as the library's memory object."""
    tensors = EngineTensors(config, target.limits, target.dtype)
    assert (weights is None) == tensors.is_bound, "weights are given to be part of the plan"

    def build(part: str) -> Any:
        return _build_part(library, part, tensors, target, weights, report)

    if weights is not None:
        return build(WHOLE)
    return memoryview(join_plans({part: bytes(build(part)) for part in PARTS}))


def _build_part(
    library: Library,
    part: str,
    tensors: EngineTensors,
    target: BuildTarget,
    weights: Weights | None,
    report: Report,
) -> Any:
    """The plan of the whole network with its weights, or of a part without them."""
    flags = library.module.NetworkDefinitionCreationFlag
    builder = library.module.Builder(library.logger())
    network = builder.create_network(1 << int(flags.STRONGLY_TYPED))
    ops = Ops(library, network)
    report(f"defining {'the network' if part == WHOLE else part}")
    values = {} if weights is None else constants(ops, tensors, weights)
    inputs = {name: ops.input(name, spec) for name, spec in tensors.inputs(part).items()}
    values |= inputs
    made = Network(ops, tensors, values.__getitem__)
    if part == EMBED:
        made.define_embed(inputs)
    elif part == HEADS:
        made.define_heads(inputs)
    else:
        sized = inputs["ids" if part == WHOLE else HIDDEN]
        attention = PagedAttention(ops, tensors, inputs, values[ROTARY], sized)
        if part == WHOLE:
            made.define(inputs, attention)
        else:
            made.define_layers(inputs, tensors.layers_at_a_time, attention)
        attention.output_new_kv()
    shapes = [tensors.profile_shapes(part, profile) for profile in profiles(target.limits)]
    settings = _settings(library, builder, target)
    if tensors.dtype == "float32":
        settings.clear_flag(library.module.BuilderFlag.TF32)
    return serialize(library, builder, network, settings, shapes, target, report)


def constants(ops: Ops, tensors: EngineTensors, weights: Weights) -> dict[str, Value]:
    """The weights of an engine that holds them, and the rotary table."""
    rotary = rotary_table(tensors.config, tensors.limits.max_seq_len, torch.device("cpu"))
    values = {ROTARY: ops.weight(rotary), **{name: ops.weight(value) for name, value in weights}}
    specs = weight_specs(tensors.config, tensors.limits, tensors.dtype)
    assert {name: spec.shape for name, spec in specs.items()} == {
        name: value.shape for name, value in values.items()
    }
    return values


def serialize(
    library: Library,
    builder: Any,
    network: Any,
    settings: Any,
    profile_shapes: Iterable[Mapping[str, list[tuple[int, ...]]]],
    target: BuildTarget,
    report: Report,
) -> Any:
    """Build the network for these profiles: smallest, usual and largest shape of its open inputs.
    Raises ConfigError where the library gives no plan."""
    for shapes in profile_shapes:
        profile = builder.create_optimization_profile()
        for name, sizes in shapes.items():
            profile.set_shape(name, *sizes)
        settings.add_optimization_profile(profile)
    report(
        f"building for {target.compute_capability or 'this GPU'} with {library.backend} "
        f"{library.version}"
    )
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise ConfigError(
            f"{target.backend} {library.version} could not build the network (its messages are "
            "above); build with smaller --max-step-rows, --max-sessions or --kv-rows, or with "
            "another --dtype."
        )
    return plan


def _settings(library: Library, builder: Any, target: BuildTarget) -> Any:
    trt = library.module
    settings = builder.create_builder_config()
    settings.builder_optimization_level = target.effort
    if library.backend == "tensorrt_rtx" and target.compute_capability is not None:
        wanted = target.compute_capability.split(",")
        settings.num_compute_capabilities = len(wanted)
        for i, capability in enumerate(wanted):
            settings.set_compute_capability(getattr(trt.ComputeCapability, _name_of(capability)), i)
    return settings


def capability_of(library: Library, target: BuildTarget) -> str:
    """The compute capability of the plan; raises ConfigError if that cannot be built here."""
    if library.backend == "tensorrt_rtx" and target.compute_capability is not None:
        for capability in target.compute_capability.split(","):
            if not hasattr(library.module.ComputeCapability, _name_of(capability)):
                raise ConfigError(
                    f"TensorRT-RTX {library.version} builds nothing for compute capability "
                    f"{capability!r}; choose 7.5, 8.0, 8.6, 8.9 or 12.0, several joined by commas, "
                    "or --backend tensorrt."
                )
        return target.compute_capability
    if not torch.cuda.is_available():
        raise ConfigError(
            f"{target.backend} builds on the GPU that the engine is for, and there is none here; "
            "build there, or use --backend tensorrt_rtx with --compute-capability."
        )
    found = compute_capability(library, torch.device("cuda"))
    if target.compute_capability not in (None, found):
        raise ConfigError(
            f"{target.backend} builds for this machine's GPU only, which has compute capability "
            f"{found} and not {target.compute_capability}; build on the other GPU, or omit "
            "--compute-capability."
        )
    return found


def _name_of(capability: str) -> str:
    """What TensorRT-RTX calls a compute capability like 8.9."""
    return f"SM{capability.replace('.', '')}"
