"""How far smaller number formats are from the reference, on a checkpoint:

    python -m scripts.bench.lm.float8_report --calibrate 500 [--checkpoint DIR]
        [--dtypes float8,float8-all] [--json FILE]

What is compared, and how, is told in `scripts.bench.lm.agreement`; `scripts.bench --preset
moss-speech --parts agreement` does the same with random weights of the full size. Float8 needs a
GPU and scales from `scripts.quantize`, or from calibrating a passing copy here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.api.request import Message, Request, Text
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.text.processor import load_processor
from scripts.bench.lm.agreement import Comparison, Subject, table
from scripts.quantize import prompts_from, quantize

REFERENCE = "bfloat16"
KV_ROWS = 4096


def examine(
    folder: Path,
    subject: Subject,
    config: EngineConfig,
    reference: str,
    dtypes: list[str],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The checkpoint in the reference's format, then in each other one; saved after each."""
    device = subject.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    head = {"device": name, "torch": torch.__version__, "weights": f"checkpoint {folder.name}"}
    runtime = _runtime(config, reference)
    comparison = Comparison(subject, reference, runtime)
    for dtype in dtypes:
        runtime.close()
        del runtime
        runtime = _runtime(config, dtype)
        comparison.add(dtype, runtime)
        save({**head, **comparison.report()})
    runtime.close()
    return {**head, **comparison.report()}


def _runtime(config: EngineConfig, dtype: str) -> LogitsRuntime:
    runtime = make_runtime(replace(config, dtype=dtype))
    assert isinstance(runtime, LogitsRuntime), "logits are compared"
    return runtime


def checkpoint_subject(config: EngineConfig, count: int, reply_rows: int) -> Subject:
    folder = config.checkpoint
    model = ModelConfig.from_file(folder / "config.json")
    processor = load_processor(folder, model, config.max_text_chars)
    segments = []
    for number, text in enumerate(prompts_from(None, count)):
        sampling = replace(processor.default_sampling, seed=number)
        request = Request(
            f"{number}",
            "report",
            (Message("user", Text(text)),),
            processor.default_mode.name,
            sampling,
        )
        segment = processor.prepare(request)[0]
        segments.append((replace(segment, max_rows=min(segment.max_rows, reply_rows)), sampling))
    return Subject(model, segments, resolve_device(config.device))


@contextlib.contextmanager
def calibrated(folder: Path, num_prompts: int, reply_rows: int, device_name: str) -> Iterator[Path]:
    """A passing copy of a checkpoint, of the same name, with scales of its own."""
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(shutil.copytree(folder, Path(parent) / folder.resolve().name))
        quantize(copy, prompts_from(None, num_prompts), reply_rows, device_name)
        yield copy


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.lm.float8_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=NANO_CHECKPOINT,
        metavar="DIR",
        help="checkpoint folder (the built-in voice)",
    )
    parser.add_argument(
        "--calibrate",
        type=int,
        default=0,
        metavar="N",
        help="examine a copy of the checkpoint with scales from N prompts, instead of those it has",
    )
    parser.add_argument(
        "--reference",
        default=REFERENCE,
        help=f"the format that the others are held against ({REFERENCE})",
    )
    parser.add_argument(
        "--dtypes",
        default="float8,float8-all",
        metavar="NAME,...",
        help="formats to examine (float8,float8-all)",
    )
    parser.add_argument(
        "--prompts", type=int, default=60, metavar="N", help="prompts to answer (60)"
    )
    parser.add_argument(
        "--rows", type=int, default=64, metavar="N", help="rows of the longest reply (64)"
    )
    parser.add_argument("--device", default="auto", help="as in the program's options (auto)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to a file, too"
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    device = resolve_device(args.device)
    if device.type != "cuda" and any(
        dtype.startswith("float8") for dtype in args.dtypes.split(",")
    ):
        raise ConfigError(
            "float8 runs on a GPU only; compare other formats with --dtypes, or use --device cuda."
        )

    def save(report: dict[str, Any]) -> None:
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    with contextlib.ExitStack() as stack:
        folder = args.checkpoint
        if args.calibrate:
            folder = stack.enter_context(calibrated(folder, args.calibrate, args.rows, args.device))
            print(f"scales from {args.calibrate} prompts are there", flush=True)
        config = EngineConfig(
            checkpoint=folder, device=args.device, max_sessions=2, kv_rows=KV_ROWS
        )
        subject = checkpoint_subject(config, args.prompts, args.rows)
        print(table(examine(folder, subject, config, args.reference, args.dtypes.split(","), save)))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
