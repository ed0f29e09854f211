"""Checks before a command's work: whether it may write somewhere, and whether there is room."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from moss_engine.api.errors import ConfigError

SPARE_BYTES = 1 << 24


def existing_part(path: Path) -> Path:
    """The path itself if it exists, else the nearest folder above it that does."""
    place = path.absolute()
    return next(part for part in (place, *place.parents) if part.exists())


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise ConfigError unless the disk of `folder`, which need not exist yet, has room for
    `num_bytes` of `what`."""
    free = shutil.disk_usage(existing_part(folder)).free
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


def require_recording(path: Path) -> None:
    """Raise ConfigError where a command is given a recording that is not there."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}; name a recording.")


@contextmanager
def writing_to(place: Path, remedy: str) -> Iterator[None]:
    """Turn the OSError of a place that cannot be written to into a ConfigError with the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{place} cannot be written ({reason}); {remedy}.") from None


def require_folder(folder: Path, remedy: str) -> None:
    """Raise ConfigError, with the remedy, where no files can be put into a folder, which need not
    exist yet."""
    with writing_to(folder, remedy):
        existing = existing_part(folder)
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def require_place(out: Path, remedy: str) -> None:
    """Raise ConfigError, with the remedy, if a file cannot be written; its content stays."""
    with writing_to(out, remedy):
        existed = out.exists()
        out.open("ab").close()
        if not existed:
            out.unlink()
