"""engine.json: what an engine file was built from, for and with, and whether that is what a runtime
needs.

An engine folder holds `engine.json` and `engine.plan`. TensorRT trusts a plan completely, so a plan
is given to it only as the very bytes whose SHA-256 stands in the manifest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moss_engine.api.errors import ConfigError, EngineFileError
from moss_engine.api.small_files import read_json
from moss_engine.runtime.base import BACKENDS, Limits

ENGINE_MANIFEST_NAME = "engine.json"
PLAN_NAME = "engine.plan"
DTYPES = ("bfloat16", "float32", "float8")
"""Number formats of engines."""


class EngineManifest(BaseModel):
    """One engine file.

    `library_version` is that of the TensorRT library, `compute_capability` one or several, as "8.9"
    or "8.6,8.9". `plugin_digest` is the SHA-256 of the plugin library, empty where the engine needs
    none. Of the limits, `block_size` is exact and the others are the most that the engine takes.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[2] = 2
    backend: Annotated[str, Field(pattern=f"^({'|'.join(BACKENDS)})$")]
    checkpoint_digest: str
    library_version: str
    compute_capability: str
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPES)})$")]
    limits: Limits
    plan_digest: str
    plan_bytes: int
    plugin_digest: str = ""


def write_engine_manifest(folder: Path, manifest: EngineManifest) -> None:
    """Write engine.json; last of all, so that a folder without it is an unfinished one."""
    unfinished = folder / (ENGINE_MANIFEST_NAME + ".partial")
    unfinished.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
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
    try:
        return EngineManifest.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise EngineFileError(f"{path}: {field}: {first['msg']}; {again}") from None


def read_plan(folder: Path, manifest: EngineManifest) -> bytes:
    """The plan's bytes, which are those whose digest was compared; raises EngineFileError for any
    other."""
    path = folder / PLAN_NAME
    build = build_command(manifest.backend, manifest.limits, manifest.dtype)
    again = f"copy it again, or build it again with {build}."
    try:
        plan = path.read_bytes()
    except OSError as error:
        raise EngineFileError(f"{path} cannot be read ({error.strerror}); {again}") from None
    except MemoryError:
        raise ConfigError(
            f"{path} needs {manifest.plan_bytes / 2**30:.1f} GiB of free memory to be read; free "
            "some, or build the engine with --dtype bfloat16, which leaves the weights out."
        ) from None
    if len(plan) != manifest.plan_bytes:
        raise EngineFileError(
            f"{path} is {len(plan)} bytes long where {ENGINE_MANIFEST_NAME} says "
            f"{manifest.plan_bytes} (truncated or altered); {again}"
        )
    digest = hashlib.sha256(plan).hexdigest()
    if digest != manifest.plan_digest:
        raise EngineFileError(
            f"{path}: its digest is {digest[:12]} where {ENGINE_MANIFEST_NAME} says "
            f"{manifest.plan_digest[:12]} (altered); {again}"
        )
    return plan


def build_command(backend: str, limits: Limits, dtype: str) -> str:
    """For the GPU that it is given on, into a new folder: the builder overwrites nothing."""
    return (
        f"`python -m scripts.build_engine CHECKPOINT OUT --backend {backend} --dtype {dtype} "
        f"--block-size {limits.block_size} --kv-rows {limits.num_blocks * limits.block_size} "
        f"--max-sessions {limits.max_batch} --max-step-rows {limits.max_step_rows}`"
    )


@dataclass(frozen=True)
class EngineRequirements:
    """The engine that a runtime needs. `dtype` "auto" takes any, and `limits` lie within the
    engine's."""

    backend: str
    checkpoint_digest: str
    library_version: str
    compute_capability: str
    dtype: str
    limits: Limits
    plugin_digest: str = ""


def open_engine(folder: Path, needed: EngineRequirements) -> tuple[EngineManifest, bytes]:
    """Manifest and plan of a folder, both checked: what a runtime deserialises. Raises
    EngineFileError with the first field that differs, both values and the command that mends it."""
    found = read_engine_manifest(folder)
    build = build_command(needed.backend, needed.limits, found.dtype)
    again = f", or build again with {build}"
    other = build_command(needed.backend, needed.limits, needed.dtype)
    remedies = {
        "backend": f"start with --runtime {found.backend}{again}",
        "checkpoint_digest": f"name with --checkpoint what the engine was built from{again}",
        "library_version": f"install release {found.library_version} of the library{again}",
        "compute_capability": f"build again for this GPU with {build}",
        "dtype": "omit --dtype"
        + (f", or build again with {other}" if needed.dtype in DTYPES else ""),
        "plugin_digest": "use the plugin library that the engine was built with (--plugin)" + again,
        "block_size": f"start with --block-size {found.limits.block_size}{again}",
    }
    limits = found.limits
    for field, option, most in (
        ("num_blocks", "--kv-rows", limits.num_blocks * limits.block_size),
        ("max_batch", "--max-sessions", limits.max_batch),
        ("max_step_rows", "--max-step-rows", limits.max_step_rows),
        ("max_seq_len", "--kv-rows", limits.max_seq_len),
    ):
        remedies[field] = f"start with {option} {most} or less{again}"
    has, needs = ({**vars(these), **asdict(these.limits)} for these in (found, needed))
    for field, remedy in remedies.items():
        value, wanted = has[field], needs[field]
        if not _serves(field, value, wanted):
            if field.endswith("_digest"):
                value, wanted = value[:12] or "none", wanted[:12] or "none"
            raise EngineFileError(
                f"The engine in {folder} has {field} {value} where {wanted} is needed; {remedy}."
            )
    return found, read_plan(folder, found)


def _serves(field: str, value: Any, wanted: Any) -> bool:
    """Whether an engine with this value does what is wanted."""
    if field == "compute_capability":
        return wanted in value.split(",")
    if field in ("num_blocks", "max_batch", "max_step_rows", "max_seq_len"):
        return wanted <= value
    return value == wanted or (field == "dtype" and wanted == "auto")
