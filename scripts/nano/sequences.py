"""prompts + codes + tokenizer -> endless training batches, made by worker processes.

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
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from moss_engine.models.config import ModelConfig
from scripts.nano.layout import AUDIO_TARGET, NANO_CONFIG, TEXT_TARGET, LaidOut, cut_chunks, lay_out, lay_out_words
from scripts.nano.small_talk import REFUSALS, bare_sums, unknown_words
from scripts.nano.tokenizer import CHAT, DROPOUT, IM_END, IM_START, READ, load_tokenizer, read_prompts

WIDTHS = (64, 96, 128, 176, 224, 288, 384, 512, 768)
VARIANTS = 8
CHAT_REPEATS = 4
"""Answers of the small talk come so often in an epoch (refusals once): they have to be known by heart."""
CHAT_DROPOUT_SHARE = 0.3
SUM_ROUNDS = 2
"""So many wordings of every sum are learnt without sound."""
SILENT_REPEATS = 2
UNKNOWN_WORDS = 8000
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


class Corpus:
    """Everything the workers need, built once before they are forked."""

    def __init__(self, work: Path, split: str, chat_repeats: int = CHAT_REPEATS):
        self.chat_repeats = chat_repeats
        prompts = {row["id"]: row for row in read_prompts(work) if row["split"] == split}
        with np.load(work / "codes.npz") as data:
            ids, offsets, codes = data["ids"], data["code_offsets"], data["codes"]
            word_offsets, word_starts = data["word_offsets"], data["word_starts"]
        self.config = nano_config()
        self.items: list[tuple[str, str, str, np.ndarray, list[int]]] = []
        self.left_out = 0
        for i, utterance in enumerate(ids.tolist()):
            row = prompts.get(utterance)
            if row is None:
                continue
            starts = word_starts[word_offsets[i] : word_offsets[i + 1]].tolist()
            if len(starts) != len(row["spoken"].split()) or offsets[i + 1] <= offsets[i]:
                self.left_out += 1
                continue
            self.items.append((row["mode"], row["user"], row["spoken"], codes[offsets[i] : offsets[i + 1]], starts))
        if split == "train":
            self.items += [("chat", *pair, np.zeros(0, np.uint16), []) for pair in self._silent_pairs()]
        if not self.items:
            raise SystemExit(
                f"codes.npz in {work} has no utterance of the split {split!r}; run the stages before this one first."
            )
        tokenizer = load_tokenizer(work / "tokenizer.json")
        self.table = PieceTable(tokenizer, [t for item in self.items for t in {item[1], item[2]}], VARIANTS)
        special = {name: tokenizer.token_to_id(name) for name in (IM_START, IM_END, READ, CHAT)}
        plain = {name: tokenizer.encode(name).ids for name in ("system", "user", "assistant", "\n")}
        start, end, line = [special[IM_START]], [special[IM_END]], plain["\n"]
        self.opening = {
            mode: [*start, *plain["system"], *line, special[name], *end, *line, *start, *plain["user"], *line]
            for mode, name in (("read", READ), ("chat", CHAT))
        }
        self.closing = [*end, *line, *start, *plain["assistant"], *line]

    def _silent_pairs(self) -> list[tuple[str, str]]:
        """Questions whose answers begin within one chunk, to be learnt as text alone: sums, and words unknown to us."""
        rng = random.Random(0)
        answers = (item[2].split() for item in self.items if item[0] == "chat")
        defined = {words[0].lower() for words in answers if words[1:2] == ["means"]}
        read = {word for item in self.items if item[0] == "read" for word in item[1].split()}
        plain = sorted(word for word in read if word.isalpha() and word.islower() and len(word) > 3)
        chosen = rng.sample(plain, min(UNKNOWN_WORDS, len(plain)))
        refusals = [(asked, " ".join(answer.split()[:2])) for asked, answer in unknown_words(chosen, defined, rng)]
        return [pair for _ in range(SUM_ROUNDS) for pair in bare_sums(rng)] + refusals

    def sequence(self, index: int, rng: random.Random, *, dropout: bool) -> LaidOut:
        mode, user, spoken, codes, starts = self.items[index]
        dropout = dropout and (mode == "read" or rng.random() < CHAT_DROPOUT_SHARE)
        user_words = self.table.words(user, rng if dropout else None)
        said_words = user_words if user == spoken else self.table.words(spoken, rng if dropout else None)
        prompt = [*self.opening[mode], *(i for word in user_words for i in word), *self.closing]
        if not len(codes):
            return lay_out_words(prompt, said_words, self.config.special)
        chunks = cut_chunks(spoken.split(), starts, len(codes), rng)
        return lay_out(prompt, said_words, codes, chunks, self.config.special)

    def repeats(self, index: int) -> int:
        """How often an item comes in an epoch."""
        mode, _, spoken, codes, _ = self.items[index]
        if mode == "read" or spoken in REFUSALS:
            return 1
        return self.chat_repeats if len(codes) else SILENT_REPEATS

    def shape(self, target_rows: int, seed: int) -> Shape:
        """Cells in proportion to the lengths there are, about `target_rows` in all."""
        rng = random.Random(seed)
        drawn = rng.choices(range(len(self.items)), [self.repeats(i) for i in range(len(self.items))], k=2000)
        sample = [self.sequence(index, rng, dropout=True) for index in drawn]
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
    """Batches over every `share[1]`-th item from `share[0]` on, newly cut and drawn in every epoch."""
    waiting: list[deque[LaidOut]] = [deque(maxlen=8 * count) for count in shape.cells]
    config, wanted, epoch = corpus.config, sum(shape.cells) * 1.3, 0
    while epochs is None or epoch < epochs:
        rng = random.Random((seed * 1_000_003 + epoch) * 997 + share[0])
        order = [i for i in range(share[0], len(corpus.items), share[1]) for _ in range(corpus.repeats(i))]
        rng.shuffle(order)
        for index in order:
            sequence = corpus.sequence(index, rng, dropout=dropout)
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
