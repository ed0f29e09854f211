"""Safetensors files: headers are checked first; tensors are read and written one at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import require_regular

MAX_HEADER_BYTES = 100 * 1024 * 1024
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

    Raises CheckpointError unless the header is well-formed and its tensors, of DTYPES only, cover
    the rest of the file exactly: without a gap, an overlap or a byte beyond the end.
    """
    try:
        require_regular(path)
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise refuse(path, "is truncated or no safetensors file (its header does not fit)")
            entries = json.loads(
                file.read(header_bytes).decode("utf-8"), object_pairs_hook=_without_duplicates
            )
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; download or export the checkpoint again."
        ) from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise refuse(path, f"has an unreadable header ({error})") from None
    if not isinstance(entries, dict):
        raise refuse(path, "has a header that is no JSON object")
    entries.pop("__metadata__", None)
    stored = [
        _stored_tensor(path, name, entry, 8 + header_bytes) for name, entry in entries.items()
    ]
    end = 8 + header_bytes
    for tensor in sorted(stored, key=lambda t: (t.offset, t.num_bytes)):
        if tensor.offset != end:
            raise refuse(path, f"has a gap or an overlap before tensor {tensor.name!r}")
        end += tensor.num_bytes
    if end != file_bytes:
        raise refuse(
            path,
            f"is {file_bytes} bytes long where its header describes {end} (truncated or altered)",
        )
    return {tensor.name: tensor for tensor in stored}


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


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _stored_tensor(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise refuse(path, f"describes tensor {name!r} wrongly")
    dtype, shape, offsets = (
        entry.get("dtype"),
        _counts(entry.get("shape")),
        _counts(entry.get("data_offsets")),
    )
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            f"{path} stores {name!r} as {dtype!r}; use a checkpoint of {', '.join(DTYPES)} tensors."
        )
    if shape is None or offsets is None or len(offsets) != 2:
        raise refuse(path, f"describes tensor {name!r} wrongly")
    num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != num_bytes:
        raise refuse(
            path,
            f"gives tensor {name!r} {offsets[1] - offsets[0]} bytes where its shape needs "
            f"{num_bytes}",
        )
    return StoredTensor(path, name, DTYPES[dtype], shape, data_start + offsets[0], num_bytes)


def _counts(values: Any) -> tuple[int, ...] | None:
    """The values, if they are a list of integers that are not negative."""
    if isinstance(values, list) and all(type(value) is int and value >= 0 for value in values):
        return tuple(values)
    return None


def write_tensors(
    path: Path,
    entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, Tensor]],
) -> None:
    """Write `tensors`, which are exactly `entries` in this order, one at a time. Raises OSError."""
    left = list(entries)
    with path.open("wb") as file:
        file.write(_header(entries))
        for name, tensor in tensors:
            assert left and name == left.pop(0), f"{name} is out of order"
            assert (tensor.dtype, tuple(tensor.shape)) == entries[name], (
                f"{name} is not what the header says"
            )
            values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(memoryview(cast(Any, values)))
    assert not left, f"{left[0]} was not written"


def _header(entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    names = {dtype: name for name, dtype in DTYPES.items()}
    described, offset = {}, 0
    for name, (dtype, shape) in entries.items():
        end = offset + math.prod(shape) * dtype.itemsize
        described[name] = {
            "dtype": names[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
