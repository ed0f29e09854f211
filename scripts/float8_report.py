"""How far smaller number formats are from the reference, on a checkpoint or on random weights of the full size:

    python -m scripts.float8_report --calibrate 500 [--checkpoint DIR] [--dtypes float8,float8-all] [--json FILE]
    python -m scripts.float8_report --preset moss-speech

The reference answers every prompt. Then each format is led along the same rows, one at a time as in decode, and its
logits are compared with the reference's, in the channel that is sampled; both draw with the same numbers, so the share
of rows that differ is what the format changes in one step. Last it answers by itself: how soon does the reply differ?
The reference itself, two sequences at a time, shows what mere rounding does. Float8 needs a GPU and, for a checkpoint,
scales from `scripts.quantize`, or from calibrating a passing copy here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.errors import MossError
from moss_engine.models.config import ModelConfig
from moss_engine.processor import load_processor
from moss_engine.request import ChannelSampling, Message, Request, Sampling, Text
from moss_engine.runtime.base import Limits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.make import make_runtime, make_sampler, resolve_device
from moss_engine.sampler import Sampler
from moss_engine.sequence import Segment, Sequence
from moss_engine.tokens import Modality, Row
from scripts.quantize import answer, prompts_from, quantize

PRESET, REFERENCE = "moss-speech", "bfloat16"
KV_ROWS = 4096
SAMPLED = ChannelSampling(0.7, 20, 0.95, 1.1)


@dataclass(frozen=True)
class Agreement:
    """One format against the reference, over the rows of one channel.

    `logit_error` is the RMS of the differences over the RMS deviation of the reference's logits from their mean; `kl`
    is the Kullback-Leibler divergence of the distributions at temperature 1, in nats; `same_best` the share of rows of
    one best id; `rows_changed` the share in which the same number draws another id by the prompt's own values.
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
    """Replies of a format by itself: the share equal to the reference's, and the rows until they differ (median)."""

    dtype: str
    replies: int
    equal: float
    rows_until_different: float | None


@dataclass(frozen=True)
class Subject:
    """What is examined: `make(dtype)` gives its runtime, `segments` its prompts."""

    model: ModelConfig
    make: Callable[[str], Runtime]
    segments: list[tuple[Segment, Sampling]]
    device: torch.device
    weights: str


@dataclass
class _Step:
    """The reference at one row: logits of the sampled channel [vocab], and what was drawn."""

    modality: Modality
    logits: Tensor
    row: Row | None


