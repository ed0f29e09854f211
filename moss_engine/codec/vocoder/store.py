"""The folder of a vocoder: its configuration and its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.store import CONFIG_NAME, filled, is_trained, read_config, write
from moss_engine.codec.vocoder.activation import fold_activations
from moss_engine.codec.vocoder.bigvgan import build_generator, check_config, mel_spec_of
from moss_engine.codec.vocoder.cuda import FusedGenerator
from moss_engine.codec.vocoder.source_bigvgan import SourceBigVgan
from moss_engine.codec.vocoder.source_filter import SourceFilter

BIGVGAN_TYPE = "bigvgan"
SOURCE_TYPES: dict[str, type[nn.Module]] = {
    "source-filter": SourceFilter,
    "source-bigvgan": SourceBigVgan,
}
TYPES = (BIGVGAN_TYPE, *SOURCE_TYPES)
MOST = 1 << 16  # of any network that could be meant
INT8_MIN_VALUES = 16_384
"""Smaller weights stay float16."""


def vocoder_mel(folder: Path) -> MelSpec:
    """The mel that the folder's vocoder was trained on; CheckpointError for an unknown type."""
    config = read_config(folder)
    if config["type"] == BIGVGAN_TYPE:
        return mel_spec_of(config)
    check_source_config(config, folder)
    return MelSpec(**config["mel"])


def load_vocoder(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[nn.Module, dict[str, Any]]:
    """A generator in float32, ready to run but not to be trained, and its config.

    On a GPU a plain BigVGAN's activations are kernels of this program's own; raises
    MissingPackageError where Triton is absent.
    """
    config = read_config(folder)
    if config["type"] != BIGVGAN_TYPE:
        check_source_config(config, folder)
        network = filled(lambda: SOURCE_TYPES[config["type"]](**config["sizes"]), folder, device)
        fold_activations(network)
        return network.to(device), config
    check_config(config)
    generator = filled(lambda: build_generator(config, weight_norm=False), folder, device)
    if torch.device(device).type == "cuda":
        return FusedGenerator(generator), config
    fold_activations(generator)
    return generator, config


def check_source_config(config: Mapping[str, Any], folder: Path) -> None:
    """Raise CheckpointError, naming what is wrong, unless it is one that `save_source_vocoder`
    wrote."""
    kind = config["type"]
    if kind not in SOURCE_TYPES:
        raise CheckpointError(
            f"{folder} holds a vocoder of type {kind!r}; known are {', '.join(TYPES)}, so name "
            "another folder with --vocoder-folder."
        )
    names = {
        "sizes": SOURCE_TYPES[kind].SIZES,  # pyright: ignore
        "mel": [f.name for f in dataclasses.fields(MelSpec)],
    }
    wrong = [
        part
        for part, fields in names.items()
        if not isinstance(config.get(part), dict) or set(config[part]) != set(fields)
    ]
    sizes = config.get("sizes") if "sizes" not in wrong else {}
    wrong += [
        name
        for name, size in dict(sizes or {}).items()
        if type(size) is not int or not 0 < size <= MOST
    ]
    if not isinstance(config.get("gain"), (int, float)) or not 0 < config["gain"] < 100:
        wrong.append("gain")
    if "mel" not in wrong and MelSpec(**config["mel"]) != MOSS_MEL:
        wrong.append("mel (this type of vocoder has one mel)")
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export the vocoder again."
        )


def save_source_vocoder(
    folder: Path, kind: str, sizes: Mapping[str, int], gain: float, network: nn.Module, dtype: str
) -> None:
    """Write a generator that shapes pulses as "float32", "float16", or large weights as "int8"."""
    config = {"type": kind, "sizes": dict(sizes), "gain": gain, "mel": dataclasses.asdict(MOSS_MEL)}
    state = {n: t.float() for n, t in network.state_dict().items() if is_trained(n)}
    rows = [n for n, t in state.items() if t.dim() > 1 and t.numel() >= INT8_MIN_VALUES]
    rows = rows if dtype == "int8" else []
    exact = dtype == "float32"
    kept = {n: t if exact or n in rows else t.half() for n, t in state.items()}
    write(folder, config, kept, rows)
