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
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; fetch the codec again.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}); fetch the codec again."
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds no settings; fetch the codec again.")
    return {key: _resolve(value, tree, path, 0) for key, value in tree.items()}


def _resolve(value: Any, tree: dict[str, Any], path: Path, depth: int) -> Any:
    if depth > 8:
        raise CheckpointError(f"{path} refers in a circle; fetch the codec again.")
    if isinstance(value, dict):
        return {key: _resolve(inner, tree, path, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, tree, path, depth) for inner in value]
    if not isinstance(value, _Reference):
        return value
    names = re.findall(r"<([^<>]+)>", value)
    missing = [name for name in names if name not in tree]
    if missing or not names:
        raise CheckpointError(
            f"{path} refers to {value!s}, which it does not hold; fetch the codec again."
        )
    found = [_resolve(tree[name], tree, path, depth + 1) for name in names]
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
