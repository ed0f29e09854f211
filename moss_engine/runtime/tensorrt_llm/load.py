"""A `TrtLlmRuntime` for the engine file of `--engine`."""

from __future__ import annotations

import math

import torch

from moss_engine.api.info import RuntimeInfo
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import parts, stream_parts
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_check import engine_requirements, open_engine
from moss_engine.runtime.engine_manifest import plan_digest
from moss_engine.runtime.memory import require_memory
from moss_engine.runtime.tensorrt.library import compute_capability, load_library
from moss_engine.runtime.tensorrt_llm.plugin import find_plugin, load_plugin
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime, pool_dtype, pool_shape


def load_trtllm_runtime(
    config: EngineConfig, limits: Limits, device: torch.device
) -> TrtLlmRuntime:
    """The runtime for the engine file of `--engine`.

    Raises MissingPackageError, EngineFileError with the field that differs, CheckpointError or
    ConfigError.
    """
    assert config.engine is not None
    library = load_library("tensorrt_llm")
    plugin = find_plugin(config.plugin)
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    wanted = engine_requirements(
        config, limits, library.version, compute_capability(library, device), plan_digest(plugin)[0]
    )
    manifest, plan = open_engine(config.engine, wanted)
    dtype = pool_dtype(manifest.dtype)
    weight_bytes = manifest.plan_bytes
    if manifest.weights == "bound":
        weight_bytes += (
            sum(math.prod(part.shape) for part in parts(model).values()) * dtype.itemsize
        )
    require_memory(device, weight_bytes, math.prod(pool_shape(model, limits)) * dtype.itemsize)
    load_plugin(plugin)
    weights = {}
    if manifest.weights == "bound":
        weights = {
            name: tensor.to(device)
            for name, tensor in stream_parts(config.checkpoint, model, dtype)
        }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    info = RuntimeInfo(
        "tensorrt_llm",
        library.version,
        name,
        manifest.dtype,
        config.checkpoint.resolve().name,
        manifest.plan_digest,
    )
    return TrtLlmRuntime(library, plan, manifest, model, limits, weights, info, device)
