"""The programs `moss-speech-live` and `moss-say`: while they load, Ctrl+C ends them quietly."""

from __future__ import annotations

import importlib
import signal


def page() -> None:
    _run("moss_engine.serve")


def say() -> None:
    _run("moss_engine.say")


def _run(name: str) -> None:
    """Import and run a program. During the import the signal itself ends the process, because a
    library might take a KeyboardInterrupt for a fault of its own."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = importlib.import_module(name)
    signal.signal(signal.SIGINT, usual)
    program.run()
