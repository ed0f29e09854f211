"""The options of `python -m scripts.bench` for a checkpoint, and what they must satisfy."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from moss_engine.api.errors import ConfigError
from moss_engine.config import EngineConfig
from moss_engine.options import add_options, from_args
from scripts.bench.common.load import pairs


def parse(
    argv: list[str] | None = None, description: str = ""
) -> tuple[argparse.Namespace, EngineConfig]:
    """The command's own options, and the configuration of the engine that it measures."""
    parser = _parser(description)
    args = parser.parse_args(argv)
    try:
        args.concurrency = [int(level) for level in args.concurrency.split(",")]
    except ValueError:
        raise ConfigError(
            f"--concurrency is {args.concurrency!r}; give whole numbers, as in 1,2,4."
        ) from None
    args.arrivals = pairs("--arrivals", args.arrivals)
    counts = [
        *args.concurrency,
        args.replies,
        args.warm_ups + 1,
        args.prompt_rows or 2,
        args.codes or 1,
    ]
    if min(counts) < 1 or args.prompt_rows == 1:
        raise ConfigError(
            "--concurrency, --replies, --warm-ups, --prompt-rows and --codes must be positive."
        )
    if (args.prompt_rows is None) != (args.codes is None):
        raise ConfigError("--prompt-rows and --codes go together; give both or neither.")
    config = from_args(EngineConfig, args)
    return args, dataclasses.replace(
        config, max_sessions=max(config.max_sessions, *args.concurrency)
    )


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--concurrency", default="1,2,4", metavar="N,N,...", help="listeners at a time (1,2,4)"
    )
    parser.add_argument(
        "--replies", type=int, default=30, metavar="N", help="timed replies of each level (30)"
    )
    parser.add_argument(
        "--warm-ups",
        type=int,
        default=5,
        metavar="N",
        help="replies before the first timed one (5)",
    )
    parser.add_argument(
        "--prompt-rows", type=int, metavar="N", help="rows of every prompt, instead of sentences"
    )
    parser.add_argument(
        "--codes", type=int, metavar="N", help="codes of every reply, instead of sentences"
    )
    parser.add_argument(
        "--arrivals",
        default="",
        metavar="RATE:REPLIES,...",
        help="then requests a second, by chance, and replies in all, such as 0.5:30",
    )
    parser.add_argument(
        "--overhead", action="store_true", help="time one engine step against the network alone"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the last line to a file, too"
    )
    add_options(parser, EngineConfig, groups=("model", "capacity"))
    return parser
