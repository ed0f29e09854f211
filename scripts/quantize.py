"""Fewer bits for a checkpoint's linear layers: a folder in 8 or 4 bits, or scales for float8.

    python -m scripts.quantize CHECKPOINT --bits 4 --out FOLDER [--calibrate N] [--prompts FILE]
    python -m scripts.quantize CHECKPOINT [--prompts FILE] [--device cuda]

With --bits it writes a folder that loads by itself, with quantised.json, which says what every
matrix loses. 8 bits have a scale per output; 4 bits one per 128 inputs, and the parts that lose
most, and the heads, have 8. --calibrate answers N prompts first; 4 bits then spread every rounding
error over what is still to be rounded (GPTQ), and a tenth of the prompts, kept for that, tell how
far the result agrees. Without it the scale of each group of 4 bits is searched; --plain rounds
them to nearest, as 8 bits always are.

Without --bits, calibration prompts choose float8 scales. Every prompt is answered by the model
itself, so that text and speech rows are both seen. For each output of each layer the scale is taken
that loses least of the layer's output, given the mean square of every input. Writes
float8_scales.safetensors into the folder and enters it, with what was measured, in manifest.json.
app.py with `--dtype float8` then keeps the shared layers as float8, with `--dtype float8-all` the
branches and heads, too. float8_inputs.safetensors holds the largest magnitude of every layer's
inputs, which `python -m scripts.build_engine --dtype float8` needs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import save_file

from moss_engine.api.errors import ConfigError
from moss_engine.api.request import Message, Request, Sampling, Text
from moss_engine.api.tokens import Row, SpecialIds
from moss_engine.config import EngineConfig
from moss_engine.engine.sequence import Segment, Sequence
from moss_engine.export.low_bits import (
    Rounded,
    agreement,
    best_scales,
    choose_bits,
    input_products,
    input_squares,
    logits_of,
    matrices,
    require_source,
    round_matrix,
    write_folder,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import LARGEST_FLOAT8, SCALES_NAME, largest_inputs_path
from moss_engine.models.layout import bits_of_format, parts_of
from moss_engine.models.manifest import MANIFEST_NAME, verify_manifest, write_manifest
from moss_engine.models.network import MossSpeech, load_model
from moss_engine.options import flag
from moss_engine.runtime.base import BatchSampling, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.text.processor import Processor, load_processor
from scripts.command import make_parser, run_command
from scripts.disk import require_folder, writing_to
from scripts.judges.sentences import EVERYDAY, HARVARD
from scripts.sentences import sentence

NUMBERS = {
    "count": (int, 500, 1, math.inf, "prompts that float8 scales are chosen by"),
    "reply_rows": (int, 64, 1, math.inf, "rows of the longest reply to a prompt"),
    "calibrate": (int, 0, 0, math.inf, "prompts that --bits answers first"),
    "wide": (float, 0.1, 0, 1, "with --bits 4, the share of the layers' weights, those that lose "
             "most, that get 8 bits"),
}  # fmt: skip
"""Type, default, least, most and meaning of options that are numbers."""
Report = dict[str, float | int | str]
ELSEWHERE = "make it writable and free some space, or name another folder with --out"
TESTED = 10
"""One conversation in so many is kept for the comparison."""
TO_ADD = "make it writable, or copy the checkpoint to where there is room"


def prompts_from(path: Path | None, count: int) -> list[str]:
    """The first `count` lines of a file, or as many sentences: everyday ones, then made ones."""
    if path is None:
        known = [*HARVARD, *EVERYDAY][:count]
        return [*known, *(sentence(number) for number in range(count - len(known)))]
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); name a text file with one prompt a line."
        ) from None
    found = [line for line in lines if line][:count]
    if not found:
        raise ConfigError(f"{path} holds no prompt; name a text file with one prompt a line.")
    return found


def conversations(
    runtime: Runtime, processor: Processor, texts: Iterable[str], reply_rows: int
) -> Iterator[list[Row]]:
    """Each prompt's rows, followed by those of the model's own reply."""
    mode = processor.default_mode.name
    for index, text in enumerate(texts):
        request = Request(
            f"calibration {index}",
            "calibration",
            (Message("user", Text(text)),),
            mode,
            processor.default_sampling,
        )
        segment = processor.prepare(request)[0]
        segment = Segment(segment.prompt, min(segment.max_rows, reply_rows))
        yield answer(runtime, processor.ids, segment, request.sampling).rows


def answer(runtime: Runtime, ids: SpecialIds, segment: Segment, sampling: Sampling) -> Sequence:
    """The prompt with the model's own reply to it, alone in the pool."""
    limits = runtime.limits
    sequence = Sequence(segment, sampling, ids)
    table = tuple(range(-(-segment.max_total_rows // limits.block_size)))
    finished = ("answer",)  # the one before
    while sequence.finish_reason is None:
        start = sequence.num_computed
        end = min(start + limits.max_step_rows, len(sequence.rows))
        is_last = end == len(sequence.rows)
        part = ScheduledSequence(tuple(sequence.rows[start:end]), start, table, is_last)
        drawn = (sequence.row_sampling("answer"),) if is_last else ()
        rows = runtime.step(ScheduledBatch((part,)), BatchSampling(drawn, ids, finished))
        sequence.num_computed, finished = end, ()
        for row in rows:
            if row is None:
                return sequence
            sequence.append(row)
    return sequence


def quantize(
    folder: Path, texts: list[str], reply_rows: int, device_name: str
) -> dict[str, float | int]:
    """Measure, choose, and write scales and manifest; returns what the manifest says of them.

    Raises ConfigError, before anything is measured, where the folder cannot be added to.
    """
    require_folder(folder, TO_ADD)
    config, device = ModelConfig.from_file(folder / "config.json"), resolve_device(device_name)
    made_by = verify_manifest(folder) if (folder / MANIFEST_NAME).exists() else {}
    seen = _answers(folder, config, texts, reply_rows, device_name)
    network = load_model(folder, dtype=_dtype_on(device), device=device)
    squares, largest = input_squares(network, seen)
    parameters = dict(network.named_parameters())
    found = {name: best_scales(parameters[name], sums) for name, sums in squares.items()}
    report = {
        "prompts": len(texts),
        "rows": sum(map(len, seen)),
        "lost_power": fmean(lost for _, lost, _ in found.values()),
        "lost_power_without_clipping": fmean(plain for _, _, plain in found.values()),
        "largest": LARGEST_FLOAT8,
    }
    with writing_to(folder, TO_ADD):
        save_file({name: scale.cpu() for name, (scale, *_) in found.items()}, folder / SCALES_NAME)
        inputs = {name: most.cpu() for name, most in largest.items()}
        save_file(inputs, largest_inputs_path(folder))
        write_manifest(folder, {**made_by, "float8": report})
    return report


def quantize_folder(
    folder: Path,
    out: Path,
    bits: int,
    texts: list[str],
    reply_rows: int,
    device_name: str,
    *,
    plain: bool = False,
    wide: float = 0.1,
) -> Report:
    """Write `out` with 8 or 4 bits and say what that loses; `texts` are the calibration prompts.

    Raises ConfigError or CheckpointError before anything large is read.
    """
    config, device = require_source(folder, out, bits), resolve_device(device_name)
    require_folder(out, ELSEWHERE)
    seen = _answers(folder, config, texts, reply_rows, device_name) if texts else []
    tested = seen[::TESTED]
    learned = [rows for index, rows in enumerate(seen) if index % TESTED] or seen
    network, wanted = None, []
    if texts:
        network = load_model(folder, dtype=_dtype_on(device), device=device)
        wanted = [logits_of(network, rows) for rows in tested]
    rounded: dict[str, Rounded] = {}
    chosen = bits_of_format(config, "int8")
    if bits == 4:
        rounded = _round(folder, config, network, learned, device, plain=plain)
        chosen = choose_bits(config, rounded, wide)
    network = None
    kind = "plain" if plain or bits == 8 else "calibrated" if texts else "searched"
    made_by: Report = {"bits": bits, "rounding": kind, "prompts": len(texts), "wide": wide}
    with writing_to(out, ELSEWHERE):
        losses = write_folder(folder, out, config, chosen, rounded, made_by)
    report: Report = {**made_by, "rows": sum(map(len, learned))}
    report["lost_power"] = fmean(loss.lost for loss in losses)
    if bits == 4:
        report["lost_power_plain"] = fmean(loss.plain4 for loss in losses)
    if tested:
        network = load_model(out, dtype=_dtype_on(device), device=device)
        report |= agreement(wanted, [logits_of(network, rows) for rows in tested])
    return report


def _dtype_on(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _answers(
    folder: Path, config: ModelConfig, texts: list[str], reply_rows: int, device_name: str
) -> list[list[Row]]:
    """The prompts' rows with the model's own replies."""
    options = EngineConfig(checkpoint=folder, device=device_name, max_sessions=1, kv_rows=4096)
    runtime = make_runtime(options)
    processor = load_processor(folder, config, options.max_text_chars)
    seen = list(conversations(runtime, processor, texts, reply_rows))
    runtime.close()
    return seen


def _round(
    folder: Path,
    config: ModelConfig,
    network: MossSpeech | None,
    rows: list[list[Row]],
    device: torch.device,
    *,
    plain: bool,
) -> dict[str, Rounded]:
    """All matrices of the layers in 4 bits."""
    if network is None:
        parts = parts_of(config).items()
        names = [name for part, found in parts if part != "heads" for name in found]
        made = matrices(folder, config, names, device)
        return {name: round_matrix(matrix, None, plain=plain) for name, matrix in made}
    rounded = {}
    for products in input_products(network, config, rows):
        for name, matrix in matrices(folder, config, products, device):
            rounded[name] = round_matrix(matrix, products[name], plain=plain)
    return rounded


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("quantize", __doc__)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT",
        help="checkpoint folder; without --bits the scales are written into it")  # fmt: skip
    add("--prompts", type=Path, metavar="FILE",
        help="text file with one prompt a line (default: sentences of this program)")  # fmt: skip
    add("--device", default="auto", help="cpu, cuda or cuda:N (default: auto)")
    add("--bits", type=int, choices=(8, 4), help="write a folder of 8 or 4 bits to --out")
    add("--out", type=Path, metavar="FOLDER", help="the folder that --bits writes")
    add("--plain", action="store_true", default=None, help="with --bits 4, round to nearest")
    for name, (kind, default, _, _, meaning) in NUMBERS.items():
        add(f"--{flag(name)}", type=kind, metavar="N", help=f"{meaning} (default: {default})")
    args = parser.parse_args(argv)
    if args.bits and args.out is None:
        parser.error("--bits writes a new folder; name it with --out")
    for name, (_, _, low, high, _) in NUMBERS.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:  # also refuses NaN
            wanted = f"a number from {low} on" if high == math.inf else f"one from {low} to {high}"
            parser.error(f"--{flag(name)} is {value}; give {wanted}")
    _refuse_idle(parser, args)
    for name, (_, default, *_) in NUMBERS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    args.plain = bool(args.plain)
    return args


def _refuse_idle(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the command where an option is given that would do nothing beside the others."""
    bits = args.bits is not None
    for does_nothing, names, remedy in (
        (not bits, ("out", "calibrate", "plain", "wide"), "needs --bits; give --bits 8 or 4, too"),
        (bits, ("count",), "is for float8 scales; give --calibrate N instead"),
        (args.bits == 8, ("plain", "wide"), "needs 4 bits; give --bits 4"),
        (bits and not args.calibrate, ("prompts", "reply_rows"), "needs --calibrate; give it, too"),
    ):
        for name in names:
            if does_nothing and getattr(args, name) is not None:
                parser.error(f"--{flag(name)} {remedy}, or omit --{flag(name)}")


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    count = args.calibrate if args.bits else args.count
    texts = prompts_from(args.prompts, count) if count else []
    given = (texts, args.reply_rows, args.device)
    if args.bits:
        kind = {"plain": args.plain, "wide": args.wide}
        report = quantize_folder(args.checkpoint, args.out, args.bits, *given, **kind)
        print("\n".join(f"{name}: {value}" for name, value in report.items()))
    else:
        scales = quantize(args.checkpoint, *given)
        print("\n".join(f"{name}: {value:.6g}" for name, value in scales.items()))


if __name__ == "__main__":
    run_command(main)
