"""engine.json: what an engine file was built from, for and with, and whether that is what a runtime
needs.

An engine folder holds `engine.json` and `engine.plan`. TensorRT trusts a plan completely, so a plan
is given to it only as the very bytes whose SHA-256 stands in the manifest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.api.errors import ConfigError, EngineFileError
from moss_engine.api.small_files import read_json
from moss_engine.config import EngineConfig
from moss_engine.models.converted import DTYPE_OPTIONS
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits

ENGINE_MANIFEST_NAME = "engine.json"
PLAN_NAME = "engine.plan"
BACKENDS = ("tensorrt", "tensorrt_rtx", "tensorrt_llm")
WEIGHTS = ("bound", "baked")
FORMAT = 1
_CHUNK_BYTES = 1 << 24
_OPTIONS = {
    "num_blocks": "--kv-rows",
    "max_batch": "--max-sessions",
    "max_step_rows": "--max-step-rows",
    "max_seq_len": "--kv-rows",
}


@dataclass(frozen=True)
class EngineManifest:
    """One engine file.

    `library_version` is that of the TensorRT library, `compute_capability` one or several, as "8.9"
    or "8.6,8.9". `weights` is "baked" (in the plan) or "bound" (inputs of the engine).
    `plugin_digest` is the SHA-256 of the plugin library, empty where the engine needs none.
    `block_size` is exact, the four limits after it are the most that the engine takes.
    """

    backend: str
    checkpoint_digest: str
    library_version: str
    compute_capability: str
    dtype: str
    weights: str
    block_size: int
    num_blocks: int
    max_batch: int
    max_step_rows: int
    max_seq_len: int
    plan_digest: str
    plan_bytes: int
    plugin_digest: str = ""
    format: int = FORMAT

    @property
    def limits(self) -> Limits:
        return Limits(
            self.block_size, self.num_blocks, self.max_batch, self.max_step_rows, self.max_seq_len
        )


def write_engine_manifest(folder: Path, manifest: EngineManifest) -> None:
    """Write engine.json; last of all, so that a folder without it is an unfinished one."""
    text = json.dumps(dataclasses.asdict(manifest), indent=1)
    unfinished = folder / (ENGINE_MANIFEST_NAME + ".partial")
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(folder / ENGINE_MANIFEST_NAME)


def read_engine_manifest(folder: Path) -> EngineManifest:
    """Read engine.json strictly; raises EngineFileError naming the field."""
    path = folder / ENGINE_MANIFEST_NAME
    again = "build the engine again with `python -m scripts.build_engine`."
    if "://" in str(folder) or ":/" in str(folder)[2:]:
        raise ConfigError(
            f"--engine {folder} is an address; name a folder of this machine, nothing else is "
            f"loaded."
        )
    missing = (
        f"{path} is missing, so {folder} holds no finished engine; name another folder with "
        f"--engine, or {again}"
    )
    values = read_json(path, missing=missing, again=again, error=EngineFileError)
    _check_fields(path, values, again)
    return EngineManifest(**values)


def _check_fields(path: Path, values: dict[str, Any], again: str) -> None:
    """Raise EngineFileError for a missing or unknown field, or one of another type or range."""
    fields = {field.name: field for field in dataclasses.fields(EngineManifest)}
    if values.get("format") != FORMAT:
        raise EngineFileError(
            f"{path}: format is {values.get('format')!r} and this program reads {FORMAT}; {again}"
        )
    for name in [*(fields.keys() - values.keys()), *(values.keys() - fields.keys())]:
        raise EngineFileError(
            f"{path}: the field {name!r} is {'missing' if name in fields else 'unknown'}; {again}"
        )
    for name, field in fields.items():
        wanted = int if field.type == "int" else str
        if type(values[name]) is not wanted or (wanted is int and values[name] < 1):
            raise EngineFileError(
                f"{path}: {name} is {values[name]!r}, which is no such value; {again}"
            )
    for name, choices in (("backend", BACKENDS), ("weights", WEIGHTS)):
        if values[name] not in choices:
            raise EngineFileError(
                f"{path}: {name} is {values[name]!r} and not one of {', '.join(choices)}; {again}"
            )


def read_plan(folder: Path, manifest: EngineManifest) -> memoryview:
    """The plan's bytes, which are those whose digest was compared; raises EngineFileError for any
    other.

    The view is of memory of its own: a file changed later changes nothing.
    """
    path = folder / PLAN_NAME
    build = build_command(manifest.backend, manifest.limits, manifest.weights)
    again = f"copy it again, or build it again with {build}."
    try:
        num_bytes = path.stat().st_size
        if num_bytes != manifest.plan_bytes:
            raise EngineFileError(
                f"{path} is {num_bytes} bytes long where {ENGINE_MANIFEST_NAME} says "
                f"{manifest.plan_bytes} (truncated or altered); {again}"
            )
        plan, digest, done = memoryview(bytearray(num_bytes)), hashlib.sha256(), 0
        with path.open("rb", buffering=0) as file:
            while done < num_bytes and (count := file.readinto(plan[done : done + _CHUNK_BYTES])):
                digest.update(plan[done : done + count])
                done += count
    except OSError as error:
        raise EngineFileError(f"{path} cannot be read ({error.strerror}); {again}") from None
    except MemoryError:
        raise ConfigError(
            f"{path} needs {manifest.plan_bytes / 2**30:.1f} GiB of free memory to be read; free "
            f"some, "
            "or build the engine with --weights bound."
        ) from None
    if digest.hexdigest() != manifest.plan_digest:
        raise EngineFileError(
            f"{path}: its digest is {digest.hexdigest()[:12]} where {ENGINE_MANIFEST_NAME} says "
            f"{manifest.plan_digest[:12]} (altered); {again}"
        )
    return plan.toreadonly()


def plan_digest(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
    return digest.hexdigest(), num_bytes


def build_command(backend: str, limits: Limits, weights: str = "") -> str:
    """For the GPU that it is given on, into a new folder: the builder overwrites nothing."""
    kept = f" --weights {weights}" if weights else ""
    return (
        f"`python -m scripts.build_engine CONVERTED OUT --backend {backend}{kept} --block-size "
        f"{limits.block_size} --kv-rows {limits.num_blocks * limits.block_size} --max-sessions "
        f"{limits.max_batch} "
        f"--max-step-rows {limits.max_step_rows}`"
    )


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


_Difference = tuple[str, object, object, str]
"""A field that is not as it is needed, what it is and should be, and what can be done."""


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
            yield name, _shown(name, value), _shown(name, other), remedy
    if needed.compute_capability not in found.compute_capability.split(","):
        yield (
            "compute_capability",
            found.compute_capability,
            needed.compute_capability,
            f"build again for this GPU with {build}",
        )
    if needed.dtype is not None and found.dtype != needed.dtype:
        yield "dtype", found.dtype, needed.dtype, _dtype_remedy(needed)
    if found.plugin_digest != needed.plugin_digest:
        yield (
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
        yield "block_size", found.block_size, limits.block_size, remedy
    for name, option in _OPTIONS.items():
        most, asked = getattr(found, name), getattr(limits, name)
        if asked > most:
            value = most * found.block_size if name == "num_blocks" else most
            remedy = f"start with {option} {value} or less, or build again with {build}"
            yield name, most, asked, remedy


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
