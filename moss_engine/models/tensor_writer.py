"""Writes safetensors files one tensor at a time: memory holds a single tensor."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}
_PIECE_BYTES = 1 << 24


def stored_bytes(entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    """Size of the file that `write_tensors` makes of these."""
    return len(_header(entries)) + sum(_num_bytes(*entry) for entry in entries.values())


def write_tensors(
    path: Path,
    entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, Tensor]],
) -> str:
    """Write `tensors`, which are exactly `entries` in this order; returns the file's SHA-256.

    The file appears under its name when it is complete and on the disk, or not at all. Raises
    OSError.
    """
    unfinished = path.with_name(path.name + ".partial")
    digest, left = hashlib.sha256(), list(entries)
    try:
        with unfinished.open("wb", buffering=0) as file:
            header = _header(entries)
            _write(file, memoryview(header))
            digest.update(header)
            for name, tensor in tensors:
                assert left and name == left.pop(0), f"{name} is out of order"
                assert (tensor.dtype, tuple(tensor.shape)) == entries[name], (
                    f"{name} is not what the header says"
                )
                values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                data = memoryview(cast(Any, values))
                for start in range(0, len(data), _PIECE_BYTES):
                    _write(file, data[start : start + _PIECE_BYTES])
                    digest.update(data[start : start + _PIECE_BYTES])
            assert not left, f"{left[0]} was not written"
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return digest.hexdigest()


def _write(file: Any, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += file.write(data[done:])


def _header(entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    described, offset = {}, 0
    for name, (dtype, shape) in entries.items():
        end = offset + _num_bytes(dtype, shape)
        described[name] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize
