"""Sequences -> endless training batches.

A batch is a flat run of rows, divided into cells of a few fixed widths; every cell holds one
sequence from its start and padding after it. All shapes are constants of a run, so the training
step compiles once, and attention is plain causal attention inside each cell: no sequence sees
another.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from scripts.nano.lm.sequences import AUDIO_TARGET, TEXT_TARGET, Corpus, LaidOut

WIDTHS = (64, 96, 128, 176, 224, 288, 384, 512, 768)
IGNORE = -100


class Batch(NamedTuple):
    """`rows` are [N, 2]; the rows at `*_at` predict `*_target`, which is IGNORE beyond the used
    part. All int32, and of fixed shapes."""

    rows: np.ndarray
    text_at: np.ndarray
    text_target: np.ndarray
    audio_at: np.ndarray
    audio_target: np.ndarray


@dataclass(frozen=True)
class Shape:
    """How many cells of each width a batch has, and the fixed numbers of predicted rows."""

    cells: tuple[int, ...]
    text_targets: int
    audio_targets: int

    @property
    def num_rows(self) -> int:
        return sum(count * width for count, width in zip(self.cells, WIDTHS))


def _cell_of(length: int) -> int | None:
    return next((k for k, width in enumerate(WIDTHS) if length <= width), None)


def shape_of(corpus: Corpus, target_rows: int, seed: int) -> Shape:
    """A shape of about `target_rows` rows, with cells in proportion to the given lengths."""
    rng = random.Random(seed)
    sample = list(islice(corpus.sequences(rng, (0, 1), dropout=True), 2000))
    widths = [_cell_of(len(s.rows)) for s in sample]
    share = [widths.count(k) / len(widths) for k in range(len(WIDTHS))]
    scale = target_rows / sum(p * w for p, w in zip(share, WIDTHS))
    cells = tuple(max(1, round(scale * p)) for p in share)
    counts = [
        sum(int((s.target == kind).sum()) for s in sample) / len(sample) * sum(cells)
        for kind in (TEXT_TARGET, AUDIO_TARGET)
    ]
    return Shape(cells, *(int(-(-count * 1.08 // 256) * 256) for count in counts))


def assemble(sequences: list[list[LaidOut]], shape: Shape, text_pad: int, audio_pad: int) -> Batch:
    """Put sequences (one list a width) into their cells."""
    rows = np.empty((shape.num_rows, 2), np.int32)
    rows[:, 0], rows[:, 1] = text_pad, audio_pad
    target = np.zeros(shape.num_rows, np.int8)
    start = 0
    for width, count, here in zip(WIDTHS, shape.cells, sequences):
        for k, sequence in enumerate(here):
            at = start + k * width
            rows[at : at + len(sequence.rows)] = sequence.rows
            target[at : at + len(sequence.target)] = sequence.target
        start += count * width

    def picked(kind: int, limit: int, channel: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.flatnonzero(target == kind)[:limit]
        where, wanted = np.zeros(limit, np.int32), np.full(limit, IGNORE, np.int32)
        where[: len(at)], wanted[: len(at)] = at, rows[at + 1, channel]
        return where, wanted

    text_at, text_target = picked(TEXT_TARGET, shape.text_targets, 0)
    audio_at, audio_target = picked(AUDIO_TARGET, shape.audio_targets, 1)
    return Batch(rows, text_at, text_target, audio_at, audio_target)


def batches(
    corpus: Corpus,
    shape: Shape,
    seed: int,
    *,
    share: tuple[int, int] = (0, 1),
    dropout: bool = True,
    epochs: int | None = None,
) -> Iterator[Batch]:
    """Batches over every `share[1]`-th text from `share[0]` on, newly cut and drawn in every
    epoch."""
    waiting: list[deque[LaidOut]] = [deque(maxlen=8 * count) for count in shape.cells]
    config, wanted, epoch = corpus.config, sum(shape.cells) * 1.3, 0
    while epochs is None or epoch < epochs:
        rng = random.Random((seed * 1_000_003 + epoch) * 997 + share[0])
        for sequence in corpus.sequences(rng, share, dropout=dropout):
            cell = _cell_of(len(sequence.rows))
            if cell is not None:
                waiting[cell].append(sequence)
            if sum(map(len, waiting)) >= wanted:
                yield assemble(
                    _filled(waiting, shape), shape, config.pad_token_id, config.audio_pad_token_id
                )
        epoch += 1
    while any(waiting):
        yield assemble(
            _filled(waiting, shape), shape, config.pad_token_id, config.audio_pad_token_id
        )


def _filled(waiting: list[deque[LaidOut]], shape: Shape) -> list[list[LaidOut]]:
    """Choose a sequence for every cell: one of its width or, if there is none, a shorter one."""
    taken: list[list[LaidOut]] = [[] for _ in shape.cells]
    for k, count in enumerate(shape.cells):
        while len(taken[k]) < count and waiting[k]:
            taken[k].append(waiting[k].popleft())
    for k in reversed(range(len(shape.cells))):
        for j in range(k - 1, -1, -1):
            while len(taken[k]) < shape.cells[k] and len(waiting[j]) > shape.cells[j]:
                taken[k].append(waiting[j].popleft())
    return taken


class EndlessBatches(IterableDataset[Batch]):
    """A data set of batches without end; every worker process takes its share of the texts."""

    def __init__(self, corpus: Corpus, shape: Shape, seed: int):
        self.corpus, self.shape, self.seed = corpus, shape, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        share = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from batches(self.corpus, self.shape, self.seed, share=share)
