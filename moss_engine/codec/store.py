"""Codec and vocoder folders: config.json and model.safetensors, read strictly and written for release."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.activation import fold_activations
from moss_engine.codec.base import MelSpec
from moss_engine.codec.bigvgan import build_generator, check_config
from moss_engine.codec.cuda_vocoder import FusedGenerator
from moss_engine.codec.fsq import FsqConfig, NanoFsq
from moss_engine.errors import CheckpointError
from moss_engine.models.checkpoint import FILE_NAME, load_tensors, save_tensors

CONFIG_NAME = "config.json"
FSQ_TYPE = "nano-fsq"
BIGVGAN_TYPE = "bigvgan"
INT8_MIN_VALUES = 16_384
"""Smaller matrices stay float16: their size does not matter and the quantiser's own projection is delicate."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json as a dict with a `type`; CheckpointError where it is missing or not JSON."""
    path = folder / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["type"]
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; download or export the checkpoint again.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no config with a type ({error!r}); export the checkpoint again.") from None
    return config


def load_fsq(folder: Path, device: torch.device | str = "cpu") -> NanoFsq:
    """The nano codec's networks in float32, ready to run."""
    config = fsq_config_of(read_config(folder), folder)
    return _filled(NanoFsq(config), folder, device)


def save_fsq(folder: Path, fsq: NanoFsq, *, int8: bool = True) -> None:
    """Write matrices as int8 rows and the rest as float16, or everything as float32."""
    config = {"type": FSQ_TYPE, **dataclasses.asdict(fsq.config)}
    tensors = {name: tensor.half() if int8 else tensor for name, tensor in fsq.state_dict().items()}
    rows = [name for name, tensor in tensors.items() if tensor.dim() == 2 and tensor.numel() >= INT8_MIN_VALUES]
    _write(folder, config, {**tensors, **{n: fsq.state_dict()[n].float() for n in rows}}, rows if int8 else [])


def load_vocoder(folder: Path, device: torch.device | str = "cpu") -> tuple[nn.Module, dict[str, Any]]:
    """A BigVGAN generator in float32, ready to run but not to be trained, and its config.

    On a GPU its activations are kernels of this program's own; raises MissingPackageError where Triton is absent.
    """
    config = read_config(folder)
    if config["type"] != BIGVGAN_TYPE:
        raise CheckpointError(f"{folder} holds a vocoder of type {config['type']!r}; only {BIGVGAN_TYPE!r} is known.")
    check_config(config)
    generator = _filled(build_generator(config, weight_norm=False), folder, device)
    if torch.device(device).type == "cuda":
        return FusedGenerator(generator), config
    fold_activations(generator)
    return generator, config


def save_vocoder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, half: bool = True) -> None:
    """Write a generator's tensors (without weight norm) as float16, or as float32."""
    kept = {name: tensor.half() if half else tensor.float() for name, tensor in tensors.items() if _is_trained(name)}
    _write(folder, {"type": BIGVGAN_TYPE, **config}, kept, [])


def fsq_config_of(config: Mapping[str, Any], folder: Path) -> FsqConfig:
    """FsqConfig of a config.json; CheckpointError names a missing or unknown field."""
    if config["type"] != FSQ_TYPE:
        raise CheckpointError(f"{folder} holds a codec of type {config['type']!r}; only {FSQ_TYPE!r} is known.")
    values = {key: value for key, value in config.items() if key != "type"}
    names = {f.name for f in dataclasses.fields(FsqConfig)}
    differing = sorted(names ^ values.keys())
    if differing:
        raise CheckpointError(f"{folder / CONFIG_NAME} lacks or has unknown {', '.join(differing)}; export it again.")
    wrong = sorted(key for key, value in values.items() if key != "mel" and not _fits(key, value))
    if wrong:
        raise CheckpointError(f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export it again.")
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    try:
        return FsqConfig(**{**values, **tuples, "mel": MelSpec(**values["mel"])})
    except TypeError as error:
        raise CheckpointError(f"{folder / CONFIG_NAME} has a wrong mel ({error}); export it again.") from None


def _fits(key: str, value: object) -> bool:
    if key in ("mel_mean", "mel_scale"):
        return isinstance(value, (int, float)) and value != 0
    counts = value if isinstance(value, list) and key in ("levels", "encoder_blocks", "decoder_blocks") else [value]
    return len(counts) > 0 and all(type(count) is int and count > 0 for count in counts)


def _filled(network: nn.Module, folder: Path, device: torch.device | str) -> Any:
    state = {name: tensor for name, tensor in network.state_dict().items() if _is_trained(name)}
    tensors = load_tensors(folder / FILE_NAME, {n: tuple(t.shape) for n, t in state.items()}, dtype=torch.float32)
    left_out = network.load_state_dict(tensors, strict=False).missing_keys
    assert not any(_is_trained(name) for name in left_out)
    return network.to(device).eval().requires_grad_(False)


def _is_trained(name: str) -> bool:
    """BigVGAN keeps its fixed resampling filters as buffers; they are computed, not stored."""
    return not name.endswith(".filter")


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], int8_names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / FILE_NAME, tensors, int8_names)
    (folder / CONFIG_NAME).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
