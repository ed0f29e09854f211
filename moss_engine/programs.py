"""The programs `moss-speech-live` and `moss-say`: while they load, Ctrl+C ends them quietly, and
too little memory, or too few files, in a sentence."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys

FEWEST_FILES = 64


def page() -> None:
    _run("moss_engine.serve")


def say() -> None:
    _run("moss_engine.say")


def _run(name: str) -> None:
    """Import and run a program. During the import the signal itself ends the process, because a
    library might take a KeyboardInterrupt for a fault of its own."""
    with contextlib.suppress(ImportError):  # of Windows
        import resource

        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] in range(FEWEST_FILES):
            sys.exit(f"This may open too few files; lift its limit: ulimit -n {16 * FEWEST_FILES}.")
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = importlib.import_module(name)
    signal.signal(signal.SIGINT, usual)
    try:
        program.run()
    except Exception as error:
        of_memory = "allocate memory" in str(error) or "std::bad_alloc" in str(error)
        if not of_memory and not isinstance(error, MemoryError):
            raise
        sys.exit(
            "There is too little memory (the built-in voice takes 605 MB): end other programs, "
            "lift the limit of this one (ulimit -v), or take a smaller --kv-rows."
        )
