"""Safetensors files: headers are checked first; tensors are read one at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import require_regular

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in its file; `offset` counts bytes from the file's start."""

    path: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def refuse(path: Path, reason: str) -> CheckpointError:
    """The CheckpointError of a bad file: "{path} {reason}; download ..."."""
    return CheckpointError(f"{path} {reason}; download or export the checkpoint again.")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name.

    Raises CheckpointError unless the safetensors package takes the header, whose tensors cover the
    rest of the file exactly, and unless all are of DTYPES.
    """
    try:
        require_regular(path)
        with safe_open(path, framework="pt"):  # which checks the header against the file
            pass
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(header_bytes))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; download or export the checkpoint again."
        ) from None
    except (OSError, SafetensorError) as error:
        raise refuse(path, f"is truncated, altered or no safetensors file ({error})") from None
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        if (dtype := DTYPES.get(entry["dtype"])) is None:
            raise CheckpointError(
                f"{path} stores {name!r} as {entry['dtype']!r}; use a checkpoint of "
                f"{', '.join(DTYPES)} tensors."
            )
        begin, end = entry["data_offsets"]
        start = 8 + header_bytes + begin
        found[name] = StoredTensor(path, name, dtype, tuple(entry["shape"]), start, end - begin)
    return found


def read_tensor(stored: StoredTensor) -> Tensor:
    """The tensor in memory of its own, so that a file changed later cannot change it."""
    tensor = torch.empty(stored.shape, dtype=stored.dtype)
    # numpy is typed as a buffer from Python 3.12 on only
    buffer = memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy()))
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.offset)
        done = 0
        while done < stored.num_bytes:
            num_read = file.readinto(buffer[done:])
            if not num_read:
                raise refuse(stored.path, f"ends inside tensor {stored.name!r}")
            done += num_read
    return tensor
