"""Manifests of checkpoint folders, and digests that tell checkpoints apart.

`manifest.json` holds size and SHA-256 of every file, and what made them. A checkpoint's own digest
is made of samples of its bytes: that tells checkpoints apart (training changes every tensor)
without reading 18 GB, but does not show that a tensor was altered between the samples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.models.checkpoint import read_index
from moss_engine.models.config import ModelConfig
from moss_engine.models.tensor_file import StoredTensor

MANIFEST_NAME = "manifest.json"
_AGAIN = "download or export the checkpoint again."


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Compare a folder with its manifest and return the manifest's `made_by`, which is empty for a
    folder without a manifest, as nothing can be checked there.

    Raises CheckpointError for a missing, unlisted or altered file and for a link that leaves the
    folder. Hidden files are left out, as nothing reads them.
    """
    path = folder / MANIFEST_NAME
    if not path.exists():
        return {}
    manifest = read_json(path, again=_AGAIN)
    try:
        listed = {
            name: (entry["sha256"], entry["size"]) for name, entry in manifest["files"].items()
        }
        made_by = dict(manifest.get("made_by", {}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is no manifest ({error}); {_AGAIN}") from None
    present = _files(folder)
    if missing := sorted(listed.keys() - set(present)):
        raise CheckpointError(f"{folder / missing[0]} is missing though {path} lists it; {_AGAIN}")
    if unknown := sorted(set(present) - listed.keys()):
        raise CheckpointError(
            f"{folder / unknown[0]} is not listed in {path}; remove it, or {_AGAIN}"
        )
    for name, (sha256, size) in listed.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise CheckpointError(
                f"{file} is a link that leaves the checkpoint folder; copy the file there instead."
            )
        if file.stat().st_size != size or file_digest(file) != sha256:
            raise CheckpointError(
                f"{file} differs from its entry in {path} (truncated or altered); {_AGAIN}"
            )
    return made_by


def write_manifest(folder: Path, made_by: Mapping[str, Any]) -> None:
    """Write `manifest.json`, which lists the folder's other files."""
    entries = {
        name: {"sha256": file_digest(folder / name), "size": (folder / name).stat().st_size}
        for name in _files(folder)
    }
    text = json.dumps({"files": entries, "made_by": dict(made_by)}, indent=1, sort_keys=True)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def _files(folder: Path) -> list[str]:
    """Relative POSIX paths of all files below the folder but hidden ones and the manifest."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        linked = [name for name in folders if (Path(root) / name).is_symlink()]
        if linked:
            raise CheckpointError(
                f"{Path(root) / linked[0]} is a linked folder; copy its files there instead."
            )
        found += [
            (Path(root) / name).relative_to(folder).as_posix()
            for name in names
            if not name.startswith(".")
        ]
    return sorted(name for name in found if name != MANIFEST_NAME)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


SAMPLES = 4
SAMPLE_BYTES = 4096


def checkpoint_digest(folder: Path) -> str:
    """Hexadecimal digest of a checkpoint folder; raises CheckpointError."""
    config = ModelConfig.from_file(folder / "config.json")
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode())
    digest.update(samples_of(read_index(folder)))
    return digest.hexdigest()


def folders_digest(folders: Sequence[Path], also: str = "") -> str:
    """Hexadecimal digest of all files below some folders: their names, sizes and sampled bytes."""
    digest = hashlib.sha256(also.encode())
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
            digest.update(b"".join(_sampled(path, 0, size)))
    return digest.hexdigest()


def samples_of(tensors: Mapping[str, StoredTensor]) -> bytes:
    """What tells tensors apart: names, types, shapes, and samples of their bytes."""
    return b"".join(
        f"{name} {stored.dtype} {stored.shape}\n".encode() + b"".join(_samples(stored))
        for name, stored in sorted(tensors.items())
    )


def _samples(stored: StoredTensor) -> list[bytes]:
    return _sampled(stored.path, stored.offset, stored.num_bytes)


def _sampled(path: Path, offset: int, num_bytes: int) -> list[bytes]:
    """Samples of bytes, evenly spread, with the first and the last bytes among them."""
    last = max(0, num_bytes - SAMPLE_BYTES)
    found = []
    with path.open("rb", buffering=0) as file:
        for i in range(SAMPLES):
            start = last * i // (SAMPLES - 1)
            file.seek(offset + start)
            found.append(file.read(min(SAMPLE_BYTES, num_bytes - start)))
    return found
