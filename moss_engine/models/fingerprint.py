"""A checkpoint's identity: SHA-256 of its configuration, tensor headers and sampled bytes.

It tells checkpoints apart (training moves every tensor) without reading 18 GB. It is no proof
against someone who alters a tensor between the samples: the digests in manifest.json are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from moss_engine.models.checkpoint import read_index
from moss_engine.models.config import ModelConfig
from moss_engine.models.tensor_file import StoredTensor

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
    """Evenly spread, the first and the last bytes among them."""
    last = max(0, num_bytes - SAMPLE_BYTES)
    found = []
    with path.open("rb", buffering=0) as file:
        for i in range(SAMPLES):
            start = last * i // (SAMPLES - 1)
            file.seek(offset + start)
            found.append(file.read(min(SAMPLE_BYTES, num_bytes - start)))
    return found
