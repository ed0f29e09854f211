"""Small files that others made: JSON and text, read without trust."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError, MossError

MAX_BYTES = 16 * 1024 * 1024
DOWNLOAD = "download the checkpoint again."


def require_regular(path: Path) -> None:
    """Raise OSError unless the path is a file that ends: not a folder, pipe or device."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """A UTF-8 file; raises OSError or ValueError."""
    require_regular(path)
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes >> 20} MB")
    return data.decode("utf-8")


def read_json(
    path: Path,
    *,
    missing: str | None = None,
    again: str = DOWNLOAD,
    error: type[MossError] = CheckpointError,
) -> dict[str, Any]:
    """A JSON object; raises `error` with the file's name and a remedy: `again`, or the sentence
    `missing` where there is no such file."""
    try:
        values = json.loads(read_text(path))
    except FileNotFoundError:
        raise error(missing or f"{path} is missing; {again}") from None
    except RecursionError:
        raise error(f"{path} cannot be read (it is nested too deeply); {again}") from None
    except (OSError, ValueError) as reason:
        raise error(f"{path} cannot be read ({reason}); {again}") from None
    if not isinstance(values, dict):
        raise error(f"{path} holds no JSON object; {again}")
    return values
