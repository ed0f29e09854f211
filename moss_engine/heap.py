"""Settings of glibc's `malloc` and Python's garbage collector for a process that serves for
weeks."""

from __future__ import annotations

import ctypes
import gc
import sys

LARGE_BYTES = 256 * 1024
SPARE_BYTES = 16 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def tune_malloc() -> bool:
    """Set up glibc's `malloc` so that the process does not grow for days. To be called before there
    are many threads.

    Blocks of LARGE_BYTES and more go back to the system when they are freed. Otherwise glibc lets
    them into its heaps as soon as one of their size was freed, and the passing tensors of replies
    leave holes among what is kept. All threads share one heap (arena). Otherwise each that comes
    and goes takes one of 8 for each core, and every one of them grows to the most that any thread
    ever needed. Up to SPARE_BYTES stay free at the heap's end: to give them back after every
    tensor, as glibc does from 128 kB on, makes a reply 6 to 10 % slower.

    Returns False where the C library has no such settings (macOS, Windows, musl).
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGE_BYTES), (M_ARENA_MAX, 1), (M_TRIM_THRESHOLD, SPARE_BYTES))
    return all(libc.mallopt(name, value) == 1 for name, value in settings)


def freeze_gc_heap() -> None:
    """Tell Python's garbage collector that all present objects are kept for good. Full collections
    then skip these, so that their pauses, in which nothing else runs, depend on the replies alone.

    Call it once everything is loaded and built.
    """
    gc.collect()
    gc.freeze()
