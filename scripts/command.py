"""What commands share: a parser whose help is a module's docstring, and errors as one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from moss_engine.api.errors import MossError


def make_parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m scripts.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m scripts.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(text: str) -> int:
    """The type of an option that is a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def run_command(main: Callable[[], int | None], stopped: str | int = 130) -> None:
    """Run a command and exit with what it returns; a MossError is printed as one sentence."""
    try:
        sys.exit(main())
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(stopped)