def lead(runtime: Runtime, sampler: Sampler, rows: list[Row], num_prompt_rows: int, modalities: list[Modality],
         sampling: Sampling, copies: int = 1) -> Iterator[_Step]:
    """Run a sequence whose rows are given, one row a step after the prompt; what would be drawn at each is not used.

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
            logits = runtime.forward(ScheduledBatch(tuple(
                ScheduledSequence(part, start, table, stop == end) for table in tables)))
            start = stop
        first = type(logits)(logits.text[:1], logits.audio[:1])
        sampler.add("led", rows[:end], replace(sampling, seed=sampling.seed + index, min_rows=0))
        drawn = sampler.sample(first, ["led"], [modality])[0]
        sampler.remove("led")
        yield _Step(modality, (first.text if modality is Modality.TEXT else first.audio)[0].float().clone(), drawn)


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
        found.append(Agreement(dtype, modality.value, len(pairs), statistics.fmean(errors) ** 0.5,
                               statistics.fmean(kls), sorted(kls)[int(0.99 * (len(kls) - 1))], statistics.fmean(same),
                               changed))
    return found


def _drawn(step: _Step) -> int | None:
    """The id of the sampled channel; in text mode the other one is drawn, too, but hardly matters."""
    if step.row is None:
        return None
    return step.row.text if step.modality is Modality.TEXT else step.row.audio


def free_run(replies: list[list[int]], others: list[list[int]], dtype: str) -> FreeRun:
    """Replies as what counts of each row: its text id in text mode, its code while speaking."""
    until = []
    for a, b in zip(replies, others, strict=True):
        if a != b:
            until.append(next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))))
    return FreeRun(dtype, len(replies), 1 - len(until) / len(replies), statistics.median(until) if until else None)


def examine(subject: Subject, reference: str, dtypes: list[str]) -> dict[str, Any]:
    """The reference, then each format; one runtime at a time is in memory."""
    device, model = subject.device, subject.model
    runtime = subject.make(reference)
    sampler = make_sampler(runtime, model, device)
    sequences = [answer(runtime, sampler, model.special, segment, sampling) for segment, sampling in subject.segments]
    replies = [sequence.effective_ids[sequence.num_prompt_rows :] for sequence in sequences]

    def led(runtime: Runtime, sampler: Sampler, copies: int = 1) -> list[_Step]:
        return [step for sequence in sequences for step in lead(
            runtime, sampler, sequence.rows, sequence.num_prompt_rows, modalities_of(sequence, model),
            sequence.sampling, copies)]

    steps = led(runtime, sampler)
    agreements = compare(steps, led(runtime, sampler, 2), f"{reference}, two at a time")
    runtime.close()
    free = []
    for dtype in dtypes:
        del runtime, sampler
        runtime = subject.make(dtype)
        sampler = make_sampler(runtime, model, device)
        agreements += compare(steps, led(runtime, sampler), dtype)
        own = [answer(runtime, sampler, model.special, segment, sampling) for segment, sampling in subject.segments]
        free.append(free_run(replies, [s.effective_ids[s.num_prompt_rows :] for s in own], dtype))
        runtime.close()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "weights": subject.weights, "reference": reference,
            "prompts": len(replies), "agreement": [asdict(a) for a in agreements], "free": [asdict(f) for f in free]}


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


def checkpoint_subject(folder: Path, device_name: str, count: int, reply_rows: int) -> Subject:
    config = EngineConfig(checkpoint=folder, device=device_name, max_sessions=2, kv_rows=KV_ROWS)
    model = ModelConfig.from_file(folder / "config.json")
    processor = load_processor(folder, model, config.max_text_chars)
    segments = []
    for number, text in enumerate(prompts_from(None, count)):
        sampling = replace(processor.default_sampling, seed=number)
        request = Request(f"{number}", "report", (Message("user", Text(text)),), processor.default_mode.name, sampling)
        segment = processor.prepare(request)[0]
        segments.append((replace(segment, max_rows=min(segment.max_rows, reply_rows)), sampling))
    return Subject(model, lambda dtype: make_runtime(replace(config, dtype=dtype)), segments,
                   resolve_device(device_name), f"checkpoint {folder.name}")


@contextlib.contextmanager
def calibrated(folder: Path, num_prompts: int, reply_rows: int, device_name: str) -> Iterator[Path]:
    """A passing copy of a checkpoint, of the same name, with scales of its own."""
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(shutil.copytree(folder, Path(parent) / folder.resolve().name))
        quantize(copy, prompts_from(None, num_prompts), reply_rows, device_name)
        yield copy


def preset_subject(count: int, reply_rows: int) -> Subject:
    """Random weights of the full size on a GPU, random prompts of 64 rows that are answered with speech."""
    from moss_engine.runtime.cuda import make_random_runtime
    from moss_engine.runtime.cuda_weights import Float8
    from scripts.bench_cuda import PUBLISHED

    device, ids = resolve_device("cuda"), PUBLISHED.special
    limits = Limits(16, KV_ROWS // 16, 2, 512, KV_ROWS)
    formats = {REFERENCE: Float8.NONE, "float8": Float8.TRUNK, "float8-all": Float8.ALL}

    def make(dtype: str) -> Runtime:
        return make_random_runtime(PUBLISHED, limits, device=device, dtype=torch.bfloat16, seed=0,
                                   float8=formats[dtype])

    segments = []
    for number in range(count):
        chance = random.Random(number)
        codes = (Row(ids.modality_pad, chance.randrange(ids.num_codes)) for _ in range(63))
        segments.append((Segment((*codes, Row(ids.sosp, ids.audio_pad)), reply_rows),
                         Sampling(SAMPLED, SAMPLED, reply_rows, 0, number)))
    return Subject(PUBLISHED, make, segments, device, "random, seed 0")


def table(report: dict[str, Any]) -> str:
    names = f"{'rows':>6}{'error':>9}{'KL':>10}{'KL p99':>9}{'same best':>11}{'changed':>9}"
    lines = [f"{'format':<26}{'channel':<8}{names}"]
    for a in report["agreement"]:
        lines.append(f"{a['dtype']:<26}{a['channel']:<8}{a['rows']:>6}{a['logit_error']:>9.4f}{a['kl_mean']:>10.2g}"
                     f"{a['kl_p99']:>9.2g}{a['same_best']:>11.2%}{a['rows_changed']:>9.2%}")
    for f in report["free"]:
        until = "" if f["rows_until_different"] is None else f", the others after {f['rows_until_different']:g} rows"
        lines.append(f"{f['dtype']:<26}{f['replies']} replies by itself: {f['equal']:.0%} equal{until}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT, metavar="DIR")
    parser.add_argument("--preset", choices=(PRESET,), help="random weights of the full size instead of a checkpoint")
    parser.add_argument("--calibrate", type=int, default=0, metavar="N",
                        help="examine a copy of the checkpoint with scales from N prompts, instead of those it has")
    parser.add_argument("--reference", default=REFERENCE, help=f"the format that the others are held against "
                                                               f"({REFERENCE})")
    parser.add_argument("--dtypes", default="float8,float8-all", metavar="NAME,...")
    parser.add_argument("--prompts", type=int, default=60, metavar="N", help="prompts to answer (60)")
    parser.add_argument("--rows", type=int, default=64, metavar="N", help="rows of the longest reply (64)")
    parser.add_argument("--device", default="auto", help="as in the program's options (auto)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if args.calibrate and not args.preset:
            args.checkpoint = stack.enter_context(calibrated(args.checkpoint, args.calibrate, args.rows, args.device))
        subject = preset_subject(args.prompts, args.rows) if args.preset else \
            checkpoint_subject(args.checkpoint, args.device, args.prompts, args.rows)
        report = examine(subject, args.reference, args.dtypes.split(","))
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
