"""Builds engine files of plain TensorRT and TensorRT-RTX."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.export.network import Network
from moss_engine.export.ops import Ops, Value
from moss_engine.export.target import BuildTarget, BuiltPlan, Report
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.tensorrt.library import Library, compute_capability, load_library
from moss_engine.runtime.tensorrt.part_tensors import (
    EMBED,
    HEADS,
    PARTS,
    join_plans,
    layers_at_a_time,
    part_inputs,
    part_profile_shapes,
)
from moss_engine.runtime.tensorrt.tensors import (
    FLOAT8,
    ROTARY,
    io_dtype_of,
    profile_shapes,
    profiles,
    rotary_table,
    step_inputs,
    weight_inputs,
)

EFFORT = 3


def build_tensorrt_plan(
    config: ModelConfig,
    dtype: str,
    target: BuildTarget,
    path: Path,
    weights: Iterable[tuple[str, Tensor]] | None,
    report: Report,
    *,
    effort: int = EFFORT,
) -> BuiltPlan:
    """Write a plan to `path`.

    dtype: float32, float16, bfloat16 or float8. weights: None for target.weights "bound", else the
    layout's tensors by name in this dtype on the CPU. Raises MissingPackageError without the
    library, and ConfigError for what it cannot build.
    """
    library = load_library(target.backend)
    capability = _capability(library, target)
    started = time.perf_counter()
    plan = build_plan(library, config, dtype, target, weights, report, effort=effort)
    built_s = time.perf_counter() - started
    report(f"writing {plan.nbytes / 1e6:.1f} MB")
    with path.open("wb") as file:
        file.write(plan)
    return BuiltPlan(
        library.version,
        capability,
        notes={"build_s": round(built_s, 2), "plan_mb": plan.nbytes / 1e6},
    )


def build_plan(
    library: Library,
    config: ModelConfig,
    dtype: str,
    target: BuildTarget,
    weights: Iterable[tuple[str, Tensor]] | None,
    report: Report,
    *,
    effort: int = EFFORT,
) -> Any:
    """The plan as the library's memory object. `effort` is the builder's optimisation level, 0 to
    5."""
    _refuse(library, dtype, target)
    assert (weights is None) == (target.weights == "bound"), (
        "weights are given to be baked, and only then"
    )
    io_dtype = io_dtype_of(dtype, wide=library.wide_io)
    if weights is None:
        plans = {
            part: bytes(_build_part(library, part, config, dtype, io_dtype, target, report, effort))
            for part in PARTS
        }
        return memoryview(join_plans(plans))
    builder, network = _start(library)
    ops = Ops(library, network)
    report(f"defining {config.num_layers} layers")
    values = _constants(ops, config, target, weights)
    specs = weight_inputs(config, target.limits.max_seq_len, dtype)
    assert values.keys() == specs.keys() and all(
        values[name].shape == spec.shape for name, spec in specs.items()
    )
    specs = step_inputs(config, target.limits.block_size, io_dtype)
    inputs = {name: ops.input(name, spec) for name, spec in specs.items()}
    Network(ops, config, dtype, io_dtype, inputs, values.__getitem__).define()
    shapes = [profile_shapes(profile, config, target.limits) for profile in profiles(target.limits)]
    return _build(library, builder, network, shapes, target, dtype, dtype, report, effort)


def _refuse(library: Library, dtype: str, target: BuildTarget) -> None:
    if dtype == FLOAT8 and target.weights == "bound":
        raise ConfigError(
            "float8 weights cannot be bound, as TensorRT wants their scales when it builds; use "
            "--weights baked, or convert with --dtype bf16."
        )
    if dtype not in library.dtypes:
        raise ConfigError(
            f"{target.backend} {library.version} has no {dtype}; convert the checkpoint with one "
            f"of {', '.join(library.dtypes)}."
        )


def _build_part(
    library: Library,
    part: str,
    config: ModelConfig,
    dtype: str,
    io_dtype: str,
    target: BuildTarget,
    report: Report,
    effort: int,
) -> Any:
    """The plan of one part of an engine with bound weights."""
    builder, network = _start(library)
    ops, transposed = Ops(library, network), library.wide_io
    specs = part_inputs(
        part,
        config,
        target.limits.block_size,
        target.limits.max_seq_len,
        io_dtype,
        transposed=transposed,
    )
    values = {name: ops.input(name, spec) for name, spec in specs.items()}
    made = Network(
        ops, config, io_dtype, io_dtype, values, values.__getitem__, transposed=transposed
    )
    report(f"defining the {part}")
    if part == EMBED:
        made.define_embed()
    elif part == HEADS:
        made.define_heads()
    else:
        made.define_layers(layers_at_a_time(config))
    shapes = [
        part_profile_shapes(specs, profile, config, target.limits)
        for profile in profiles(target.limits)
    ]
    return _build(library, builder, network, shapes, target, dtype, io_dtype, report, effort)


def _start(library: Library) -> tuple[Any, Any]:
    builder = library.module.Builder(library.logger())
    return builder, builder.create_network(_network_flags(library))


def _build(
    library: Library,
    builder: Any,
    network: Any,
    shapes: list[dict[str, list[tuple[int, ...]]]],
    target: BuildTarget,
    dtype: str,
    inside: str,
    report: Report,
    effort: int,
) -> Any:
    """dtype: of the engine; inside: of its weights. `shapes` are those of every profile."""
    settings = _settings(library, builder, target, inside, effort)
    if dtype == "float32":
        settings.clear_flag(library.module.BuilderFlag.TF32)
    for profile in shapes:
        made = builder.create_optimization_profile()
        for name, sizes in profile.items():
            made.set_shape(name, *sizes)
        settings.add_optimization_profile(made)
    report(
        f"building for {target.compute_capability or 'this GPU'} with {library.backend} "
        f"{library.version}"
    )
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise ConfigError(
            f"{target.backend} {library.version} could not build the network (its messages are "
            "above); build with smaller --max-step-rows, --max-sessions or --kv-rows, or convert "
            "with another --dtype."
        )
    return plan


def _network_flags(library: Library) -> int:
    flags = library.module.NetworkDefinitionCreationFlag
    if library.strongly_typed:
        return 1 << int(flags.STRONGLY_TYPED)
    return 1 << int(flags.EXPLICIT_BATCH)


def _settings(library: Library, builder: Any, target: BuildTarget, dtype: str, effort: int) -> Any:
    trt = library.module
    settings = builder.create_builder_config()
    settings.builder_optimization_level = effort
    if not library.strongly_typed:
        settings.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        if dtype == "float16":
            settings.set_flag(trt.BuilderFlag.FP16)
    if library.release < (10, 0) and library.backend == "tensorrt":
        settings.set_tactic_sources(
            0
        )  # the library's own kernels: cuBLAS 12 and cuDNN 8 need not be there
    if library.backend == "tensorrt_rtx" and target.compute_capability is not None:
        wanted = target.compute_capability.split(",")
        settings.num_compute_capabilities = len(wanted)
        for i, capability in enumerate(wanted):
            settings.set_compute_capability(getattr(trt.ComputeCapability, _name_of(capability)), i)
    return settings


def _capability(library: Library, target: BuildTarget) -> str:
    """What the plan will be for; raises ConfigError where that cannot be built here."""
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


def _constants(
    ops: Ops, config: ModelConfig, target: BuildTarget, weights: Iterable[tuple[str, Tensor]]
) -> dict[str, Value]:
    rotary = rotary_table(config, target.limits.max_seq_len, torch.device("cpu"))
    return {ROTARY: ops.weight(rotary), **{name: ops.weight(tensor) for name, tensor in weights}}
