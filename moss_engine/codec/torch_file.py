"""State dicts saved by torch (`*.pt`): no code in them is run, every name is checked."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import require_regular

TRAINING_ENTRIES = ("epoch", "step")
"""Numbers that a training run leaves beside its tensors."""
_NAMED = 4


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file, on the CPU; raises CheckpointError.

    `epoch` and `step` are skipped; any other value that is no tensor is an error.
    """
    try:
        require_regular(path)
        # files of PyTorch before 1.6 are no archives, and cannot be mapped into memory
        state = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; fetch the codec again.") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} holds no tensors ({type(error).__name__}); fetch the codec again."
        ) from None
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path} holds no named tensors; fetch the codec again.")
    tensors = {name: value for name, value in state.items() if name not in TRAINING_ENTRIES}
    strange = [str(name) for name, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path} holds {_list(strange)}, which are no tensors; fetch the codec again."
        )
    return tensors


def check_tensors(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Raise CheckpointError unless `tensors` has exactly these names and shapes, all finite."""
    missing = [name for name in shapes if name not in tensors]
    extra = [name for name in tensors if name not in shapes]
    wrong = [
        f"{name} {tuple(tensors[name].shape)} instead of {shape}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    wrong += [
        f"{name} of type {tensor.dtype}"
        for name, tensor in tensors.items()
        if not tensor.is_floating_point()
    ]
    if not (missing or extra or wrong):
        wrong = [
            f"NaN or infinite values in {name}"
            for name, tensor in tensors.items()
            if not bool(tensor.isfinite().all())
        ]
    for what, names in (("lacks", missing), ("has unknown", extra), ("has", wrong)):
        if names:
            raise CheckpointError(
                f"{path} {what} {_list(names)}; it belongs to another model or is damaged: "
                "fetch the codec again."
            )


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
