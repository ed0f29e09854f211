"""Fewer bits for a checkpoint: measuring the layers' inputs on calibration rows, rounding each
matrix by them, writing the folder in 8 or 4 bits, and comparing a rounded network with its source.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moss_engine.api.errors import ConfigError
from moss_engine.api.tokens import Row
from moss_engine.models.checkpoint import (
    INDEX_NAME,
    SCALE_SUFFIX,
    expected_tensors,
    save_shards,
    stream_tensors,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import float8_values, row_scales
from moss_engine.models.layout import HEADS_BITS, Bits, parts, parts_of, require_sizes, stored_bits
from moss_engine.models.manifest import MANIFEST_NAME, checkpoint_digest, write_manifest
from moss_engine.models.network import MossSpeech, causal_attend
from moss_engine.models.packed import (
    gptq4,
    group_of,
    lost_power,
    pack4,
    quantise8,
    round4,
    searched_scales4,
    widen4,
)

REPORT_NAME = "quantised.json"
_NOT_COPIED = ("model*.safetensors", INDEX_NAME, MANIFEST_NAME, "float8_*.safetensors", ".*")
AT_ONCE_BYTES = 6 << 30
"""Most bytes of inputs' products at a time; the layers are measured in as many passes."""
# Parts of a row's largest value that may become float8's largest: what is larger is cut off, and
# the others fall on other values, of which the smallest gain precision.
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)


def input_products(
    network: MossSpeech, config: ModelConfig, rows: Sequence[list[Row]]
) -> Iterator[dict[str, Tensor]]:
    """For each matrix of the layers, by its name, the sum of x^T x over all rows, float32 [inputs,
    inputs]. Comes for some layers at a time; matrices with the same input share a tensor."""
    waiting, kept = [], 0
    for name, part in parts(config).items():
        if not part.is_linear or not name.startswith("layers."):
            continue
        num_bytes = 4 * part.shape[1] ** 2
        if waiting and kept + num_bytes > AT_ONCE_BYTES:
            yield _products(network, waiting, rows)
            waiting, kept = [], 0
        waiting.append(part.sources)
        kept += num_bytes
    yield _products(network, waiting, rows)


