"""prompts + talk + codes + tokenizer -> endless training batches, made by worker processes.

A batch is a flat run of rows, divided into cells of a few fixed widths; every cell holds one sequence from its start
and padding after it. All shapes are constants of a run, so the training step compiles once, and attention is plain
causal attention inside each cell: no sequence sees another.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from moss_engine.models.config import ModelConfig
from scripts.nano.layout import AUDIO_TARGET, NANO_CONFIG, TEXT_TARGET, LaidOut, cut_chunks, lay_out
from scripts.nano.tokenizer import CHAT, DROPOUT, IM_END, IM_START, READ, load_tokenizer, read_prompts, read_talk

WIDTHS = (64, 96, 128, 176, 224, 288, 384, 512, 768)
VARIANTS = 8
TALK_SHARE = 0.45
"""So many of the sequences are small talk: its answers have to be known by heart."""
KIND_SHARES = {
    "intents": 0.18,
    "calendar": 0.04,
    "opposites": 0.05,
    "capitals": 0.08,
    "meanings": 0.27,
    "plurals": 0.05,
    "sums": 0.17,
    "unknown words": 0.09,
    "off the script": 0.07,
}
ONLY_TEXT_SHARE = 0.7
"""So many of the answers are learnt without most of their sound, since that is several times shorter."""
TALK_DROPOUT_SHARE = 0.3
IGNORE = -100


def nano_config() -> ModelConfig:
    return ModelConfig.from_dict(dict(NANO_CONFIG), source="scripts/nano/layout.py")


class PieceTable:
    """Text ids of every distinct word: canonical, and several draws with BPE dropout."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str], variants: int):
        self.index: dict[str, int] = {}
        for text in texts:
            for piece in _spaced(text):
                self.index.setdefault(piece, len(self.index))
        names = list(self.index)
        tokenizer.model.dropout = None
        self.draws = [[e.ids for e in tokenizer.encode_batch_fast(names)]]
        tokenizer.model.dropout = DROPOUT
        for _ in range(variants):
            self.draws.append([e.ids for e in tokenizer.encode_batch_fast(names)])
        tokenizer.model.dropout = None

    def words(self, text: str, rng: random.Random | None) -> list[list[int]]:
        """Ids of each word of the text; `rng` None gives the canonical pieces."""
        draws, index = self.draws, self.index
        if rng is None:
            return [draws[0][index[piece]] for piece in _spaced(text)]
        last = len(draws) - 1
        return [draws[rng.randint(0, last)][index[piece]] for piece in _spaced(text)]


def _spaced(text: str) -> list[str]:
    words = text.split()
    return words[:1] + [" " + word for word in words[1:]]


@dataclass(frozen=True)
class Batch:
    """rows: [N, 2]; *_at: rows that predict *_target (IGNORE beyond the used part). Shapes are fixed in a run."""

    rows: np.ndarray
    text_at: np.ndarray
    text_target: np.ndarray
    audio_at: np.ndarray
    audio_target: np.ndarray

    def packed(self) -> np.ndarray:
        """All of it in one int32 array, in the order of the fields."""
        return np.concatenate(
            [self.rows.ravel(), self.text_at, self.text_target, self.audio_at, self.audio_target], dtype=np.int32
        )


@dataclass(frozen=True)
class Shape:
    """Cells of each width in a batch, and the fixed numbers of predicted rows."""

    cells: tuple[int, ...]
    text_targets: int
    audio_targets: int

    @property
    def num_rows(self) -> int:
        return sum(count * width for count, width in zip(self.cells, WIDTHS))

    @property
    def packed_sizes(self) -> list[int]:
        """Lengths of the parts of `Batch.packed`."""
        return [2 * self.num_rows, *[self.text_targets] * 2, *[self.audio_targets] * 2]


Take = tuple[np.ndarray, list[int]]
"""The codes of an utterance, and the starts of its words in codes."""


