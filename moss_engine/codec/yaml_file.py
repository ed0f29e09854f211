"""`config.yaml` of a codec, read as plain values.

The file is written for a reader that builds objects: `!new:some.Class` before a mapping, `!ref
<name>` in place of a value, `!apply:` and `!name:` for calls. Nothing of that is carried out here:
a tagged mapping is a mapping, a tagged list a list, and `!ref` is looked up among the file's own
top-level values (a product of such values is computed).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_text

MAX_BYTES = 1024 * 1024
MAX_VALUES = 20_000


class _Reference(str):
    """What follows `!ref`."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML, in which a tag that is not YAML's own is left out."""


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
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", _FLOAT, list("-+0123456789")
)  # 1e-06 is a number


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's top-level mapping; CheckpointError where it is missing, no mapping, or refers to
    what is not there."""
    try:
        tree = yaml.load(read_text(path, MAX_BYTES), Loader=_PlainLoader)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; fetch the codec again.") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}); fetch the codec again."
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds no settings; fetch the codec again.")
    try:
        return _Resolver(tree, path).resolve(tree, 0)
    except RecursionError:
        raise CheckpointError(f"{path} refers in a circle; fetch the codec again.") from None


class _Resolver:
    """Follows the references of one file. A few short lines can stand for any number of values, so
    they are counted."""

    def __init__(self, tree: dict[str, Any], path: Path):
        self._tree, self._path = tree, path
        self._num_values = 0

    def resolve(self, value: Any, depth: int) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise CheckpointError(
                f"{self._path} stands for too many values; fetch the codec again."
            )
        if depth > 8:
            raise CheckpointError(f"{self._path} refers in a circle; fetch the codec again.")
        if isinstance(value, dict):
            return {key: self.resolve(inner, depth) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.resolve(inner, depth) for inner in value]
        return self._follow(value, depth) if isinstance(value, _Reference) else value

    def _follow(self, value: _Reference, depth: int) -> Any:
        names = re.findall(r"<([^<>]+)>", value)
        missing = [name for name in names if name not in self._tree]
        if missing or not names:
            raise CheckpointError(
                f"{self._path} refers to {value!s}, which it does not hold; fetch the codec again."
            )
        found = [self.resolve(self._tree[name], depth + 1) for name in names]
        if re.fullmatch(r"<[^<>]+>(\s*\*\s*<[^<>]+>)+", value.strip()):
            return math.prod(found)
        return found[0] if len(found) == 1 and value.strip() == f"<{names[0]}>" else str(value)


def find(tree: object, place: tuple[str, ...]) -> Any:
    """The value at a place of nested mappings, or None."""
    for key in place:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree
