"""Measure this program: `python -m scripts.bench NAME [options]`; `--help` lists the names.

Every bench writes JSON to its standard output, and with --out FILE to a file, too, which holds what
is known so far while it runs. docs/speed.md names the commands behind the files of assets/bench.

To add a bench: write scripts/bench/NAME.py with `add_options(parser)` and `run(args, report)`, call
`report.add(figure_ms=...)` as soon as there is something to add, and enter NAME with one line in
BENCHES. Listeners come from `listeners`, the page in Chromium from `browser`, the program in a
process of its own from `program`, times on a GPU from `gpu`. Write with --out into assets/bench
what a document cites, and into headlines.md where it is cited; `python -m scripts.dev.readme
--write` makes the tables.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from scripts.bench.common import Report
from scripts.command import make_parser, run_command

BENCHES = {
    "load": "a checkpoint under listeners: first sound, real-time factor",
    "page": "Chromium visits the page: how soon it is there, and a sound's way from server to ear",
    "exchange": "asking fast in Chromium, from rest and over a reply: key to ear by an outer clock",
    "hands_free": "talking to the built-in voice in Chromium: last word to first sound",
    "turns": "turns spoken into /v1/realtime: last word to first sound, those cut in two",
    "echo": "the page's own voice at its microphone: answers that it stops, questions it becomes",
    "replicas": "replicas on Ray under listeners who grow in number; a death, an upgrade",
    "full_size": "the published size with random weights on a GPU: steps, prefill, listeners",
    "codec": "the published codec alone: chunks, encoding",
    "budget": "everything of the published size within the memory of a smaller card",
    "agreement": "how far float8, int8 and int4 are from bfloat16 on a checkpoint",
    "tensorrt": "TensorRT engine files on a GPU: parity with torch, speed at the published size",
}


def listing() -> str:
    lines = [f"  {name:<11} {purpose}" for name, purpose in BENCHES.items()]
    return "\n".join(
        ["usage: python -m scripts.bench NAME [--help] [--out FILE] [options]", "", *lines]
    )


def main(argv: list[str] | None = None) -> None:
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(listing())
        return
    if command not in BENCHES:
        sys.exit(f"There is no bench {command!r}; choose one of {', '.join(BENCHES)}.")
    bench = import_module(f"scripts.bench.{command}")
    parser = make_parser(f"bench {command}", bench.__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there, too")
    bench.add_options(parser)
    args = parser.parse_args(rest)
    report = Report(args.out)
    bench.run(args, report)
    print(report.text())


if __name__ == "__main__":
    run_command(main)
