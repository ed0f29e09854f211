"""Whether an engine folder is the one that a runtime needs: field by field, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from moss_engine.api.errors import EngineFileError
from moss_engine.config import EngineConfig
from moss_engine.models.converted import DTYPE_OPTIONS
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import (
    EngineManifest,
    build_command,
    read_engine_manifest,
    read_plan,
)

_OPTIONS = {
    "num_blocks": "--kv-rows",
    "max_batch": "--max-sessions",
    "max_step_rows": "--max-step-rows",
    "max_seq_len": "--kv-rows",
}


@dataclass(frozen=True)
class EngineRequirements:
    """The engine that a runtime needs. `dtype` None takes any, and `limits` lie within the
    engine's."""

    backend: str
    checkpoint_digest: str
    library_version: str
    compute_capability: str
    dtype: str | None
    limits: Limits
    plugin_digest: str = ""


def engine_requirements(
    config: EngineConfig,
    limits: Limits,
    library_version: str,
    compute_capability: str,
    plugin_digest: str = "",
) -> EngineRequirements:
    """The engine that the options need on this machine; raises CheckpointError for a damaged
    checkpoint."""
    dtype = None if config.dtype == "auto" else config.dtype
    return EngineRequirements(
        config.runtime,
        checkpoint_digest(config.checkpoint),
        library_version,
        compute_capability,
        dtype,
        limits,
        plugin_digest,
    )


class _Difference(NamedTuple):
    """A field that is not as it is needed, and what can be done; values as they are shown."""

    field: str
    found: object
    needed: object
    remedy: str


def open_engine(folder: Path, needed: EngineRequirements) -> tuple[EngineManifest, memoryview]:
    """Manifest and plan of a folder, both checked: what a runtime deserialises. Raises
    EngineFileError."""
    manifest = read_engine_manifest(folder)
    check_engine_manifest(folder, manifest, needed)
    return manifest, read_plan(folder, manifest)


def check_engine_manifest(folder: Path, found: EngineManifest, needed: EngineRequirements) -> None:
    """Compare field by field; raises EngineFileError with the first field that differs, both
    values and the command that mends it."""
    for field, value, other, remedy in _differences(found, needed):
        raise EngineFileError(
            f"The engine in {folder} has {field} {value} where {other} is needed; {remedy}."
        )


def _differences(found: EngineManifest, needed: EngineRequirements) -> Iterator[_Difference]:
    build = build_command(needed.backend, needed.limits, found.weights)
    for name, remedy in {
        "backend": f"start with --runtime {found.backend}, or build again with {build}",
        "checkpoint_digest": "name with --checkpoint what the engine was built from, or build "
        f"again with {build}",
        "library_version": f"install release {found.library_version} of the library, or build "
        f"again with {build}",
    }.items():
        value, other = getattr(found, name), getattr(needed, name)
        if value != other:
            yield _Difference(name, _shown(name, value), _shown(name, other), remedy)
    if needed.compute_capability not in found.compute_capability.split(","):
        yield _Difference(
            "compute_capability",
            found.compute_capability,
            needed.compute_capability,
            f"build again for this GPU with {build}",
        )
    if needed.dtype is not None and found.dtype != needed.dtype:
        yield _Difference("dtype", found.dtype, needed.dtype, _dtype_remedy(needed))
    if found.plugin_digest != needed.plugin_digest:
        yield _Difference(
            "plugin_digest",
            _shown("plugin_digest", found.plugin_digest),
            _shown("plugin_digest", needed.plugin_digest),
            f"use the plugin library that the engine was built with (--plugin), or build again "
            f"with {build}",
        )
    yield from _too_small(found, needed.limits, build)


def _too_small(found: EngineManifest, limits: Limits, build: str) -> Iterator[_Difference]:
    """Limits that the engine does not serve."""
    if found.block_size != limits.block_size:
        remedy = f"start with --block-size {found.block_size}, or build again with {build}"
        yield _Difference("block_size", found.block_size, limits.block_size, remedy)
    for name, option in _OPTIONS.items():
        most, asked = getattr(found, name), getattr(limits, name)
        if asked > most:
            value = most * found.block_size if name == "num_blocks" else most
            remedy = f"start with {option} {value} or less, or build again with {build}"
            yield _Difference(name, most, asked, remedy)


def _dtype_remedy(needed: EngineRequirements) -> str:
    build = build_command(needed.backend, needed.limits)
    return "omit --dtype" + "".join(
        f", or convert with `python -m scripts.convert CHECKPOINT CONVERTED --dtype {option}` and "
        f"build again with {build}"
        for option, dtype in DTYPE_OPTIONS.items()
        if dtype == needed.dtype
    )


def _shown(name: str, value: str) -> str:
    return value[:12] or "none" if name.endswith("_digest") else value
