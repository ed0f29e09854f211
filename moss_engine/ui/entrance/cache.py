"""The folder for visitors' sound: readable by this user alone, gone with the process, however that
ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from moss_engine.api.errors import ConfigError
from moss_engine.api.telemetry import switch_off_telemetry

PREFIX = "moss-speech-"
LOCK = ".in-use"
_held: list[TextIO] = []  # as long as the process lives


def make_cache() -> Path:
    """A new folder, which Gradio empties as its files grow old; those that processes left behind
    which were killed are removed.

    Raises ConfigError where there is no place for one.
    """
    remove_left_behind(Path(tempfile.gettempdir()))
    try:
        cache = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = (cache / LOCK).open("w")
    except OSError as error:
        raise ConfigError(
            f"There is no folder for temporary files ({error.strerror}); name one that can be "
            "written to in the environment variable TMPDIR."
        ) from None
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    atexit.register(remove, cache)
    os.environ["GRADIO_TEMP_DIR"] = str(cache)
    switch_off_telemetry()
    return cache


def remove(cache: Path) -> None:
    shutil.rmtree(cache, ignore_errors=True)


def remove_left_behind(folder: Path) -> None:
    """Remove this user's caches whose lock nobody holds: a lock ends with its process."""
    for cache in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if cache.is_symlink() or cache.stat().st_uid != os.getuid():
                continue
            with (cache / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(cache)
