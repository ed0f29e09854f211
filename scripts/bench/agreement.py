"""How far smaller number formats are from the reference, on a checkpoint.

The reference answers every prompt. Then each other runtime is led along the same rows, one at a
time as in decode, and its logits are compared with the reference's, in the channel that is sampled;
both draw with the same numbers, so the share of rows that differ is what the format changes in one
step. The reference itself, two sequences at a time, shows what mere rounding does.

float8 needs a GPU, and scales from `scripts.quantize`.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import Modality, Row
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine.sequence import Segment, Sequence
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import (
    BatchSampling,
    ScheduledBatch,
    ScheduledSequence,
    SequenceSampling,
)
from moss_engine.runtime.make import make_runtime, resolve_device
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.text.processor import load_processor
from scripts.bench.common import Report, count
from scripts.quantize import answer, prompts_from

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
    sequences: list[Sequence] = []
    wanted: list[_Step] = []
    found: list[Agreement] = []
    for dtype in (args.reference, *dtypes):
        name, _, kv = dtype.partition("/")
        runtime = make_runtime(replace(config, dtype=name, kv_cache_dtype=kv or "auto"))
        assert isinstance(runtime, LogitsRuntime), "logits are compared"
        if not sequences:
            sequences = answers(runtime, config, model, args.prompts, args.rows)
            wanted = led(runtime, model, sequences)
            twice = led(runtime, model, sequences, copies=2)
            found += compare(wanted, twice, f"{dtype}, two at a time")
        else:
            found += compare(wanted, led(runtime, model, sequences), dtype)
        runtime.close()
        del runtime
        report.add(
            reference=args.reference,
            prompts=len(sequences),
            agreement=[asdict(agreement) for agreement in found],
        )
        report.say(str(found[-1]))


@dataclass(frozen=True)
class Agreement:
    """One format against the reference, over the rows of one channel.

    `logit_error` is the RMS of the differences over the RMS deviation of the reference's logits
    from their mean; `kl` is the Kullback-Leibler divergence of the distributions at temperature 1,
    in nats; `same_best` the share of rows of one best id; `rows_changed` the share in which the
    same number draws another id by the prompt's own values.
    """

    dtype: str
    channel: str
    rows: int
    logit_error: float
    kl_mean: float
    kl_p99: float
    same_best: float
    rows_changed: float


def answers(
    runtime: LogitsRuntime, config: EngineConfig, model: ModelConfig, count: int, reply_rows: int
) -> list[Sequence]:
    """Prompts of a checkpoint, as it is asked them, with the runtime's own replies."""
    processor = load_processor(config.checkpoint, model, config.max_text_chars)
    mode, found = processor.default_mode.name, []
    for number, text in enumerate(prompts_from(None, count)):
        sampling = replace(processor.default_sampling, seed=number)
        messages = (Message("user", Text(text)),)
        segment = processor.prepare(Request(f"{number}", "bench", messages, mode, sampling))[0]
        segment = replace(segment, max_rows=min(segment.max_rows, reply_rows))
        found.append(answer(runtime, model.special, segment, sampling))
    return found


@dataclass
class _Step:
    """The reference at one row: logits of the sampled channel [vocab], and what was drawn."""

    modality: Modality
    logits: Tensor
    row: Row | None


def compare(steps: list[_Step], others: list[_Step], dtype: str) -> list[Agreement]:
    """Both channels in turn, each over the rows that were sampled in its mode."""
    found = []
    for modality in Modality:
        pairs = [(a, b) for a, b in zip(steps, others, strict=True) if a.modality is modality]
        if not pairs:
            continue
        errors, kls, same = [], [], []
        for a, b in pairs:
            difference, spread = b.logits - a.logits, a.logits - a.logits.mean()
            errors.append((difference.square().mean() / spread.square().mean()).item())
            p, q = a.logits.log_softmax(-1), b.logits.log_softmax(-1)
            kls.append((p.exp() * (p - q)).sum().item())
            same.append(bool(a.logits.argmax() == b.logits.argmax()))
        changed = statistics.fmean(_drawn(a) != _drawn(b) for a, b in pairs)
        found.append(
            Agreement(
                dtype,
                modality.value,
                len(pairs),
                statistics.fmean(errors) ** 0.5,
                statistics.fmean(kls),
                sorted(kls)[int(0.99 * (len(kls) - 1))],
                statistics.fmean(same),
                changed,
            )
        )
    return found


def _drawn(step: _Step) -> int | None:
    """The id of the sampled channel; in text mode the other one is drawn, too."""
    if step.row is None:
        return None
    return step.row.text if step.modality is Modality.TEXT else step.row.audio


def led(
    runtime: LogitsRuntime, model: ModelConfig, sequences: list[Sequence], copies: int = 1
) -> list[_Step]:
    """Every step of all sequences, whose rows are given, one a step after the prompt. With `copies`
    as many equal sequences run in each step, and the first one counts."""
    found = []
    for sequence in sequences:
        rows, sampling, start = sequence.rows, sequence.sampling, 0
        blocks = -(-len(rows) // runtime.limits.block_size)
        tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(copies)]
        for index, modality in enumerate(modalities_of(sequence, model)):
            end = sequence.num_prompt_rows + index
            while start < end:
                stop = min(end, start + runtime.limits.max_step_rows // copies)
                part = tuple(rows[start:stop])
                parts = (ScheduledSequence(part, start, table, stop == end) for table in tables)
                logits = runtime.forward(ScheduledBatch(tuple(parts)))
                start = stop
            first = type(logits)(logits.text[:1], logits.audio[:1])
            values = replace(sampling, seed=sampling.seed + index, min_rows=0)
            drawing = SequenceSampling("led", rows[:end], 0, values, modality)
            asked = BatchSampling((drawing,), model.special, ("led",))
            counts = first.text if modality is Modality.TEXT else first.audio
            (drawn,) = runtime.sampler.sample(first, asked)
            found.append(_Step(modality, counts[0].float().clone(), drawn))
    return found


def modalities_of(sequence: Sequence, model: ModelConfig) -> list[Modality]:
    """The mode in which each reply row was sampled."""
    segment = Segment(tuple(sequence.rows[: sequence.num_prompt_rows]), sequence.max_rows)
    again = Sequence(segment, sequence.sampling, model.special)
    found = []
    for row in sequence.rows[sequence.num_prompt_rows :]:
        found.append(again.modality)
        again.num_computed = len(again.rows)
        again.append(row)
    return found
