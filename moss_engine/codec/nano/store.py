"""The folder of the built-in voice's codec: its configuration and its networks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MelSpec
from moss_engine.codec.nano.fsq import FsqConfig, NanoFsq
from moss_engine.codec.store import CONFIG_NAME, filled, read_config, write

FSQ_TYPE = "nano-fsq"
MOST, MOST_BLOCKS = 1 << 16, 256  # of any network that could be meant
INT8_MIN_VALUES = 16_384
"""Smaller matrices stay float16: the quantiser's own projection is delicate."""


def load_fsq(folder: Path, device: torch.device | str = "cpu") -> NanoFsq:
    """The nano codec's networks in float32, ready to run; raises CheckpointError."""
    config = fsq_config_of(read_config(folder), folder)
    return filled(lambda: NanoFsq(config), folder, device)


def save_fsq(folder: Path, fsq: NanoFsq, *, int8: bool = True) -> None:
    """Write matrices as int8 rows and the rest as float16, or everything as float32."""
    config = {"type": FSQ_TYPE, **dataclasses.asdict(fsq.config)}
    tensors = {name: tensor.half() if int8 else tensor for name, tensor in fsq.state_dict().items()}
    rows = [
        name
        for name, tensor in tensors.items()
        if tensor.dim() == 2 and tensor.numel() >= INT8_MIN_VALUES
    ]
    write(
        folder,
        config,
        {**tensors, **{n: fsq.state_dict()[n].float() for n in rows}},
        rows if int8 else [],
    )


def fsq_config_of(config: Mapping[str, Any], folder: Path) -> FsqConfig:
    """FsqConfig of a config.json; CheckpointError names a missing or unknown field."""
    if config["type"] != FSQ_TYPE:
        raise CheckpointError(
            f"{folder} holds a codec of type {config['type']!r}; name a folder of one of type "
            f"{FSQ_TYPE!r}."
        )
    values = {key: value for key, value in config.items() if key != "type"}
    names = {f.name for f in dataclasses.fields(FsqConfig)}
    differing = sorted(names ^ values.keys())
    if differing:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} lacks or has unknown {', '.join(differing)}; export it again."
        )
    wrong = sorted(key for key, value in values.items() if key != "mel" and not _fits(key, value))
    mel = values["mel"] if isinstance(values["mel"], dict) else {}
    wrong += [f"mel.{key}" for key, value in sorted(mel.items()) if not _fits_mel(key, value)]
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export it again."
        )
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    try:
        return FsqConfig(**{**values, **tuples, "mel": MelSpec(**values["mel"])})
    except TypeError as error:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has a wrong mel ({error}); export it again."
        ) from None


def _fits_mel(key: str, value: object) -> bool:
    if key in ("fmin_hz", "fmax_hz"):
        return isinstance(value, (int, float)) and 0 <= value <= MOST
    return type(value) is int and 0 < value <= MOST


def _fits(key: str, value: object) -> bool:
    if key in ("mel_mean", "mel_scale"):
        return isinstance(value, (int, float)) and math.isfinite(value) and value != 0
    counts = (
        value
        if isinstance(value, list) and key in ("levels", "encoder_blocks", "decoder_blocks")
        else [value]
    )
    most = MOST_BLOCKS if key.endswith("_blocks") else MOST
    return 0 < len(counts) <= MOST_BLOCKS and all(
        type(count) is int and 0 < count <= most for count in counts
    )
