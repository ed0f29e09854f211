"""Freed memory goes back to the system. glibc keeps it in heaps of its own, one for every few
threads, and these grow for days although the program needs no more: by 10 MB an hour with three
visitors."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

TRIM_S = 60.0


def find_trim() -> Callable[[], None] | None:
    """glibc's `malloc_trim` of every heap, some 5 ms for 250 MB of them; None where the C library
    has no such function (macOS, Windows, musl)."""
    if not sys.platform.startswith("linux"):
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(ctypes.c_size_t(0))


class HeapTrimmer:
    """Calls `trim` every `every_s` seconds between `start` and `close`, on a thread of its own."""

    def __init__(self, trim: Callable[[], None] | None = None, every_s: float = TRIM_S):
        self._trim = trim or find_trim()
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heap", daemon=True)

    def start(self) -> None:
        if self._trim is not None:
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._trim is not None
        while not self._closing.wait(self._every_s):
            self._trim()
