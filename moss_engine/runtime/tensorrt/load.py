"""A `TrtRuntime` for the engine file of `--engine`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import stream_parts
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_check import engine_requirements, open_engine
from moss_engine.runtime.memory import require_memory
from moss_engine.runtime.tensorrt.library import Library, compute_capability, load_library
from moss_engine.runtime.tensorrt.part_tensors import bound_weight
from moss_engine.runtime.tensorrt.runtime import TrtRuntime
from moss_engine.runtime.tensorrt.tensors import base_dtype, io_dtype_of, pool_shape, weight_inputs


def load_trt_runtime(config: EngineConfig, limits: Limits, device: torch.device) -> TrtRuntime:
    """The runtime of `--runtime tensorrt` and `tensorrt_rtx` for the engine file of `--engine`.

    Raises MissingPackageError, EngineFileError with the field that differs, CheckpointError or
    ConfigError.
    """
    library = load_library(config.runtime)
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    assert config.engine is not None
    manifest, plan = open_engine(
        config.engine,
        engine_requirements(config, limits, library.version, compute_capability(library, device)),
    )
    io_dtype = io_dtype_of(manifest.dtype, wide=library.wide_io)
    torch_dtype = getattr(torch, io_dtype)
    specs = weight_inputs(
        model, manifest.max_seq_len, io_dtype if manifest.weights == "bound" else manifest.dtype
    )
    weight_bytes = sum(
        torch.Size(spec.shape).numel() * getattr(torch, spec.dtype).itemsize
        for spec in specs.values()
    )
    require_memory(
        device, weight_bytes, torch.Size(pool_shape(model, limits)).numel() * torch_dtype.itemsize
    )
    weights = {}
    if manifest.weights == "bound":
        rounded = stream_parts(config.checkpoint, model, getattr(torch, base_dtype(manifest.dtype)))
        weights = bound_weights(library, manifest.dtype, rounded, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    info = RuntimeInfo(
        library.backend,
        library.version,
        name,
        manifest.dtype,
        config.checkpoint.resolve().name,
        manifest.plan_digest,
    )
    return TrtRuntime(library, plan, manifest, model, limits, weights, info, device)


def bound_weights(
    library: Library, dtype: str, layout: Iterable[tuple[str, Tensor]], device: torch.device
) -> dict[str, Tensor]:
    """The layout's tensors as an engine of this dtype reads them: where nothing has to change, they
    are not copied and may serve another runtime too.
    """
    torch_dtype = getattr(torch, io_dtype_of(dtype, wide=library.wide_io))
    return {
        name: bound_weight(name, tensor.to(device), torch_dtype, transposed=library.wide_io)
        for name, tensor in layout
    }