def _products(
    network: MossSpeech, groups: list[tuple[str, ...]], rows: Sequence[list[Row]]
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        sums[name] = sums[name].addmm_(x.T, x) if name in sums else x.T @ x

    _watch(network, [names[0] for names in groups], add, rows)
    return {name: sums[names[0]] for names in groups for name in names}


def input_squares(
    network: MossSpeech, rows: Sequence[list[Row]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """For each linear layer, by the name of its weight: the sums of its inputs' squares over all
    rows, float32 [inputs], and their largest magnitude, float32 [1]."""
    sums: dict[str, Tensor] = {}
    largest: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        sums[name] = sums.get(name, 0) + x.square().sum(0)
        most = x.abs().amax().reshape(1)
        largest[name] = torch.maximum(largest.get(name, most), most)

    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    _watch(network, [f"{name}.weight" for name in linear], add, rows)
    return sums, largest


def _watch(
    network: MossSpeech,
    names: Sequence[str],
    add: Callable[[str, Tensor], None],
    rows: Sequence[list[Row]],
) -> None:
    """While it is open, pass the inputs of the named layers, float32 [rows, inputs], to `add`."""

    def watched(name: str) -> RemovableHandle:
        module = network.get_submodule(name.removesuffix(".weight"))
        return module.register_forward_pre_hook(
            lambda _, inputs: add(name, inputs[0].float().flatten(0, -2))
        )

    hooks = [watched(name) for name in names]
    for sequence in rows:
        logits_of(network, sequence)
    for hook in hooks:
        hook.remove()


@torch.inference_mode()
def logits_of(network: MossSpeech, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Both heads' logits of every row, float32 on the CPU."""
    device = network.text_lm_head.weight.device
    ids = torch.tensor(rows, device=device)
    states = network(ids, torch.arange(len(rows), device=device), causal_attend)
    return (
        network.text_lm_head(states.text).float().cpu(),
        network.audio_lm_head(states.audio).float().cpu(),
    )


def agreement(
    wanted: Sequence[tuple[Tensor, Tensor]], found: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """How far a rounded network that is fed the rows of another agrees with it, in both channels:
    the share of rows with the same best id, and the RMS of the logits' differences divided by
    their deviation. The logits of each sequence are text [rows, vocabulary] and audio."""
    report = {}
    for index, channel in enumerate(("text", "audio")):
        first, second = (
            torch.cat([logits[index] for logits in pairs]) for pairs in (wanted, found)
        )
        spread = first - first.mean(1, keepdim=True)
        error = ((second - first).square().mean() / spread.square().mean()).sqrt()
        same = (first.argmax(1) == second.argmax(1)).float().mean()
        report |= {f"{channel}_same_best": same.item(), f"{channel}_logit_error": error.item()}
    return report


def best_scales(weight: Tensor, squares: Tensor) -> tuple[Tensor, float]:
    """Float8 scales, float32 [rows], and the share of the output's power that is lost with them.

    `weight` is [rows, inputs]; `squares` [inputs] are the inputs' sums of squares. The inputs are
    taken as independent.
    """
    weight = weight.float()
    power = (weight.square() @ squares).sum()
    largest = row_scales(weight)
    best = torch.full((len(weight),), torch.inf, device=weight.device)
    chosen = largest.clone()
    for clip in CLIPS:
        scale = clip * largest
        lost = (weight - float8_values(weight, scale).float() * scale[:, None]).square() @ squares
        chosen = torch.where(lost < best, scale, chosen)
        best = torch.minimum(lost, best)
    return chosen, (best.sum() / power).item()


@dataclass(frozen=True)
class Loss:
    """The loss of one matrix: its bits, and the share of its output's power (without calibration,
    of its weights') that rounding takes away."""

    name: str
    bits: int
    lost: float


@dataclass
class Rounded:
    """A matrix in 4 bits on the CPU, and the share of power that it has lost."""

    values: Tensor
    scale: Tensor
    lost: float


def require_source(folder: Path, out: Path, bits: int) -> ModelConfig:
    """The configuration of a folder that can be rounded. Raises ConfigError, or CheckpointError for
    its files, before anything large is read."""
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


def round_matrix(weight: Tensor, products: Tensor | None) -> Rounded:
    """Round weight [rows, inputs] to 4 bits with the least loss."""
    group = group_of(weight.shape[1])
    assert group is not None, "the sizes were checked"
    if products is None:
        scale = searched_scales4(weight, group)
        integers = round4(weight, scale)
    else:
        integers, scale = gptq4(weight, products, group)
    values = pack4(integers, group)
    lost = lost_power(weight, widen4(values, scale), products)
    return Rounded(values.cpu(), scale.cpu(), lost)


def choose_bits(config: ModelConfig, rounded: Mapping[str, Rounded], wide: float) -> Bits:
    """The bits of each matrix: 4, but 8 for the heads and for the parts that would lose most, up to
    a share `wide` of the layers' weights."""
    shapes, matrices_of = expected_tensors(config), parts_of(config)
    layers = [part for part in matrices_of if part != "heads"]

    def size(part: str) -> int:
        return sum(shapes[name][0] * shapes[name][1] for name in matrices_of[part])

    worst = sorted(layers, key=lambda part: -max(rounded[name].lost for name in matrices_of[part]))
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
    """Write a checkpoint folder of its own, which gets its name only when it is complete, with the
    losses in quantised.json."""
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
        save_shards(unfinished, _rounded_tensors(folder, config, bits, rounded, losses))
        report = {**made_by, "bits": dict(bits), "matrices": [asdict(loss) for loss in losses]}
        (unfinished / REPORT_NAME).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        source = {"source_digest": checkpoint_digest(folder), **made_by}
        write_manifest(unfinished, {"quantised": source})
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return losses


def _rounded_tensors(
    folder: Path,
    config: ModelConfig,
    bits: Bits,
    rounded: Mapping[str, Rounded],
    losses: list[Loss],
) -> Iterator[tuple[str, Tensor]]:
    """The folder's tensors in order, each in its bits; int8 ones stay as they are."""
    owners = {name: part for part, names in parts_of(config).items() for name in names}
    for name, tensor in stream_tensors(folder, expected_tensors(config), keep_int8=True):
        matrix = name.removesuffix(SCALE_SUFFIX)
        wanted = bits.get(owners.get(matrix, ""))
        if name != matrix:
            if wanted != 4:
                yield name, tensor.half()
        elif wanted == 4:
            found = rounded[name]
            losses.append(Loss(name, 4, found.lost))
            yield name, found.values
            yield name + SCALE_SUFFIX, found.scale
        elif wanted == 8 and tensor.dtype is not torch.int8:
            values, scale = quantise8(tensor)
            lost = lost_power(tensor, values.float() * scale.float()[:, None])
            losses.append(Loss(name, 8, lost))
            yield name, values
            yield name + SCALE_SUFFIX, scale
        else:
            if wanted == 8:
                losses.append(Loss(name, 8, 0.0))
            yield name, tensor


def matrices(
    folder: Path, config: ModelConfig, names: Iterable[str], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """The named matrices as float32 on the device."""
    wanted = set(names)
    for name, tensor in stream_tensors(folder, expected_tensors(config), dtype=torch.float32):
        if name in wanted:
            yield name, tensor.to(device)
