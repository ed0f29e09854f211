"""How far smaller number formats are from the reference, on a checkpoint.

The reference answers every prompt. Then each other runtime is led along the same rows, one at a
time as in decode, and its logits are compared with the reference's, in the channel that is sampled;
both draw with the same numbers, so the share of rows that differ is what the format changes in one
step. Last it answers by itself: how soon does the reply differ? The reference itself, two sequences
at a time, shows what mere rounding does.

float8 needs a GPU, and scales from `scripts.quantize` or, with --calibrate, from a passing copy.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.api.request import Message, Request, Sampling, Text
from moss_engine.api.tokens import Modality, Row, SpecialIds
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
from scripts.quantize import answer, prompts_from, quantize

KV_ROWS = 4096


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", type=Path, default=NANO_CHECKPOINT, metavar="DIR",
        help="checkpoint folder (the built-in voice)")  # fmt: skip
    add("--calibrate", type=int, default=0, metavar="N",
        help="use a copy with scales from N prompts, instead of those it has")  # fmt: skip
    add(
        "--reference", default="bfloat16", help="format that the others are held against (bfloat16)"
    )
    add("--dtypes", default="float8,float8-all", metavar="NAME,...",
        help="formats to examine (float8,float8-all)")  # fmt: skip
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
    with contextlib.ExitStack() as stack:
        folder = args.checkpoint
        if args.calibrate:
            copy = calibrated(folder, args.calibrate, args.rows, args.device)
            folder = stack.enter_context(copy)
            report.say(f"scales from {args.calibrate} prompts are there")
        config = EngineConfig(
            checkpoint=folder, device=args.device, max_sessions=2, kv_rows=KV_ROWS
        )
        comparison: Comparison | None = None
        for dtype in (args.reference, *dtypes):
            runtime = make_runtime(replace(config, dtype=dtype))
            assert isinstance(runtime, LogitsRuntime), "logits are compared"
            if comparison is None:
                subject = subject_of(config, args.prompts, args.rows)
                comparison = Comparison(subject, dtype, runtime)
            else:
                comparison.add(dtype, runtime)
            runtime.close()
            del runtime
            comparison.into(report)


@contextlib.contextmanager
def calibrated(folder: Path, num_prompts: int, reply_rows: int, device_name: str) -> Iterator[Path]:
    """A passing copy of a checkpoint, of the same name, with scales of its own."""
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(shutil.copytree(folder, Path(parent) / folder.resolve().name))
        quantize(copy, prompts_from(None, num_prompts), reply_rows, device_name)
        yield copy


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


@dataclass(frozen=True)
class FreeRun:
    """A format's replies: share equal to the reference's, median rows until they differ."""

    dtype: str
    replies: int
    equal: float
    rows_until_different: float | None


@dataclass(frozen=True)
class Subject:
    """What is examined: a network of this shape, by its replies to the `segments`."""

    model: ModelConfig
    segments: list[tuple[Segment, Sampling]]


def subject_of(config: EngineConfig, count: int, reply_rows: int) -> Subject:
    """Prompts of a checkpoint, as it is asked them."""
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    processor = load_processor(config.checkpoint, model, config.max_text_chars)
    mode, segments = processor.default_mode.name, []
    for number, text in enumerate(prompts_from(None, count)):
        sampling = replace(processor.default_sampling, seed=number)
        messages = (Message("user", Text(text)),)
        segment = processor.prepare(Request(f"{number}", "bench", messages, mode, sampling))[0]
        segments.append((replace(segment, max_rows=min(segment.max_rows, reply_rows)), sampling))
    return Subject(model, segments)


@dataclass
class _Step:
    """The reference at one row: logits of the sampled channel [vocab], and what was drawn."""

    modality: Modality
    logits: Tensor
    row: Row | None


def lead(
    runtime: LogitsRuntime,
    special_ids: SpecialIds,
    rows: list[Row],
    num_prompt_rows: int,
    modalities: list[Modality],
    sampling: Sampling,
    copies: int = 1,
) -> Iterator[_Step]:
    """Run a sequence with given rows, one a step after the prompt.

    With `copies` as many equal sequences run in each step, and the first one counts.
    """
    blocks = -(-len(rows) // runtime.limits.block_size)
    tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(copies)]
    start = 0
    for index, modality in enumerate(modalities):
        end = num_prompt_rows + index
        while start < end:
            stop = min(end, start + runtime.limits.max_step_rows // copies)
            part = tuple(rows[start:stop])
            logits = runtime.forward(
                ScheduledBatch(
                    tuple(ScheduledSequence(part, start, table, stop == end) for table in tables)
                )
            )
            start = stop
        first = type(logits)(logits.text[:1], logits.audio[:1])
        values = replace(sampling, seed=sampling.seed + index, min_rows=0)
        part = SequenceSampling("led", rows[:end], 0, values, modality)
        drawn = runtime.sampler.sample(first, BatchSampling((part,), special_ids, ("led",)))[0]
        yield _Step(
            modality,
            (first.text if modality is Modality.TEXT else first.audio)[0].float().clone(),
            drawn,
        )


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


def free_run(replies: list[list[int]], others: list[list[int]], dtype: str) -> FreeRun:
    """Replies as what counts of each row: its text id in text mode, its code while speaking."""
    until = []
    for a, b in zip(replies, others, strict=True):
        if a != b:
            until.append(
                next(
                    (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                    min(len(a), len(b)),
                )
            )
    return FreeRun(
        dtype,
        len(replies),
        1 - len(until) / len(replies),
        statistics.median(until) if until else None,
    )


class Comparison:
    """The reference's replies, and what was found of each format that was held against them.

    Runtimes are given one after another, so that one at a time need be in memory; they are not
    closed.
    """

    def __init__(self, subject: Subject, reference: str, runtime: LogitsRuntime):
        self._subject = subject
        self._reference = reference
        self._sequences = self._answers(runtime)
        self._steps = self._led(runtime)
        self._agreements = compare(
            self._steps, self._led(runtime, 2), f"{reference}, two at a time"
        )
        self._free: list[FreeRun] = []

    def add(self, dtype: str, runtime: LogitsRuntime) -> None:
        self._agreements += compare(self._steps, self._led(runtime), dtype)
        self._free.append(free_run(_ids(self._sequences), _ids(self._answers(runtime)), dtype))

    def into(self, report: Report) -> None:
        """What is known so far."""
        report.add(
            reference=self._reference,
            prompts=len(self._sequences),
            agreement=[asdict(a) for a in self._agreements],
            free=[asdict(f) for f in self._free],
        )
        report.say(str(self._agreements[-1]))

    def _answers(self, runtime: LogitsRuntime) -> list[Sequence]:
        special = self._subject.model.special
        return [
            answer(runtime, special, segment, sampling)
            for segment, sampling in self._subject.segments
        ]

    def _led(self, runtime: LogitsRuntime, copies: int = 1) -> list[_Step]:
        return [
            step
            for sequence in self._sequences
            for step in lead(
                runtime,
                self._subject.model.special,
                sequence.rows,
                sequence.num_prompt_rows,
                modalities_of(sequence, self._subject.model),
                sequence.sampling,
                copies,
            )
        ]


def _ids(sequences: list[Sequence]) -> list[list[int]]:
    """What counts of the replies' rows."""
    return [sequence.effective_ids[sequence.num_prompt_rows :] for sequence in sequences]


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
