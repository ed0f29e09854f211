"""Fewer bits for a checkpoint's linear layers: a folder in 8 or 4 bits, or scales for float8.

    python -m scripts.quantize CHECKPOINT --bits 4 --out FOLDER [--calibrate N] [--prompts FILE]
    python -m scripts.quantize CHECKPOINT [--calibrate N] [--prompts FILE] [--device cuda]

With --bits it writes a checkpoint folder of its own, with quantised.json, which says what every
matrix loses. 8 bits have a scale per output and are rounded to nearest. 4 bits have a scale per 128
inputs; the heads, and the parts that would lose most, get 8 bits instead. --calibrate lets the
model answer N prompts first: then every rounding error of 4 bits is made up for by the columns
still to be rounded (GPTQ), and a tenth of the prompts is kept to measure how far the result agrees.
Without it, the scale of each group of 4 bits is searched.

Without --bits it chooses float8 scales by calibration prompts, which the model itself answers, so
that text and speech rows are both seen. Each output of each layer gets the scale that loses least
of the layer's output, given the mean square of every input. float8_scales.safetensors is written
into the folder and entered in manifest.json, with what was measured. app.py with `--dtype float8`
then keeps the shared layers as float8, with `--dtype float8-all` branches and heads, too.
float8_inputs.safetensors holds the largest magnitude of every layer's inputs, which
`python -m scripts.build_engine --dtype float8` needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import save_file

from moss_engine.api.errors import ConfigError
from moss_engine.api.request import ChannelSampling, Message, Request, Sampling, Text
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
from moss_engine.models.float8 import LARGEST_FLOAT8, LARGEST_INPUTS_NAME, SCALES_NAME
from moss_engine.models.layout import bits_of_format, parts_of
from moss_engine.models.manifest import verify_manifest, write_manifest
from moss_engine.models.network import MossSpeech, load_model
from moss_engine.runtime.base import BatchSampling, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.text.processor import Processor, load_processor
from scripts.command import count, make_parser, run_command
from scripts.disk import refuse_inside, require_folder, writing_to
from scripts.sentences import EVERYDAY, HARVARD, sentence

FLOAT8_PROMPTS = 500
REPLY_ROWS = 64
"""Rows of the longest reply to a calibration prompt."""
WIDE = 0.1
"""The share of the layers' weights that get 8 bits, because they would lose most in 4."""
Report = dict[str, float | int | str]
ELSEWHERE = "make it writable and free some space, or name another folder with --out"
TESTED = 10
"""One conversation in so many is kept for the comparison."""
TO_ADD = "make it writable, or copy the checkpoint to where there is room"


def prompts_from(path: Path | None, count: int) -> list[str]:
    """The first `count` lines of a file or, without one, as many everyday and made-up sentences."""
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


