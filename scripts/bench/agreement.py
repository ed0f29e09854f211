"""How far smaller number formats are from the reference, on a checkpoint.

The reference answers every prompt. Then each other runtime is fed the same rows, one at a time as
in decode, and its logits are compared with the reference's in the channel that is sampled, as
`scripts.quantize` does: the share of rows with the same best id, and the RMS of the differences
divided by the logits' deviation. The reference compared with itself, two sequences in a step, shows
how much is mere rounding.

float8 needs a GPU, and scales from `scripts.quantize`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.api.tokens import Modality, SpecialIds, is_audio_row
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine.sequence import Sequence
from moss_engine.export.low_bits import agreement
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Logits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.text.processor import load_processor
from scripts.bench.common import Report
from scripts.command import count
from scripts.quantize import answers, prompts_from

KV_ROWS = 4096


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", type=Path, default=NANO_CHECKPOINT, metavar="DIR",
        help="checkpoint folder (the built-in voice)")  # fmt: skip
    add(
        "--reference", default="bfloat16", help="format that the others are held against (bfloat16)"
    )
    add("--dtypes", default="float8,float8-all", metavar="NAME,...",
        help="formats to examine, each with that of the KV cache after a slash, where it is "
             "another (float8,float8-all)")  # fmt: skip
    add("--prompts", type=count, default=60, metavar="N", help="prompts to answer (60)")
    add("--rows", type=count, default=64, metavar="N", help="rows of the longest reply (64)")
    add("--device", default="auto", help="as in the program's options (auto)")


def run(args: argparse.Namespace, report: Report) -> None:
    device, dtypes = resolve_device(args.device), args.dtypes.split(",")
    if device.type != "cuda" and any(dtype.startswith("float8") for dtype in dtypes):
        raise ConfigError(
            "float8 runs on a GPU only; compare other formats with --dtypes, or use --device cuda."
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report.add(
        device=name, torch=torch.__version__, weights=f"checkpoint {args.checkpoint.resolve().name}"
    )
    config = EngineConfig(
        checkpoint=args.checkpoint, device=args.device, max_sessions=2, kv_rows=KV_ROWS
    )
    model = ModelConfig.from_file(args.checkpoint / "config.json")
    processor = load_processor(args.checkpoint, model, config.max_text_chars)
    sequences: list[Sequence] = []
    wanted: list[Logits] = []
    found: list[dict[str, Any]] = []
    for dtype in (args.reference, *dtypes):
        name, _, kv = dtype.partition("/")
        runtime = make_runtime(replace(config, dtype=name, kv_cache_dtype=kv or "auto"))
        assert isinstance(runtime, LogitsRuntime), "logits are compared"
        if sequences:
            shown, other = dtype, led(runtime, model.special, sequences)
        else:
            texts = prompts_from(None, args.prompts)
            sequences = list(answers(runtime, processor, texts, args.rows))
            wanted = [led(runtime, model.special, sequences)]
            shown = f"{dtype}, two at a time"
            other = led(runtime, model.special, sequences, copies=2)
        found.append({"dtype": shown, **agreement(wanted, [other])})
        runtime.close()
        del runtime
        report.add(
            reference=args.reference,
            prompts=len(sequences),
            text_rows=len(wanted[0].text),
            audio_rows=len(wanted[0].audio),
            agreement=found,
        )
        report.say(str(found[-1]))


def led(
    runtime: LogitsRuntime, ids: SpecialIds, sequences: list[Sequence], copies: int = 1
) -> Logits:
    """Feed the given rows of all sequences to a runtime, one row a step after the prompt, and
    return, on the CPU, each reply row's logits in the channel that is sampled there. Each step runs
    `copies` equal sequences, of which the first one counts."""
    found: dict[Modality, list[Tensor]] = {modality: [] for modality in Modality}
    for sequence in sequences:
        rows, start = sequence.rows, 0
        blocks = -(-len(rows) // runtime.limits.block_size)
        tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(copies)]
        for end in range(sequence.num_prompt_rows, len(rows)):
            modality = Modality.AUDIO if is_audio_row(rows[end], ids) else Modality.TEXT
            while start < end:
                stop = min(end, start + runtime.limits.max_step_rows // copies)
                part = tuple(rows[start:stop])
                parts = (ScheduledSequence(part, start, table, stop == end) for table in tables)
                logits = runtime.forward(ScheduledBatch(tuple(parts)))
                start = stop
            sampled = logits.text if modality is Modality.TEXT else logits.audio
            found[modality].append(sampled[:1].float().cpu().clone())
    return Logits(torch.cat(found[Modality.TEXT]), torch.cat(found[Modality.AUDIO]))
