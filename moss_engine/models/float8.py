"""Float8 (e4m3) linear weights with one float32 scale per output row: value = float8 * scale."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig

LARGEST_FLOAT8 = 448.0
SCALES_NAME = "float8_scales.safetensors"
LARGEST_INPUTS_NAME = "float8_inputs.safetensors"


def row_scales(weight: Tensor) -> Tensor:
    """float32 [rows]: scales with which each row's largest value is float8's largest."""
    return (weight.float().abs().amax(1) / LARGEST_FLOAT8).clamp_min(1e-12)


def float8_values(weight: Tensor, scale: Tensor) -> Tensor:
    """float8 [rows, inputs]: the nearest values, cut off at the largest."""
    return (
        (weight.float() / scale[:, None])
        .clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8)
        .to(torch.float8_e4m3fn)
    )


def load_scales(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Scales of every linear weight by its name, as `scripts.quantize` chose them. Raises
    CheckpointError."""
    path = folder / SCALES_NAME
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing; make it with `python -m scripts.quantize {folder}`, or use "
            "another --dtype."
        )
    shapes = {
        name: shape
        for name, shape in expected_tensors(config).items()
        if len(shape) == 2 and "embed" not in name
    }
    return load_tensors(
        path, {name: shape[:1] for name, shape in shapes.items()}, dtype=torch.float32
    )


def largest_inputs_path(folder: Path) -> Path:
    """Where `scripts.quantize` keeps the largest magnitude of every matrix' inputs."""
    return folder / LARGEST_INPUTS_NAME
