"""`python -m scripts.turns COMMAND`: make the data, train the words, measure and tune the judge."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.turns", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="say the turns")
    data.add_argument("folder", type=Path)
    data.add_argument("--turns", type=int, default=1200, help="with a pause, and as many without")
    words = commands.add_parser("words", help="learn how sentences end (a minute)")
    words.add_argument("sources", type=Path, help="where Debian's packages of text are unpacked")
    tune = commands.add_parser("tune", help="melody, words and both: what they tell, which wait")
    tune.add_argument("folder", type=Path)
    tune.add_argument("--out", type=Path, metavar="FILE", help="write the testing half's figures")
    given = vars(parser.parse_args())
    import_module(f"scripts.turns.{given.pop('command')}").make(**given)


if __name__ == "__main__":
    main()