def answers(
    runtime: Runtime,
    processor: Processor,
    texts: Iterable[str],
    reply_rows: int,
    *,
    greedy: bool = False,
) -> Iterator[Sequence]:
    """Each prompt with the model's own reply to it, which is drawn with a seed of its own or, if
    `greedy`, made of the likeliest rows."""
    usual, likeliest = processor.default_sampling, ChannelSampling(0.0, 0, 1.0, 1.0)
    if greedy:
        usual = replace(usual, text=likeliest, audio=likeliest)
    for number, text in enumerate(texts):
        sampling, messages = replace(usual, seed=number), (Message("user", Text(text)),)
        mode = processor.default_mode.name
        segment = processor.prepare(Request(f"{number}", "prompts", messages, mode, sampling))[0]
        segment = replace(segment, max_rows=min(segment.max_rows, reply_rows))
        yield answer(runtime, processor.ids, segment, sampling)


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
    made_by = verify_manifest(folder)
    seen = _answers(folder, config, texts, reply_rows, device_name)
    network = load_model(folder, dtype=_dtype_on(device), device=device)
    squares, largest = input_squares(network, seen)
    parameters = dict(network.named_parameters())
    found = {name: best_scales(parameters[name], sums) for name, sums in squares.items()}
    report = {
        "prompts": len(texts),
        "rows": sum(map(len, seen)),
        "lost_power": fmean(lost for _, lost in found.values()),
        "largest": LARGEST_FLOAT8,
    }
    with writing_to(folder, TO_ADD):
        save_file({name: scale.cpu() for name, (scale, _) in found.items()}, folder / SCALES_NAME)
        inputs = {name: most.cpu() for name, most in largest.items()}
        save_file(inputs, folder / LARGEST_INPUTS_NAME)
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
    wide: float = WIDE,
) -> Report:
    """Write `out` with 8 or 4 bits and say what that loses; `texts` are the calibration prompts.

    Raises ConfigError or CheckpointError before anything large is read.
    """
    config, device = require_source(folder, out, bits), resolve_device(device_name)
    refuse_inside(out, folder)
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
        rounded = _round(folder, config, network, learned, device)
        chosen = choose_bits(config, rounded, wide)
    network = None
    kind = "plain" if bits == 8 else "calibrated" if texts else "searched"
    made_by: Report = {"bits": bits, "rounding": kind, "prompts": len(texts), "wide": wide}
    with writing_to(out, ELSEWHERE):
        losses = write_folder(folder, out, config, chosen, rounded, made_by)
    report: Report = {**made_by, "rows": sum(map(len, learned))}
    report["lost_power"] = fmean(loss.lost for loss in losses)
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
    seen = [found.rows for found in answers(runtime, processor, texts, reply_rows)]
    runtime.close()
    return seen


def _round(
    folder: Path,
    config: ModelConfig,
    network: MossSpeech | None,
    rows: list[list[Row]],
    device: torch.device,
) -> dict[str, Rounded]:
    """Round all matrices of the layers to 4 bits."""
    if network is None:
        parts = parts_of(config).items()
        names = [name for part, found in parts if part != "heads" for name in found]
        made = matrices(folder, config, names, device)
        return {name: round_matrix(matrix, None) for name, matrix in made}
    rounded = {}
    for products in input_products(network, config, rows):
        for name, matrix in matrices(folder, config, products, device):
            rounded[name] = round_matrix(matrix, products[name])
    return rounded


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("quantize", __doc__)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT",
        help="checkpoint folder; without --bits the scales are written into it")  # fmt: skip
    add("--calibrate", type=count, metavar="N",
        help=f"prompts to answer first ({FLOAT8_PROMPTS}, with --bits none)")  # fmt: skip
    add("--prompts", type=Path, metavar="FILE",
        help="text file with one prompt a line (default: sentences of this program)")  # fmt: skip
    add("--device", default="auto", help="cpu, cuda or cuda:N (default: auto)")
    add("--bits", type=int, choices=(8, 4), help="write a folder of 8 or 4 bits to --out")
    add("--out", type=Path, metavar="FOLDER", help="the folder that --bits writes")
    args = parser.parse_args(argv)
    if args.bits and args.out is None:
        parser.error("--bits writes a new folder; name it with --out")
    for does_nothing, name, remedy in (
        (args.bits is None, "out", "needs --bits; give --bits 8 or 4, too"),
        (args.bits and not args.calibrate, "prompts", "needs --calibrate; give it, too"),
    ):
        if does_nothing and getattr(args, name) is not None:
            parser.error(f"--{name} {remedy}, or omit --{name}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    num_prompts = args.calibrate or (0 if args.bits else FLOAT8_PROMPTS)
    texts = prompts_from(args.prompts, num_prompts) if num_prompts else []
    given = (texts, REPLY_ROWS, args.device)
    if args.bits:
        report = quantize_folder(args.checkpoint, args.out, args.bits, *given)
        print("\n".join(f"{name}: {value}" for name, value in report.items()))
    else:
        scales = quantize(args.checkpoint, *given)
        print("\n".join(f"{name}: {value:.6g}" for name, value in scales.items()))


if __name__ == "__main__":
    run_command(main)
