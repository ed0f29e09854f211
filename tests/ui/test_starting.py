"""Ctrl+C while the program starts."""

from __future__ import annotations

import contextlib
import signal

import pytest

from moss_engine.ui.entrance.starting import BROKEN_OFF, breakable


def swallowed() -> None:
    """As by a library that takes it for a fault of its own."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def start(reached: list[str], fault: Exception | None = None) -> None:
    with breakable() as check:
        check()
        swallowed()
        reached.append("behind the press")
        if fault:
            raise fault
        check()
        reached.append("behind the check")


def only_pressed() -> None:
    with breakable():
        swallowed()


def test_a_swallowed_interrupt_ends_the_start_at_the_next_check():
    reached: list[str] = []
    with pytest.raises(SystemExit) as ended:
        start(reached)
    assert ended.value.code == BROKEN_OFF and reached == ["behind the press"]


def test_a_swallowed_interrupt_ends_the_start_behind_the_block():
    with pytest.raises(SystemExit) as ended:
        only_pressed()
    assert ended.value.code == BROKEN_OFF


def test_what_fails_after_an_interrupt_is_no_fault():
    with pytest.raises(SystemExit) as ended:
        start([], ImportError("partially initialised"))
    assert ended.value.code == BROKEN_OFF


def test_without_an_interrupt_nothing_changes():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError), breakable():
        raise ImportError("missing")
    with breakable() as check:
        check()
    assert signal.getsignal(signal.SIGINT) is before
