"""What deferring the text branch changes in the logits of the first text row after a speech. Used by `scripts.bench`.

Runs the same conversation twice, once with the text branch run at every spoken row and once made up for at the end, and
compares the text logits; also times the step that makes up for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Logits, Runtime, ScheduledBatch, ScheduledSequence, TextBranch
from moss_engine.tokens import Row
from scripts.bench_cuda import rows_of

PROMPT_ROWS = 64


@dataclass(frozen=True)
class Deferral:
    """Medians over conversations with so many spoken rows, and the largest difference.

    `relative_difference` is the norm of the logits' difference over that of the logits, `kl_nats` the divergence of the
    distributions at temperature 1; `step_ms` makes up for the rows and computes the text row, `plain_step_ms` only the
    latter.
    """

    spoken_rows: int
    relative_difference: float
    largest_relative_difference: float
    kl_nats: float
    same_best_id: float
    step_ms: float
    plain_step_ms: float


def conversation(config: ModelConfig, num_spoken: int, seed: int) -> list[Row]:
    """A prompt, rows of speech, and one row of text."""
    codes = torch.randint(0, config.eosp_token_id, (num_spoken,), generator=torch.Generator().manual_seed(seed))
    spoken = [Row(config.modality_pad_token_id, int(code)) for code in codes]
    return [*rows_of(PROMPT_ROWS, config, seed), *spoken, rows_of(2, config, seed + 1)[0]]


def run(runtime: Runtime, rows: Sequence[Row], table: tuple[int, ...], spoken: TextBranch,
        wait: Callable[[], None]) -> tuple[Logits, float]:
    """Logits of the last row, and the milliseconds of its step."""

    def step(start: int, end: int, text: TextBranch, num_deferred: int = 0) -> Logits:
        part = ScheduledSequence(tuple(rows[start:end]), start, table, True, text, num_deferred)
        return runtime.forward(ScheduledBatch((part,)))

    is_deferred = spoken is TextBranch.DEFERRED
    step(0, PROMPT_ROWS, TextBranch.SAMPLED)
    for at in range(PROMPT_ROWS, len(rows) - 1):
        step(at, at + 1, spoken, (at - PROMPT_ROWS) * is_deferred)
    wait()
    start_s = time.perf_counter()
    logits = step(len(rows) - 1, len(rows), TextBranch.SAMPLED, (len(rows) - 1 - PROMPT_ROWS) * is_deferred)
    wait()
    return logits, 1e3 * (time.perf_counter() - start_s)


def measure(runtime: Runtime, config: ModelConfig, num_spoken: int, conversations: int,
            wait: Callable[[], None]) -> Deferral:
    """`wait` returns when the device has done all it was given."""
    blocks = -(-(PROMPT_ROWS + num_spoken + 1) // runtime.limits.block_size)
    tables = tuple(range(blocks)), tuple(range(blocks, 2 * blocks))
    differences, divergences, same, times = [], [], [], []
    for seed in range(conversations):
        rows = conversation(config, num_spoken, seed)
        (plain, plain_ms), (deferred, ms) = (run(runtime, rows, table, text, wait) for table, text in
                                             zip(tables, (TextBranch.FILLED, TextBranch.DEFERRED), strict=True))
        wanted, found = plain.text[0].double(), deferred.text[0].double()
        differences.append(((found - wanted).norm() / wanted.norm()).item())
        divergences.append(F.kl_div(found.log_softmax(-1), wanted.log_softmax(-1), log_target=True,
                                    reduction="sum").item())
        same.append(bool(found.argmax() == wanted.argmax()))
        times.append((ms, plain_ms))
    step_ms, plain_step_ms = (statistics.median(values) for values in zip(*times, strict=True))
    return Deferral(num_spoken, statistics.median(differences), max(differences), statistics.median(divergences),
                    sum(same) / len(same), step_ms, plain_step_ms)
