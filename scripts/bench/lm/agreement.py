"""How far a runtime's logits and replies are from another's: number formats against the reference.

The reference answers every prompt. Then each other runtime is led along the same rows, one at a
time as in decode, and its logits are compared with the reference's, in the channel that is sampled;
both draw with the same numbers, so the share of rows that differ is what the format changes in one
step. Last it answers by itself: how soon does the reply differ? The reference itself, two sequences
at a time, shows what mere rounding does.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row, SpecialIds
from moss_engine.engine.sequence import Segment, Sequence
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import (
    BatchSampling,
    ScheduledBatch,
    ScheduledSequence,
    SequenceSampling,
)
from moss_engine.runtime.sampler import LogitsRuntime
from scripts.quantize import answer

SAMPLED = ChannelSampling(0.7, 20, 0.95, 1.1)


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
    device: torch.device


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

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "reference": self._reference,
            "prompts": len(self._sequences),
            "agreement": [asdict(a) for a in self._agreements],
            "free": [asdict(f) for f in self._free],
        }

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


def random_subject(
    model: ModelConfig, count: int, reply_rows: int, device: torch.device
) -> Subject:
    """Random prompts of 64 rows that are answered with speech, for random weights."""
    ids, segments = model.special, []
    for number in range(count):
        chance = random.Random(number)
        codes = (Row(ids.modality_pad, chance.randrange(ids.num_codes)) for _ in range(63))
        segments.append(
            (
                Segment((*codes, Row(ids.sosp, ids.audio_pad)), reply_rows),
                Sampling(SAMPLED, SAMPLED, reply_rows, 0, number),
            )
        )
    return Subject(model, segments, device)


def table(report: dict[str, Any]) -> str:
    names = f"{'rows':>6}{'error':>9}{'KL':>10}{'KL p99':>9}{'same best':>11}{'changed':>9}"
    lines = [f"{'format':<26}{'channel':<8}{names}"]
    for a in report["agreement"]:
        lines.append(
            f"{a['dtype']:<26}{a['channel']:<8}{a['rows']:>6}{a['logit_error']:>9.4f}{a['kl_mean']:>10.2g}"
            f"{a['kl_p99']:>9.2g}{a['same_best']:>11.2%}{a['rows_changed']:>9.2%}"
        )
    for f in report["free"]:
        until = (
            ""
            if f["rows_until_different"] is None
            else f", the others after {f['rows_until_different']:g} rows"
        )
        lines.append(
            f"{f['dtype']:<26}{f['replies']} replies by itself: {f['equal']:.0%} equal{until}"
        )
    return "\n".join(lines)
