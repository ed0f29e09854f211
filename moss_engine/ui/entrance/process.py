"""The program's start and end: Ctrl+C while it starts, signals, and the folder for visitors'
sound."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from moss_engine.api.errors import ConfigError
from moss_engine.api.telemetry import switch_off_telemetry

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    import gradio as gr

    from moss_engine.api.service import SpeechService

BROKEN_OFF = 128 + signal.SIGINT
PREFIX = "moss-speech-"
LOCK = ".in-use"
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")
    if hasattr(signal, name)  # Windows has the first two and the last
)
SAME_SIGNAL_S = 1.0  # supervisors send a signal to a process and to its group: that is one signal
FAREWELL_S = 1.0  # for the last messages to leave after the last reply ended
LOOK_S = 0.5  # on Windows, handlers run when a wait is over


@contextmanager
def breakable() -> Iterator[Callable[[], None]]:
    """Ctrl+C in this block ends the program with exit code 130, without a traceback; another of
    SIGNALS ends it with 128 and its number, and visitors' sound is removed.

    Libraries that are being imported may take the KeyboardInterrupt for a fault of their own and go
    on: the program ends where the yielded function is called next, or behind the block.
    """
    code = 0

    def press(number: int, _frame: FrameType | None) -> None:
        nonlocal code
        code = 128 + number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(code)

    def check() -> None:
        if code:
            sys.exit(code)

    before = {name: signal.signal(name, press) for name in SIGNALS}
    try:
        yield check
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        check()


def make_cache() -> Path:
    """A new folder for visitors' sound, readable by this user alone and gone with the process;
    those that killed processes left are removed.

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
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    atexit.register(remove, cache)
    atexit.register(lock.close)  # before that: Windows removes no file that is open
    os.environ["GRADIO_TEMP_DIR"] = str(cache)
    switch_off_telemetry()
    return cache


def start_emptying(cache: Path, every_s: float, age_s: float) -> None:
    """Remove folders of sound as they grow old, for as long as the process lives: Gradio could do
    so with those alone that its own functions gave."""

    def work() -> None:
        while True:
            time.sleep(every_s)
            remove_old(cache, age_s)

    threading.Thread(target=work, name="old sound", daemon=True).start()


def remove_old(cache: Path, age_s: float) -> None:
    for folder in cache.iterdir() if cache.exists() else ():
        with contextlib.suppress(OSError):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > age_s:
                remove(folder)


def remove(cache: Path) -> None:
    shutil.rmtree(cache, ignore_errors=True)


def remove_left_behind(folder: Path) -> None:
    """Remove this user's caches whose lock nobody holds: a lock ends with its process."""
    for cache in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_mine(cache):
                _require_unheld(cache / LOCK)
                remove(cache)


def _is_mine(cache: Path) -> bool:
    """Windows has a folder for temporary files for each user, and no numbers of users."""
    if cache.is_symlink():
        return False
    return not hasattr(os, "getuid") or cache.stat().st_uid == os.getuid()


def _require_unheld(lock: Path) -> None:
    """Raises OSError while a process holds it; Windows removes no file that is open."""
    if fcntl is None:
        lock.unlink()
        return
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def serve_until_signal(page: gr.Blocks, service: SpeechService) -> None:
    """Wait for one of SIGNALS, then let the open replies finish and close the page; a second signal
    ends the process at once, but for visitors' sound, which is removed."""
    asked = threading.Event()
    asked_s = 0.0

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_s
        if asked.is_set() and time.monotonic() - asked_s > SAME_SIGNAL_S:
            remove(Path(os.environ["GRADIO_TEMP_DIR"]))
            os._exit(1)
        asked_s = asked_s or time.monotonic()
        asked.set()

    for name in SIGNALS:
        signal.signal(name, ask)
    while not asked.wait(LOOK_S):
        pass
    print("Stopping: running replies finish; new requests are refused.", flush=True)
    asyncio.run(service.drain())
    time.sleep(FAREWELL_S)
    page.close(verbose=False)
