"""The files of codecs, read strictly.

A folder of parts holds config.json and model.safetensors. The published codec has state dicts saved
by torch (`*.pt`), of which no code is run and every name is checked, and a `config.yaml`. That is
written for a reader that builds objects: `!new:some.Class` before a mapping, `!ref <name>` in place
of a value, `!apply:` and `!name:` for calls. Nothing of that is carried out here: a tagged mapping
is a mapping, a tagged list a list, and `!ref` is looked up among the file's own top-level numbers
(a product of such numbers is computed); what refers to anything else stays a text.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from torch import Tensor, nn

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json, read_text, require_regular
from moss_engine.models.checkpoint import FILE_NAME, check_tensors, load_tensors, save_tensors

CONFIG_NAME = "config.json"
AGAIN = "fetch the codec again."
Sizes = TypeVar("Sizes", bound=Any)
Place = tuple[str | int, ...]
"""Keys and indices of nested mappings and lists."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict with a `type`; raises CheckpointError if missing or invalid."""
    path = folder / CONFIG_NAME
    config = read_json(path, again="download or export the checkpoint again.")
    if not isinstance(config.get("type"), str):
        raise CheckpointError(f"{path} is no config with a type; export the checkpoint again.")
    return config


MOST, MOST_LEVELS = 1 << 16, 256
"""Sizes and lengths of lists of any network that could be meant; a file that says more is damaged.
"""


def unusable(values: Mapping[str, Any], like: Mapping[str, Any], at: str = "") -> list[str]:
    """The names of fields that are missing, unknown, or not of the kind of their example in `like`:
    a count from 1 to MOST, a number up to that, a list of such, a mapping, or anything else."""
    wrong = [f"{at}{name}" for name in like.keys() ^ values.keys()]
    for name in like.keys() & values.keys():
        value, example = values[name], like[name]
        if isinstance(example, Mapping) and isinstance(value, Mapping):
            wrong += unusable(value, example, f"{at}{name}.")
        elif not _is_like(value, example):
            wrong.append(f"{at}{name}")
    return sorted(wrong)


def _is_like(value: object, example: Any) -> bool:
    if isinstance(example, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and 0 < len(value) <= MOST_LEVELS
            and all(_is_like(inner, example[0]) for inner in value)
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return type(value) is type(example)
    if isinstance(example, float):
        return abs(value) <= MOST  # no NaN is
    return type(value) is type(example) and 0 < value <= MOST


def filled(build: Callable[[], nn.Module], folder: Path, device: torch.device | str) -> Any:
    """The network of `build` with the folder's tensors in float32, on `device`, in inference mode.

    It is built without memory first: a configuration may ask for any size, and the file's header
    tells whether that is the one of its tensors. Raises CheckpointError.
    """
    with torch.device("meta"):
        sizes = build().state_dict()
    expected = {name: tuple(sizes[name].shape) for name in sizes if is_trained(name)}
    tensors = load_tensors(folder / FILE_NAME, expected, dtype=torch.float32)
    network = build()
    network.load_state_dict(tensors, strict=False)
    return network.to(device).eval().requires_grad_(False)


def is_trained(name: str) -> bool:
    """BigVGAN keeps its fixed resampling filters as buffers; they are computed, not stored."""
    return not name.endswith(".filter")


INT8_MIN_VALUES = 16_384
"""Smaller matrices stay float16: a quantiser's own projection is delicate."""


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], storage: str
) -> None:
    """Write config.json and a network's tensors as "float32", as "float16", or large ones as rows
    of "int8" and the others as float16."""
    state = {name: tensor.float() for name, tensor in tensors.items() if is_trained(name)}
    rows = [n for n, t in state.items() if t.dim() > 1 and t.numel() >= INT8_MIN_VALUES]
    wide = {"float32": list(state), "float16": [], "int8": rows}[storage]
    kept = {name: tensor if name in wide else tensor.half() for name, tensor in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / FILE_NAME, kept, rows if storage == "int8" else ())
    (folder / CONFIG_NAME).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


Take = Callable[[str, tuple[int, ...]], Tensor]
"""Gives the tensor of a name, which has this shape."""


def taken_shapes(pack: Callable[[Take, torch.device], object]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that `pack` takes; nothing is computed of them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        shapes[name] = shape
        return torch.empty(shape, device="meta")

    pack(take, torch.device("meta"))
    return shapes


TRAINING_ENTRIES = ("epoch", "step")
"""Numbers that a training run leaves beside its tensors."""


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
        raise CheckpointError(f"{path} is missing; {AGAIN}") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} holds no tensors ({type(error).__name__}); {AGAIN}"
        ) from None
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path} holds no named tensors; {AGAIN}")
    tensors = {name: value for name, value in state.items() if name not in TRAINING_ENTRIES}
    strange = [str(name) for name, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path} holds {', '.join(strange[:4])}, which are no tensors; {AGAIN}"
        )
    return tensors


def check_state(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Raise CheckpointError unless `tensors` has exactly these names and shapes, all finite."""
    check_tensors(path, tensors, shapes, f"it belongs to another model or is damaged: {AGAIN}")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path} has {name} of type {tensor.dtype}; {AGAIN}")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path} has NaN or infinite values in {name}; {AGAIN}")


MAX_BYTES = 1024 * 1024


class _Reference(str):
    """What follows `!ref`."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML, in which a tag that is not YAML's own is left out, and nothing stands for more
    than it says."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it repeats a part of itself")
        return super().compose_node(parent, index)


def _plain(loader: _PlainLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode), "YAML has three kinds of nodes"
    text = loader.construct_scalar(node)
    return _Reference(text) if suffix == "ref" else text


_PlainLoader.add_multi_constructor("!", _plain)
_FLOAT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
# 1e-06 is a number
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's top-level mapping; CheckpointError where it is missing or no mapping."""
    try:
        tree = yaml.load(read_text(path, MAX_BYTES), Loader=_PlainLoader)
        if isinstance(tree, dict):
            return _resolved(tree, {k: v for k, v in tree.items() if isinstance(v, (int, float))})
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {AGAIN}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}); {AGAIN}") from None
    raise CheckpointError(f"{path} holds no settings; {AGAIN}")


def _resolved(value: Any, numbers: Mapping[str, float]) -> Any:
    """With numbers in place of references to them, and of products of such."""
    if isinstance(value, dict):
        return {key: _resolved(inner, numbers) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, numbers) for inner in value]
    if isinstance(value, _Reference):
        names = [factor.strip().strip("<>") for factor in value.split("*")]
        return math.prod(numbers[n] for n in names) if {*names} <= numbers.keys() else str(value)
    return value


def find(tree: Any, place: Place) -> Any:
    """The value at a place, or None."""
    try:
        for key in place:
            tree = tree[key]
    except (KeyError, IndexError, TypeError):
        return None
    return tree


def read_sizes(tree: Any, places: Mapping[str, Place], defaults: Sizes, path: Path) -> Sizes:
    """`defaults`, a frozen dataclass, with what stands in the tree of `path` at the `places` of its
    fields; raises CheckpointError for what is no value of a field's kind."""
    found = {name: _frozen(find(tree, place)) for name, place in places.items()}
    sizes = replace(defaults, **{name: v for name, v in found.items() if v is not None})
    for name in unusable(vars(sizes), vars(defaults)):
        raise CheckpointError(
            f"{path} has {name} {getattr(sizes, name)!r}, which is unusable; {AGAIN}"
        )
    return sizes


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