class Corpus:
    """Everything the workers need, built once before they are forked; `refresh` takes in speech that came later."""

    def __init__(self, work: Path, split: str):
        self.config, self.path = nano_config(), work / "codes.npz"
        prompts = (row for row in read_prompts(work) if row["mode"] == "chat" or row["split"] == split)
        self.prompts = {row["id"]: (row["mode"], row["spoken"]) for row in prompts}
        self.pairs = [
            (row["kind"], row["user"], row["spoken"]) for row in read_talk(work) if row["is_held"] == (split == "held")
        ]
        self.loaded_ns = 0
        self.refresh()
        if not self.reads:
            raise SystemExit(f"{self.path} has no utterance of the split {split!r}; run the earlier stages first.")
        tokenizer = load_tokenizer(work / "tokenizer.json")
        texts = [text for _, text in self.prompts.values()] + [t for _, *pair in self.pairs for t in pair]
        self.table = PieceTable(tokenizer, texts, VARIANTS)
        special = {name: tokenizer.token_to_id(name) for name in (IM_START, IM_END, READ, CHAT)}
        plain = {name: tokenizer.encode(name).ids for name in ("system", "user", "assistant", "\n")}
        start, end, line = [special[IM_START]], [special[IM_END]], plain["\n"]
        self.opening = {
            mode: [*start, *plain["system"], *line, special[name], *end, *line, *start, *plain["user"], *line]
            for mode, name in (("read", READ), ("chat", CHAT))
        }
        self.closing = [*end, *line, *start, *plain["assistant"], *line]

    def refresh(self) -> None:
        """Load codes.npz if it is another file than last time, and the small talk whose answers are in it."""
        changed_ns = self.path.stat().st_mtime_ns
        if changed_ns == self.loaded_ns:
            return
        self.loaded_ns = changed_ns
        self.reads: list[tuple[str, Take]] = []
        self.answers: dict[str, list[Take]] = {}
        with np.load(self.path) as data:
            ids, offsets, codes = data["ids"], data["code_offsets"].tolist(), data["codes"]
            word_offsets, word_starts = data["word_offsets"].tolist(), data["word_starts"].tolist()
        for i, utterance in enumerate(ids.tolist()):
            mode, text = self.prompts.get(utterance, ("", ""))
            starts = word_starts[word_offsets[i] : word_offsets[i + 1]]
            if mode and len(starts) == len(text.split()) and offsets[i + 1] > offsets[i]:
                take = (codes[offsets[i] : offsets[i + 1]], starts)
                if mode == "chat":
                    self.answers.setdefault(text, []).append(take)
                else:
                    self.reads.append((text, take))
        self.talk: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KIND_SHARES}
        for kind, user, answer in self.pairs:
            if answer in self.answers:
                self.talk[kind].append((user, answer))
        self.kinds = [kind for kind, pairs in self.talk.items() if pairs]

    def read_sequence(self, index: int, rng: random.Random, *, dropout: bool) -> LaidOut:
        text, (codes, starts) = self.reads[index]
        words = self.table.words(text, rng if dropout else None)
        return self._lay_out("read", words, words, text, (codes, starts), rng)

    def talk_sequence(self, kind: str, rng: random.Random, *, dropout: bool) -> LaidOut:
        """A question of a kind with its answer, which is always written in the same pieces."""
        user, answer = rng.choice(self.talk[kind])
        asked = self.table.words(user, rng if dropout and rng.random() < TALK_DROPOUT_SHARE else None)
        said = self.table.words(answer, None)
        only_text = rng.random() < ONLY_TEXT_SHARE
        return self._lay_out("chat", asked, said, answer, rng.choice(self.answers[answer]), rng, only_text)

    def _lay_out(
        self,
        mode: str,
        asked: list[list[int]],
        said: list[list[int]],
        text: str,
        take: Take,
        rng: random.Random,
        only_text: bool = False,
    ) -> LaidOut:
        codes, starts = take
        prompt = [*self.opening[mode], *(i for word in asked for i in word), *self.closing]
        chunks = cut_chunks(text.split(), starts, len(codes), rng)
        return lay_out(prompt, said, codes, chunks, self.config.special, only_text=only_text)

    def sequences(self, rng: random.Random, share: tuple[int, int], *, dropout: bool) -> Iterator[LaidOut]:
        """An epoch: every `share[1]`-th text to read from `share[0]` on in random order, with small talk between."""
        order = list(range(share[0], len(self.reads), share[1]))
        rng.shuffle(order)
        weights = [KIND_SHARES[kind] for kind in self.kinds]
        for index in order:
            yield self.read_sequence(index, rng, dropout=dropout)
            while self.kinds and rng.random() < TALK_SHARE:
                yield self.talk_sequence(rng.choices(self.kinds, weights)[0], rng, dropout=dropout)

    def shape(self, target_rows: int, seed: int) -> Shape:
        """Cells in proportion to the lengths there are, about `target_rows` in all."""
        rng = random.Random(seed)
        sample = list(islice(self.sequences(rng, (0, 1), dropout=True), 2000))
        widths = [_cell_of(len(s.rows)) for s in sample]
        share = [widths.count(k) / len(widths) for k in range(len(WIDTHS))]
        scale = target_rows / sum(p * w for p, w in zip(share, WIDTHS))
        cells = tuple(max(1, round(scale * p)) for p in share)
        counts = [
            sum(int((s.target == kind).sum()) for s in sample) / len(sample) * sum(cells)
            for kind in (TEXT_TARGET, AUDIO_TARGET)
        ]
        return Shape(cells, *(int(-(-count * 1.08 // 256) * 256) for count in counts))


def _cell_of(length: int) -> int | None:
    return next((k for k, width in enumerate(WIDTHS) if length <= width), None)


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
    """Batches over every `share[1]`-th text from `share[0]` on and small talk, newly cut and drawn in every epoch."""
    waiting: list[deque[LaidOut]] = [deque(maxlen=8 * count) for count in shape.cells]
    config, wanted, epoch = corpus.config, sum(shape.cells) * 1.3, 0
    while epochs is None or epoch < epochs:
        rng = random.Random((seed * 1_000_003 + epoch) * 997 + share[0])
        corpus.refresh()
        for sequence in corpus.sequences(rng, share, dropout=dropout):
            cell = _cell_of(len(sequence.rows))
            if cell is not None:
                waiting[cell].append(sequence)
            if sum(map(len, waiting)) >= wanted:
                yield assemble(_filled(waiting, shape), shape, config.pad_token_id, config.audio_pad_token_id)
        epoch += 1
    while any(waiting):
        yield assemble(_filled(waiting, shape), shape, config.pad_token_id, config.audio_pad_token_id)


def _filled(waiting: list[deque[LaidOut]], shape: Shape) -> list[list[LaidOut]]:
    """Take sequences for every cell; a cell without one of its own width gets a shorter one."""
    taken: list[list[LaidOut]] = [[] for _ in shape.cells]
    for k, count in enumerate(shape.cells):
        while len(taken[k]) < count and waiting[k]:
            taken[k].append(waiting[k].popleft())
    for k in reversed(range(len(shape.cells))):
        for j in range(k - 1, -1, -1):
            while len(taken[k]) < shape.cells[k] and len(waiting[j]) > shape.cells[j]:
                taken[k].append(waiting[j].popleft())
    return taken


def start_workers(corpus: Corpus, shape: Shape, seed: int, count: int) -> tuple[queue.Queue, list]:
    """Fork workers that fill a bounded queue with packed batches; call before any GPU work of this process."""
    context = multiprocessing.get_context("fork")
    pipe = context.Queue(maxsize=4 * count)

    def fill(worker: int) -> None:
        for batch in batches(corpus, shape, seed, share=(worker, count)):
            pipe.put(batch.packed())

    workers = [context.Process(target=fill, args=(worker,), daemon=True) for worker in range(count)]
    for worker in workers:
        worker.start()
    ready: queue.Queue = queue.Queue(maxsize=8)

    def receive() -> None:  # a batch crosses the pipe in small pieces, so the training step must not wait for it
        while True:
            ready.put(pipe.get())

    threading.Thread(target=receive, daemon=True).start()
    return ready, workers
