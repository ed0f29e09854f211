"""The memory of a process that serves for weeks: what glibc's `malloc` and Python's garbage
collector are told."""

from __future__ import annotations

import ctypes
import gc
import sys

LARGE_BYTES = 256 * 1024
M_MMAP_THRESHOLD = -3


def keep_large_blocks_apart() -> bool:
    """Blocks of LARGE_BYTES and more go back to the system when they are freed, from now on and in
    the whole process.

    Otherwise glibc lets them into its heaps as soon as one of their size was freed. The passing
    tensors of replies then lie among what is kept, and the holes that they leave grow for days.
    Returns False where the C library has no such setting (macOS, Windows, musl).
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return hasattr(libc, "mallopt") and libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) == 1


def freeze_gc_heap() -> None:
    """What the process holds now is kept for good: full collections of Python's garbage pass it by,
    so that their pauses, in which nothing else runs, depend on the replies alone.

    Call it once everything is loaded and built.
    """
    gc.collect()
    gc.freeze()
