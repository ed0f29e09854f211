"""The builders' layout in float8: one scale per matrix, and one for the matrix' inputs.

Value = float8 * scale, with static scales: `X` float8 (e4m3), `X.weight_scale` and `X.input_scale`
float32 [1]. Scales are rounded up to bfloat16, in which engines multiply with them. Heads and
embedding tables stay bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import LARGEST_FLOAT8, largest_inputs_path
from moss_engine.models.layout import Part, parts, stream_parts

WEIGHT_SCALE, INPUT_SCALE = ".weight_scale", ".input_scale"


def is_float8(name: str, part: Part) -> bool:
    """Whether a part of the layout is kept as float8: the matrices of the layers."""
    return part.is_linear and name.startswith("layers.")


def stream_float8_parts(
    folder: Path, config: ModelConfig, names: list[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The layout's tensors (or the named ones); each float8 matrix is followed by its two scales.

    Raises CheckpointError.
    """
    largest = load_largest_inputs(folder, config)
    layout = parts(config)
    for name, tensor in stream_parts(folder, config, torch.bfloat16, names):
        if not is_float8(name, layout[name]):
            yield name, tensor
            continue
        scale = _scale_of(tensor.abs().amax().float())
        yield (
            name,
            (tensor.float() / scale)
            .clamp_(-LARGEST_FLOAT8, LARGEST_FLOAT8)
            .to(torch.float8_e4m3fn),
        )
        yield name + WEIGHT_SCALE, scale
        yield (
            name + INPUT_SCALE,
            _scale_of(torch.stack([largest[source] for source in layout[name].sources]).amax()),
        )


def load_largest_inputs(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Largest input magnitude of every layer matrix, by checkpoint name: float32 scalars.

    Raises CheckpointError where calibration is missing.
    """
    path = largest_inputs_path(folder)
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing; measure the inputs of every layer with `python -m "
            f"scripts.quantize {folder}`, or convert with --dtype bf16."
        )
    names = [
        source for name, part in parts(config).items() if part.is_linear for source in part.sources
    ]
    found = load_tensors(path, dict.fromkeys(names, (1,)), dtype=torch.float32)
    for name, largest in found.items():
        if not 0 < float(largest) < torch.inf:
            raise CheckpointError(
                f"{path} says {float(largest)} of {name}; run `python -m scripts.quantize "
                f"{folder}` again."
            )
    return {name: largest[0] for name, largest in found.items()}


def _scale_of(largest: Tensor) -> Tensor:
    """float32 [1]: the scale from `largest` to float8's largest value, rounded up to bfloat16."""
    scale = (largest.float() / LARGEST_FLOAT8).clamp_min(1e-12).reshape(1)
    rounded = scale.bfloat16().float()
    step = torch.nextafter(
        rounded.bfloat16(), torch.full_like(rounded, torch.inf).bfloat16()
    ).float()
    return torch.where(rounded < scale, step, rounded)
