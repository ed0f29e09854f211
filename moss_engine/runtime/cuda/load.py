"""A `CudaRuntime` out of a checkpoint folder, or with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.models.checkpoint import TiedHeads, expected_tensors, stream_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import load_scales
from moss_engine.models.layout import Bits
from moss_engine.runtime.base import Limits
from moss_engine.runtime.cuda.runtime import CudaRuntime
from moss_engine.runtime.cuda.weights import Float8, allocate, fill, fill_at_random, runtime_info

OLDEST_CAPABILITY, OLDEST_FLOAT8_CAPABILITY = (8, 0), (8, 9)


def load_cuda_runtime(
    folder: Path,
    limits: Limits,
    *,
    device: torch.device,
    dtype: torch.dtype,
    float8: Float8 = Float8.NONE,
    bits: Bits | None = None,
) -> CudaRuntime:
    """Load a checkpoint folder, one tensor at a time through host memory; the parts that `bits`
    names have 8 or 4, as they are stored or rounded plainly on their way.

    Raises CheckpointError, or ConfigError for a device or sizes that it cannot run.
    """
    _require_capability(device, float8)
    config = ModelConfig.from_file(folder / "config.json")
    scales = load_scales(folder, config) if float8 is not Float8.NONE else None
    weights, tied = allocate(config, dtype, device, float8, bits), TiedHeads(folder)

    def read() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream_tensors(
            folder,
            expected_tensors(config),
            dtype=dtype,
            keep_int8=bits is not None,
            keep_int4=bits is not None,
        ):
            tied.see(name, tensor)
            yield name, tensor

    fill(weights, config, read(), scales)
    tied.refuse()
    return CudaRuntime(config, limits, weights, runtime_info(weights, folder))


def make_random_runtime(
    config: ModelConfig,
    limits: Limits,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    float8: Float8 = Float8.NONE,
    bits: Bits | None = None,
) -> CudaRuntime:
    """A network with random weights made on the device: speed, memory and numerics do not depend on
    their values."""
    _require_capability(device, float8)
    weights = allocate(config, dtype, device, float8, bits)
    fill_at_random(weights, config, seed)
    return CudaRuntime(config, limits, weights, runtime_info(weights, f"random, seed {seed}"))


def _require_capability(device: torch.device, float8: Float8) -> None:
    capability = torch.cuda.get_device_capability(device)
    oldest = OLDEST_CAPABILITY if float8 is Float8.NONE else OLDEST_FLOAT8_CAPABILITY
    if capability < oldest:
        found, needed = (".".join(map(str, version)) for version in (capability, oldest))
        what, use = (
            ("the CUDA runtime", "--device cpu")
            if float8 is Float8.NONE
            else ("float8", "--dtype bfloat16")
        )
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found} and {what} needs "
            f"{needed}; use {use}."
        )
