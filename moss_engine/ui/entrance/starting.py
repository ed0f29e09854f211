"""Ctrl+C while the program starts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

BROKEN_OFF = 128 + signal.SIGINT


@contextmanager
def breakable() -> Iterator[Callable[[], None]]:
    """Ctrl+C in this block ends the program with exit code 130, without a traceback.

    Libraries that are being imported may take the KeyboardInterrupt for a fault of their own and go
    on: the program ends where the yielded function is called next, or behind the block.
    """
    pressed = False

    def press(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            sys.exit(BROKEN_OFF)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
        check()
