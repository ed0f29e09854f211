"""Check MOSS-Speech folders before serving them: `python -m scripts.doctor CHECKPOINT CODEC`.

Checks every file, tensor name and shape, without a GPU and without reading weights, then says what
fits into this GPU's memory and which options to use. Exit status: 0 if nothing is wrong, 1 if
something is, 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.audio.smart_turn import WITHOUT_MELODY, find_melody
from moss_engine.checkup import Finding, check_codec, check_network, check_together
from moss_engine.codec.moss.flow.weights import flow_shapes, read_flow_config
from moss_engine.codec.moss.load import CONFIG, VOICES_FOLDER, is_moss_codec
from moss_engine.codec.moss.whisper import WhisperVqConfig
from moss_engine.codec.moss.whisper import expected_tensors as expected_encoder
from moss_engine.codec.vocoder.hift.weights import hift_shapes, read_hift_config
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import FORMATS as BITS
from moss_engine.models.layout import bits_of_format
from moss_engine.runtime.cuda.weights import Float8, num_bytes
from moss_engine.runtime.make import FLOAT8, require_compiler
from moss_engine.runtime.memory import RESERVE_BYTES, free_bytes, kv_row_bytes
from scripts.command import make_parser, run_command

FORMATS = ("bfloat16", *FLOAT8, *BITS)
WORKSPACE_BYTES = 400_000_000
"""GPU memory that the codec takes beside its weights while it runs."""
SMALLEST_KV_ROWS = 2048
KV_STEP_ROWS = 1024
MOST_GB = 100_000


@dataclass(frozen=True)
class Fit:
    """One number format on one GPU: bytes of weights, and the most KV rows that then have room."""

    dtype: str
    weight_bytes: int
    most_kv_rows: int


def codec_bytes(folder: Path) -> int:
    """Approximate GPU memory of the published codec in 16 bit; 0 for the built-in one."""
    if not is_moss_codec(folder):
        return 0
    encoder = expected_encoder(WhisperVqConfig.from_folder(folder))
    wide = sum(
        math.prod(shape) for name, shape in encoder.items() if "codebook" in name or "embed" in name
    )
    flow = sum(map(math.prod, flow_shapes(read_flow_config(folder / CONFIG)).values()))
    hift = sum(map(math.prod, hift_shapes(read_hift_config(folder / CONFIG)).values()))
    half = sum(map(math.prod, encoder.values())) - wide + flow
    return 2 * half + 4 * (wide + hift) + WORKSPACE_BYTES


def fits(model: ModelConfig, free: int, codec: int) -> list[Fit]:
    """For each number format, how many KV rows fit into `free` bytes beside weights and codec."""
    found = []
    for dtype in FORMATS:
        try:
            bits = bits_of_format(model, dtype) if dtype in BITS else None
            float8 = FLOAT8.get(dtype, Float8.NONE)
            weights = num_bytes(model, torch.bfloat16, float8, bits)
        except ConfigError:  # sizes that this format cannot have
            continue
        rows = max(0, free - weights - codec - RESERVE_BYTES) // kv_row_bytes(model)
        found.append(Fit(dtype, weights, rows - rows % KV_STEP_ROWS))
    return found


def advice(model: ModelConfig, free: int, codec: int, command: str) -> Iterator[str]:
    """Lines: a table of formats, and the command to serve with."""
    default_rows = EngineConfig.kv_rows
    table = fits(model, free, codec)
    yield f"GPU memory free: {free / 1e9:.1f} GB; codec in 16 bit: about {codec / 1e9:.1f} GB"
    for fit in table:
        room = (
            f"{fit.most_kv_rows:,} rows of KV"
            if fit.most_kv_rows >= SMALLEST_KV_ROWS
            else "does not fit"
        )
        yield f"  --dtype {fit.dtype:<12}{fit.weight_bytes / 1e9:6.2f} GB of weights   {room}"
    # more bits before more rows, of which half the default is enough for most
    best = next((fit for fit in table if fit.most_kv_rows >= default_rows // 2), None)
    best = best or max(table, key=lambda fit: fit.most_kv_rows)
    if best.most_kv_rows < SMALLEST_KV_ROWS:
        yield "Nothing fits; use a GPU with more memory, or free some of this one's."
        return
    if best.most_kv_rows < default_rows:
        yield "With --kv-cache-dtype int8, which costs some quality, almost twice as many rows fit."
    rows = "" if best.most_kv_rows >= default_rows else f" --kv-rows {best.most_kv_rows}"
    yield f"Serve with: {command} --device cuda --dtype {best.dtype}{rows}"


def check_machine(has_gpu: bool) -> Iterator[Finding]:
    """Whether all that judges the end of a spoken turn is there, and GPU kernels compile."""
    yield Finding(
        "ends of turns", "by words and melody" if find_melody() is not None else WITHOUT_MELODY
    )
    if not has_gpu:
        return
    try:
        require_compiler()
        yield Finding("C compiler", "found, with Python's headers")
    except MissingPackageError as error:
        yield Finding("C compiler", str(error), is_fault=True)


def report(title: str, findings: Iterable[Finding]) -> bool:
    """Print findings as they come; returns whether one of them is a fault."""
    print(title, flush=True)
    faulty = False
    for finding in findings:
        print(
            f"  {'FAULT' if finding.is_fault else 'ok':<7}{finding.subject:<28}{finding.detail}",
            flush=True,
        )
        faulty |= finding.is_fault
    return faulty


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("doctor", __doc__)
    add = parser.add_argument
    add("checkpoint", type=Path, help="folder of the language model")
    add("codec", type=Path, nargs="?", help="folder of the codec (default: inside the checkpoint)")
    add("--voices", type=Path, metavar="DIR",
        help="folder of voices (default: voices in the codec's)")  # fmt: skip
    add("--gpu-gb", type=float, metavar="N", help="answer for a GPU with N GB free, not for this")
    args = parser.parse_args(argv)
    if args.gpu_gb is not None and not 0 < args.gpu_gb <= MOST_GB:  # also refuses NaN
        parser.error(f"--gpu-gb is {args.gpu_gb}; give the GB that are free, {MOST_GB} at most")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    codec = args.codec or args.checkpoint
    faulty = report(f"Language model {args.checkpoint}", check_network(args.checkpoint))
    faulty |= report(f"Codec {codec}", check_codec(codec, args.voices or codec / VOICES_FOLDER))
    if together := list(check_together(args.checkpoint, codec)):
        faulty |= report("Together", together)
    has_gpu = args.gpu_gb is None and torch.cuda.is_available()
    faulty |= report("This machine", check_machine(has_gpu))
    if faulty:
        print("Something is wrong; each line marked FAULT ends with what to do.")
        return 1
    model = ModelConfig.from_file(args.checkpoint / "config.json")
    command = f"python app.py --checkpoint {args.checkpoint}" + (
        f" --codec {args.codec}" if args.codec else ""
    )
    free = None if args.gpu_gb is None else round(args.gpu_gb * 1e9)
    if has_gpu:
        free = free_bytes(torch.device("cuda"))
    if free is None:
        print(f"There is no NVIDIA GPU here. Serve on the CPU with: {command} --device cpu")
        return 0
    for line in advice(model, free, codec_bytes(codec), command):
        print(line)
    return 0


if __name__ == "__main__":
    run_command(main)
