"""Checks before a command's work: may it write there, and is there room?"""

from __future__ import annotations

import shutil
from pathlib import Path

from moss_engine.api.errors import ConfigError

SPARE_BYTES = 1 << 24


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise ConfigError unless the disk of `folder` has room for `num_bytes` of `what`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        raise ConfigError(
            f"{what} needs {num_bytes / 1e9:.2f} GB more in {folder} and {free / 1e9:.2f} GB are "
            "free; free some, or name a folder on another disk."
        )


def refuse_inside(out: Path, source: Path) -> None:
    """Raise ConfigError for an output folder inside the folder that is read."""
    if out.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"{out} lies within {source}, which is to stay as it is; name a folder outside."
        )
