"""What was freed goes back to the system, and the thread that sees to it ends with the service."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.core import ServiceCore
from moss_engine.service.heap_trimmer import HeapTrimmer, find_trim
from moss_engine.service.local import LocalService
from tests.fakes import SPOKEN, FakeCodec, FakeProcessor, FakeRuntime, scripted
from tests.service.service_support import wait_until
from tests.ui.page_support import INFO

BLOCK = 4096
NUM_BLOCKS = 25_000  # 100 MB
needs_glibc = pytest.mark.skipif(find_trim() is None, reason="needs glibc")


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.fixture
def freed_below_a_used_block() -> Iterator[float]:
    """100 MB that the heap keeps, as something above them is in use; yields the resident MB."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    gc.collect()
    blocks = [libc.malloc(BLOCK) for _ in range(NUM_BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:
        libc.free(block)
    yield resident_mb()
    libc.free(blocks[-1])


@needs_glibc
def test_freed_memory_goes_back_to_the_system(freed_below_a_used_block: float):
    trimmer = HeapTrimmer(every_s=0.01)
    trimmer.start()
    wait_until(lambda: resident_mb() < freed_below_a_used_block - 80)
    trimmer.close()


def heap_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "heap"}


def test_it_goes_on_until_it_is_closed():
    before, calls = heap_threads(), [0]

    def trim() -> None:
        calls[0] += 1

    trimmer = HeapTrimmer(trim, every_s=0.001)
    trimmer.start()
    wait_until(lambda: calls[0] >= 3)
    assert heap_threads() - before
    trimmer.close()
    assert not heap_threads() - before


def test_it_may_be_closed_before_it_starts():
    HeapTrimmer(lambda: None).close()


@needs_glibc
def test_a_service_trims_as_long_as_it_runs():
    config = EngineConfig()
    engine = Engine(FakeRuntime(scripted(SPOKEN)), FakeProcessor(), config, samples_per_code=960)
    service = LocalService(ServiceCore(engine, FakeCodec(), config), INFO)
    before = heap_threads()
    service.start()
    assert heap_threads() - before
    service.close()
    assert not heap_threads() - before
