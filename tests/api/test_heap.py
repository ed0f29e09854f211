"""Large blocks do not go into the heaps, whatever was freed before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moss_engine.heap import LARGE_BYTES, keep_large_blocks_apart

# A process of its own: the setting holds for a whole one. Prints how many of the blocks that were
# asked for have mappings of their own.
PROGRAM = f"""
import ctypes, sys
from moss_engine.heap import keep_large_blocks_apart

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
Info = type("Info", (ctypes.Structure,), {{
    "_fields_": [(name, ctypes.c_size_t) for name in FIELDS.split()]
}})
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.mallinfo2.restype = Info
if "apart" in sys.argv:
    assert keep_large_blocks_apart()
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
kept = [libc.malloc({LARGE_BYTES}) for _ in range(10)]
print(libc.mallinfo2().hblks - before)
"""


def num_apart(*options: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(not keep_large_blocks_apart(), reason="needs glibc")
def test_large_blocks_have_mappings_of_their_own_whatever_was_freed_before():
    assert num_apart() == 0
    assert num_apart("apart") == 10
