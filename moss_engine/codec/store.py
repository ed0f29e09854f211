"""Folders of codec parts: config.json and model.safetensors, read strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.models.checkpoint import FILE_NAME, check_tensors, load_tensors, save_tensors
from moss_engine.models.tensor_file import read_header

CONFIG_NAME = "config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict with a `type`; raises CheckpointError if missing or invalid."""
    path = folder / CONFIG_NAME
    config = read_json(path, again="download or export the checkpoint again.")
    if not isinstance(config.get("type"), str):
        raise CheckpointError(f"{path} is no config with a type; export the checkpoint again.")
    return config


def filled(build: Callable[[], nn.Module], folder: Path, device: torch.device | str) -> Any:
    """The network of `build` with the folder's tensors in float32, on `device`, in inference mode.

    It is built without memory first: a configuration may ask for any size, and the file's header
    tells whether that is the one of its tensors. Raises CheckpointError.
    """
    with torch.device("meta"):
        sizes = build().state_dict()
    path = folder / FILE_NAME
    expected = {name: tuple(sizes[name].shape) for name in sizes if is_trained(name)}
    check_tensors(path, read_header(path), expected)
    network = build()
    state = {name: tensor for name, tensor in network.state_dict().items() if is_trained(name)}
    tensors = load_tensors(
        folder / FILE_NAME, {n: tuple(t.shape) for n, t in state.items()}, dtype=torch.float32
    )
    left_out = network.load_state_dict(tensors, strict=False).missing_keys
    assert not any(is_trained(name) for name in left_out)
    return network.to(device).eval().requires_grad_(False)


def is_trained(name: str) -> bool:
    """BigVGAN keeps its fixed resampling filters as buffers; they are computed, not stored."""
    return not name.endswith(".filter")


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], int8_names: list[str]
) -> None:
    """Write config.json and the tensors, those of `int8_names` as int8 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / FILE_NAME, tensors, int8_names)
    (folder / CONFIG_NAME).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
