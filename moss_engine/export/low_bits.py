"""A checkpoint folder in 8 or 4 bits: how each part is rounded, and the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.models.checkpoint import (
    FILE_NAME,
    INDEX_NAME,
    SCALE_SUFFIX,
    expected_tensors,
    read_index,
    stream_tensors,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import (
    HEADS_BITS,
    Bits,
    part_of,
    parts_of,
    require_sizes,
    stored_bits,
)
from moss_engine.models.manifest import MANIFEST_NAME, checkpoint_digest, write_manifest
from moss_engine.models.packed import (
    gptq4,
    group_of,
    lost_power,
    lost_power4,
    pack4,
    quantise4,
    quantise8,
    round4,
    searched_scales4,
)
from moss_engine.models.tensor_file import write_tensors

REPORT_NAME = "quantised.json"
_NOT_COPIED = ("model*.safetensors", INDEX_NAME, MANIFEST_NAME, "float8_*.safetensors", ".*")


@dataclass(frozen=True)
class Loss:
    """One matrix: its bits, and the share of its output's power (without calibration: of its
    weights') that plain rounding to 4 bits would take, and that this rounding takes."""

    name: str
    bits: int
    plain4: float
    lost: float


@dataclass
class Rounded:
    """A matrix in 4 bits on the CPU, with what that loses."""

    values: Tensor
    scale: Tensor
    plain: float
    lost: float


def require_source(folder: Path, out: Path, bits: int) -> ModelConfig:
    """The folder's configuration. Raises ConfigError, or CheckpointError for its files, before
    anything large is read."""
    config = ModelConfig.from_file(folder / "config.json")
    if 4 in stored_bits(folder, config).values():
        raise ConfigError(
            f"{folder} has 4 bits already; name the folder that it was made from, whose values are "
            "whole."
        )
    require_sizes(config, bits)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; name a new folder with --out, or remove it.")
    return config


def round_matrix(weight: Tensor, products: Tensor | None, *, plain: bool) -> Rounded:
    """weight [rows, inputs] in 4 bits: plainly, or so that it loses least."""
    group = group_of(weight.shape[1])
    assert group is not None, "the sizes were checked"
    values, scale = quantise4(weight, group)
    before = after = lost_power4(weight, values, scale, products)
    if not plain:
        if products is None:
            scale = searched_scales4(weight, group)
            values = pack4(round4(weight, scale), group)
        else:
            integers, scale = gptq4(weight, products, group)
            values = pack4(integers, group)
        after = lost_power4(weight, values, scale, products)
    return Rounded(values.cpu(), scale.cpu(), before, after)


def choose_bits(config: ModelConfig, rounded: Mapping[str, Rounded], wide: float) -> Bits:
    """4 bits, but 8 for the heads and for the parts that would lose most, as long as these are no
    more than the share `wide` of the layers' weights."""
    shapes, parts = expected_tensors(config), parts_of(config)
    layers = [part for part in parts if part != "heads"]

    def size(part: str) -> int:
        return sum(shapes[name][0] * shapes[name][1] for name in parts[part])

    worst = sorted(layers, key=lambda part: -max(rounded[name].lost for name in parts[part]))
    left = wide * sum(map(size, layers))
    bits = dict.fromkeys(layers, 4)
    for part in worst:
        if (left := left - size(part)) < 0:
            break
        bits[part] = 8
    return {**bits, "heads": HEADS_BITS}


def write_folder(
    folder: Path,
    out: Path,
    config: ModelConfig,
    bits: Bits,
    rounded: Mapping[str, Rounded],
    made_by: Mapping[str, Any],
) -> list[Loss]:
    """Write a folder that loads by itself: complete, or not at all under its name. What it loses
    goes into quantised.json."""
    losses: list[Loss] = []
    unfinished = out.with_name(out.name + ".partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    weights = shutil.ignore_patterns(*_NOT_COPIED)
    shutil.copytree(
        folder,
        unfinished,
        ignore=lambda at, names: weights(at, names) if Path(at) == folder else (),
    )
    try:
        digest = _write_weights(folder, unfinished, config, bits, rounded, losses)
        report = {**made_by, "bits": dict(bits), "matrices": [asdict(loss) for loss in losses]}
        (unfinished / REPORT_NAME).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        source = {"source_digest": checkpoint_digest(folder), **made_by}
        write_manifest(unfinished, {"quantised": source}, {FILE_NAME: digest})
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return losses


def _write_weights(
    folder: Path,
    out: Path,
    config: ModelConfig,
    bits: Bits,
    rounded: Mapping[str, Rounded],
    losses: list[Loss],
) -> str:
    kept = {name: (stored.dtype, stored.shape) for name, stored in read_index(folder).items()}
    entries: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, shape in expected_tensors(config).items():
        part = part_of(name)
        if part is None or part not in bits:
            entries[name] = kept[name]
            if kept[name][0] is torch.int8:
                entries[name + SCALE_SUFFIX] = torch.float16, shape[:1]
        elif bits[part] == 8:
            entries[name] = torch.int8, shape
            entries[name + SCALE_SUFFIX] = torch.float16, shape[:1]
        else:
            group = group_of(shape[1])
            assert group is not None, "the sizes were checked"
            entries[name] = torch.uint8, (shape[0], shape[1] // 2)
            entries[name + SCALE_SUFFIX] = torch.float16, (shape[0], shape[1] // group)
    made = _made(folder, config, bits, rounded, losses)
    return write_tensors(out / FILE_NAME, entries, made)


def _made(
    folder: Path,
    config: ModelConfig,
    bits: Bits,
    rounded: Mapping[str, Rounded],
    losses: list[Loss],
) -> Iterator[tuple[str, Tensor]]:
    """The folder's tensors in order, each in its bits."""
    for name, tensor, scale in _stored(folder, config):
        part = part_of(name)
        if part is None or part not in bits:
            yield name, tensor
        elif bits[part] == 4:
            found = rounded[name]
            losses.append(Loss(name, 4, found.plain, found.lost))
            yield name, found.values
            scale = found.scale
        elif tensor.dtype is torch.int8:
            losses.append(Loss(name, 8, rounded[name].plain if name in rounded else 0.0, 0.0))
            yield name, tensor
        else:
            values, scale = quantise8(tensor)
            lost = lost_power(tensor, values.float() * scale.float()[:, None])
            losses.append(Loss(name, 8, rounded[name].plain if name in rounded else 0.0, lost))
            yield name, values
        if scale is not None:
            yield name + SCALE_SUFFIX, scale.half()


def _stored(folder: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Each tensor as it is stored, with the scales of int8 ones."""
    waiting: tuple[str, Tensor] | None = None
    for name, tensor in stream_tensors(folder, expected_tensors(config), keep_int8=True):
        if waiting is not None:
            yield *waiting, tensor
            waiting = None
        elif tensor.dtype is torch.int8:
            waiting = name, tensor
        else:
            yield name, tensor, None


def matrices(
    folder: Path, config: ModelConfig, names: Iterable[str], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """The named matrices as float32 on the device."""
    wanted = set(names)
    for name, tensor in stream_tensors(folder, expected_tensors(config), dtype=torch.float32):
        if name in wanted:
            yield name, tensor.to(device)
