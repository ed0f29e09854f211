"""Float8 (e4m3) weights, value = float8 * scale, in the two forms that runtimes multiply with.

The CUDA runtime has one float32 scale per output row. Engine files have one scale per matrix and
one for the matrix' inputs, both static: `X` float8, `X.weight_scale` and `X.input_scale` float32
[1], rounded up to bfloat16, in which engines multiply with them; heads and embedding tables stay
bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import Part, parts, stream_parts

LARGEST_FLOAT8 = 448.0
SCALES_NAME = "float8_scales.safetensors"
LARGEST_INPUTS_NAME = "float8_inputs.safetensors"


def row_scales(weight: Tensor) -> Tensor:
    """float32 [rows]: scales with which each row's largest value is float8's largest."""
    return (weight.float().abs().amax(1) / LARGEST_FLOAT8).clamp_min(1e-12)


def float8_values(weight: Tensor, scale: Tensor) -> Tensor:
    """float8 [rows, inputs]: the nearest values; what is beyond the largest becomes that."""
    return (
        (weight.float() / scale[:, None])
        .clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8)
        .to(torch.float8_e4m3fn)
    )


def load_scales(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Scales float32 [rows] of every linear weight by its name, as `scripts.quantize` chose them.
    Raises CheckpointError."""
    rows = {name: shape[:1] for name, shape in _linear_weights(config).items()}
    return _load_measured(folder, SCALES_NAME, rows, "use another --dtype")


def load_largest_inputs(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Largest input magnitude of every linear weight by its name: float32 scalars.

    Raises CheckpointError where calibration is missing.
    """
    ones = dict.fromkeys(_linear_weights(config), (1,))
    found = _load_measured(folder, LARGEST_INPUTS_NAME, ones, "build with --dtype bfloat16")
    for name, largest in found.items():
        if not 0 < float(largest) < torch.inf:
            raise CheckpointError(
                f"{folder / LARGEST_INPUTS_NAME} says {float(largest)} of {name}; run `python -m "
                f"scripts.quantize {folder}` again."
            )
    return {name: largest[0] for name, largest in found.items()}


def _linear_weights(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = expected_tensors(config).items()
    return {name: shape for name, shape in shapes if len(shape) == 2 and "embed" not in name}


def _load_measured(
    folder: Path, file_name: str, shapes: Mapping[str, tuple[int, ...]], otherwise: str
) -> dict[str, Tensor]:
    """Read a file that `scripts.quantize` has written; raises CheckpointError."""
    path = folder / file_name
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing; make it with `python -m scripts.quantize {folder}`, or "
            f"{otherwise}."
        )
    return load_tensors(path, shapes, dtype=torch.float32)


WEIGHT_SCALE, INPUT_SCALE = ".weight_scale", ".input_scale"


def is_float8(name: str, part: Part) -> bool:
    """Whether a part of the layout is kept as float8, as all matrices of the layers are."""
    return part.is_linear and name.startswith("layers.")


def entries_of(config: ModelConfig, dtype: str) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Name -> (dtype, shape) of every tensor of the layout in a number format, in network order."""
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, part in parts(config).items():
        if dtype != "float8":
            found[name] = getattr(torch, dtype), part.shape
        elif is_float8(name, part):
            found[name] = torch.float8_e4m3fn, part.shape
            found[name + WEIGHT_SCALE] = found[name + INPUT_SCALE] = torch.float32, (1,)
        else:
            found[name] = torch.bfloat16, part.shape
    return found


def stream_float8_parts(folder: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The layout's tensors; each float8 matrix is followed by its two scales.

    Raises CheckpointError.
    """
    largest = load_largest_inputs(folder, config)
    layout = parts(config)
    for name, tensor in stream_parts(folder, config, torch.bfloat16):
        if not is_float8(name, layout[name]):
            yield name, tensor
            continue
        scale = _scale_of(tensor.abs().amax().float())
        yield name, float8_values(tensor, scale)
        yield name + WEIGHT_SCALE, scale
        inputs = torch.stack([largest[source] for source in layout[name].sources])
        yield name + INPUT_SCALE, _scale_of(inputs.amax())


def _scale_of(largest: Tensor) -> Tensor:
    """float32 [1]: the scale from `largest` to float8's largest value, rounded up to bfloat16."""
    scale = (largest.float() / LARGEST_FLOAT8).clamp_min(1e-12).reshape(1)
    rounded = scale.bfloat16().float()
    step = torch.nextafter(
        rounded.bfloat16(), torch.full_like(rounded, torch.inf).bfloat16()
    ).float()
    return torch.where(rounded < scale, step, rounded)
