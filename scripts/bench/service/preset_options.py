"""The options of `python -m scripts.bench --preset`."""

from __future__ import annotations

import argparse
from pathlib import Path

from moss_engine.api.errors import ConfigError
from scripts.bench.common.load import pairs

NAME = "moss-speech"
IN_EVERY_FORMAT = ("decode", "prefill", "agreement")
ON_RUNTIME = (*IN_EVERY_FORMAT, "speech", "streams")
PARTS = (*ON_RUNTIME, "sampler", "vocoder", "baselines")
FORMATS = {"bfloat16": "none", "float8": "trunk", "float8-all": "all"}


def parse(argv: list[str] | None, description: str = "") -> argparse.Namespace:
    """Lists of names and numbers are split; raises ConfigError for what is not known."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=(NAME,), required=True, help="the network's size")
    parser.add_argument(
        "--parts",
        default="decode,prefill,speech,sampler,vocoder",
        metavar="PART,...",
        help="what to measure (decode,prefill,speech,sampler,vocoder)",
    )
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        metavar="NAME,...",
        help=f"number formats, of {', '.join(FORMATS)} (bfloat16)",
    )
    parser.add_argument(
        "--batches", default="1,2,4,8,16,32,64", metavar="N,...", help="sequences of a decode step"
    )
    parser.add_argument(
        "--kv-rows", type=int, default=65_536, metavar="N", help="rows of the KV pool (65536)"
    )
    parser.add_argument(
        "--max-step-rows", type=int, default=512, metavar="N", help="rows of one step (512)"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=8,
        metavar="N",
        help="replies that formats are compared by (8)",
    )
    _add_stream_options(parser.add_argument_group("streams"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file, too")
    args = parser.parse_args(argv)
    args.parts = _names("--parts", args.parts, PARTS)
    args.dtype = _names("--dtype", args.dtype, tuple(FORMATS))
    args.batches = _numbers("--batches", args.batches)
    args.chunk_codes = tuple(_numbers("--chunk-codes", args.chunk_codes))
    for option in ("listeners", "hasty", "arrivals"):
        setattr(args, option, pairs(f"--{option}", getattr(args, option)))
    return args


def _add_stream_options(streams: argparse._ArgumentGroup) -> None:
    streams.add_argument(
        "--listeners",
        default="1:2,4:8,16:32,64:128",
        metavar="N:REPLIES,...",
        help="listeners at a time, and replies in all; each hears a reply out and asks again",
    )
    streams.add_argument(
        "--hasty",
        default="",
        metavar="N:REPLIES,...",
        help="before them: listeners who ask again as soon as a reply was made",
    )
    streams.add_argument(
        "--arrivals",
        default="",
        metavar="RATE:REPLIES,...",
        help="after them: requests a second, by chance, and replies in all",
    )
    streams.add_argument(
        "--prompt-rows", type=int, default=64, metavar="N", help="rows of every prompt (64)"
    )
    streams.add_argument(
        "--codes", type=int, default=128, metavar="N", help="codes of every reply (128: 10.24 s)"
    )
    streams.add_argument(
        "--together", type=int, default=16, metavar="N", help="replies of one vocoder run (16)"
    )
    streams.add_argument(
        "--chunk-codes", default="5,10,20", metavar="N,...", help="codes of each chunk (5,10,20)"
    )


def _names(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    found = text.split(",")
    wrong = [name for name in found if name not in known]
    if wrong:
        raise ConfigError(
            f"{option} {','.join(wrong)} is unknown; choose among {', '.join(known)}."
        )
    return found


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ConfigError(f"{option} is {text!r}; give whole numbers, as in 1,2,4.")
    return found
