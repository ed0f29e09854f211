"""Large blocks do not go into the heap, whatever was freed before, and threads share it; a full
collection of garbage does not walk through what a program began with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moss_engine.heap import LARGE_BYTES, tune_malloc

# A process of its own: the setting holds for a whole one. Prints how many of the blocks that were
# asked for have mappings of their own.
PROGRAM = f"""
import ctypes, sys
from moss_engine.heap import tune_malloc

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
Info = type("Info", (ctypes.Structure,), {{
    "_fields_": [(name, ctypes.c_size_t) for name in FIELDS.split()]
}})
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.mallinfo2.restype = Info
if "apart" in sys.argv:
    assert tune_malloc()
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
kept = [libc.malloc({LARGE_BYTES}) for _ in range(10)]
print(libc.mallinfo2().hblks - before)
"""


def printed(program: str, *options: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program, *options], capture_output=True, text=True, check=True
    )
    return run.stdout + run.stderr


# Tells of every heap that there is while eight threads hold memory.
THREADS = """
import ctypes, sys, threading
from moss_engine.heap import tune_malloc

libc = ctypes.CDLL(None)
if "shared" in sys.argv:
    assert tune_malloc()
held = threading.Barrier(9)
for _ in range(8):
    threading.Thread(target=lambda: (libc.malloc(100_000), held.wait(), held.wait())).start()
held.wait()
libc.malloc_stats()
held.wait()
"""
needs_glibc = pytest.mark.skipif(not tune_malloc(), reason="needs glibc")


@needs_glibc
def test_large_blocks_have_mappings_of_their_own_whatever_was_freed_before():
    assert int(printed(PROGRAM)) == 0
    assert int(printed(PROGRAM, "apart")) == 10


@needs_glibc
def test_all_threads_share_one_heap():
    assert printed(THREADS).count("Arena") > 1
    assert printed(THREADS, "shared").count("Arena") == 1


# A process of its own: what is frozen is never collected. Prints how many objects of the start a
# full collection walks through, and whether garbage of before and after was let go.
FROZEN = """
import gc, weakref
from moss_engine.heap import freeze_gc_heap

class Node: pass

def garbage():
    node = Node()
    node.itself = node
    return weakref.ref(node)

kept = [[] for _ in range(1000)]
before = garbage()
freeze_gc_heap()
after = garbage()
gc.collect()
walked = {id(one) for one in gc.get_objects()}
print(sum(id(one) in walked for one in kept), before() is None, after() is None)
"""


def test_full_collections_pass_by_what_the_program_began_with_and_find_what_came_later():
    assert printed(FROZEN).split() == ["0", "True", "True"]
