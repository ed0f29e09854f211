"""Prompts, codes and tokenizer -> training sequences of rows.

A sequence is the prompt, then the reply: text rows of a chunk of words, sosp, the codes of the
chunk, eosp, text rows of the next chunk, ..., im_end. A chunk is cut where its first word starts;
all chunks together hold every code of the utterance once, in order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from moss_engine.api.errors import CheckpointError
from moss_engine.api.tokens import SpecialIds
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.models.config import ModelConfig
from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS, rate_token
from scripts.nano.tokenizer import IM_END, IM_START, READ, load_tokenizer, read_prompts

NANO_CONFIG: dict[str, object] = json.loads(
    (NANO_CHECKPOINT / "config.json").read_text(encoding="utf-8")
)
"""The sizes and ids of the shipped network, which is trained again."""
NO_TARGET, TEXT_TARGET, AUDIO_TARGET = 0, 1, 2
KEPT_CODES = 2
_CHUNK_WORDS = ((1, 2), (2, 3), (2, 5))
_MIN_FIRST_LETTERS = 4
_BREAK_MARKS = (".", ",", "?", "!", ";", ":")
VARIANTS, DROPOUT = 8, 0.1
"""How many random ways of cutting a word into pieces there are, and their rate of BPE dropout."""
DRILL_SHARE = 0.15
"""The share of texts after which comes a drill: words and phrases that occur twice or more, to be
copied."""
MAX_DRILL_WORDS = 45
_DIGITS = "zero one two three four five six seven eight nine".split()
USED_SPECIALS = (IM_START, IM_END, READ, *VOICE_TOKENS.values(), *RATE_TOKENS)


def nano_config() -> ModelConfig:
    return ModelConfig.from_dict(dict(NANO_CONFIG), source=__name__)


@dataclass(frozen=True)
class Chunk:
    """Words [first_word, end_word) and codes [first_code, end_code) of one utterance."""

    first_word: int
    end_word: int
    first_code: int
    end_code: int


@dataclass(frozen=True)
class LaidOut:
    """`rows` int16 [n, 2]; `target` int8 [n]: which head learns to predict row i + 1 from row i."""

    rows: np.ndarray
    target: np.ndarray


def cut_chunks(
    words: Sequence[str], word_starts: Sequence[int], num_codes: int, rng: random.Random
) -> list[Chunk]:
    """Cut an utterance at random into chunks, short ones first, at a punctuation mark where one is
    in reach; every chunk has at least one code.

    `words` have their punctuation; `word_starts` are in codes, never decreasing, from 0 on.
    """
    assert len(words) == len(word_starts) > 0 and num_codes > 0
    chunks: list[Chunk] = []
    first = 0
    while first < len(words):
        end = _chunk_end(words, first, len(chunks), rng)
        start_code = chunks[-1].end_code if chunks else 0
        while end < len(words) and not start_code < word_starts[end] < num_codes:
            end += 1
        chunks.append(
            Chunk(first, end, start_code, num_codes if end == len(words) else int(word_starts[end]))
        )
        first = end
    return chunks


def _chunk_end(words: Sequence[str], first: int, index: int, rng: random.Random) -> int:
    low, high = _CHUNK_WORDS[min(index, len(_CHUNK_WORDS) - 1)]
    if index == 0 and sum(map(str.isalpha, words[0])) < _MIN_FIRST_LETTERS:
        low = 2
    count = rng.randint(low, high)
    if index > 0:
        marked = [
            n
            for n in range(low - 1, high + 1)
            if n > 0 and words[min(first + n, len(words)) - 1].endswith(_BREAK_MARKS)
        ]
        if marked and rng.random() < 0.8:
            count = marked[0]
    end = min(first + count, len(words))
    return len(words) if len(words) - end == 1 and index > 0 and count < high else end


def lay_out(
    prompt_ids: Sequence[int],
    word_ids: Sequence[Sequence[int]],
    codes: np.ndarray,
    chunks: Sequence[Chunk],
    ids: SpecialIds,
    *,
    only_text: bool = False,
) -> LaidOut:
    """Prompt rows, then the reply. `word_ids[k]` are the text ids of word k with its leading space.

    With `only_text` the last chunk keeps just its first codes and none is to be predicted: a
    shorter sequence that teaches what to say, with the words of every chunk after sound as in a
    real reply.
    """
    rows, kinds = [(i, ids.audio_pad) for i in prompt_ids], [NO_TARGET] * len(prompt_ids)
    for chunk in chunks:
        is_cut = only_text and chunk is chunks[-1]
        end_code = min(chunk.end_code, chunk.first_code + KEPT_CODES) if is_cut else chunk.end_code
        said = [piece for word in word_ids[chunk.first_word : chunk.end_word] for piece in word]
        spoken = codes[chunk.first_code : end_code].tolist()
        rows += [(piece, ids.audio_pad) for piece in (*said, ids.sosp)]
        rows += [(ids.modality_pad, code) for code in (*spoken, ids.eosp)]
        kinds += [TEXT_TARGET] * (len(said) + 1)
        kinds += [NO_TARGET if only_text else AUDIO_TARGET] * (len(spoken) + 1)
    rows.append((ids.im_end, ids.audio_pad))
    return LaidOut(
        np.array(rows, np.int16), np.array([*kinds[1:], TEXT_TARGET, NO_TARGET], np.int8)
    )


class PieceTable:
    """Text ids of every distinct word: its usual pieces, and several draws with BPE dropout."""

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
        """Text ids of each word of a text, drawn by `rng`, or without one the usual pieces."""
        draws, index = self.draws, self.index
        if rng is None:
            return [draws[0][index[piece]] for piece in _spaced(text)]
        last = len(draws) - 1
        return [draws[rng.randint(0, last)][index[piece]] for piece in _spaced(text)]


def _spaced(text: str) -> list[str]:
    words = text.split()
    return words[:1] + [" " + word for word in words[1:]]


Take = tuple[np.ndarray, list[int], str, str]
"""(codes of an utterance, starts of its words in codes, name of its voice, token of its rate)."""


class Corpus:
    """Texts and codes of one split: everything that sequences are made of."""

    def __init__(self, work: Path, split: str):
        self.config = nano_config()
        prompts = {
            row["id"]: (row["spoken"], row["voice"], rate_token(row["speed"]))
            for row in read_prompts(work)
            if row["split"] == split
        }
        self._read_codes(work / "codes.npz", prompts)
        if not self.reads:
            raise CheckpointError(f"{work}/codes.npz holds no text of the split {split!r}.")
        texts = ["Say " + " ".join(_DIGITS), *(text for text, *_ in prompts.values())]
        tokenizer = load_tokenizer(work / "tokenizer.json")
        self.table = PieceTable(tokenizer, texts, VARIANTS)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.special = {name: vocab[name] for name in USED_SPECIALS}
        names = ("system", "user", "assistant", "\n")
        self.plain = {name: tokenizer.encode(name).ids for name in names}

    def _read_codes(self, path: Path, prompts: dict[int, tuple[str, str, str]]) -> None:
        """The takes of each text, from codes.npz."""
        self.reads: list[tuple[str, Take]] = []
        with np.load(path) as data:
            ids, offsets, codes = data["ids"], data["code_offsets"].tolist(), data["codes"]
            word_offsets, word_starts = data["word_offsets"].tolist(), data["word_starts"].tolist()
        for i, utterance in enumerate(ids.tolist()):
            if utterance in prompts and offsets[i + 1] > offsets[i]:
                text, voice, rate = prompts[utterance]
                starts = word_starts[word_offsets[i] : word_offsets[i + 1]]
                self.reads.append((text, (codes[offsets[i] : offsets[i + 1]], starts, voice, rate)))

    def prompt(self, voice: str, rate: str, asked: list[list[int]]) -> list[int]:
        """System turn, the user's words, and the start of the answer."""
        special, plain, line = self.special, self.plain, self.plain["\n"]
        start, end = special[IM_START], special[IM_END]
        chosen = [special[READ], special[VOICE_TOKENS[voice]], special[rate]]
        words = [i for word in asked for i in word]
        return [
            *(start, *plain["system"], *line, *chosen, end, *line),
            *(start, *plain["user"], *line, *words, end, *line),
            *(start, *plain["assistant"], *line),
        ]

    def read_sequence(self, index: int, rng: random.Random, *, dropout: bool) -> LaidOut:
        text, take = self.reads[index]
        words = self.table.words(text, rng if dropout else None)
        return self._lay_out(words, text, take, rng)

    def drill_sequence(self, index: int, rng: random.Random) -> LaidOut:
        """A drill: a text with repetitions or digits that teaches the text head alone; its few
        codes are those of another text."""
        text, (codes, _, voice, rate) = self.reads[index]
        first, *others = text.split()
        others += rng.choice(self.reads)[0].split()[1:]
        words = [first]
        while others and len(words) < MAX_DRILL_WORDS:
            taken = others[: rng.randint(1, 3)]
            others = others[len(taken) :]
            words += taken * (rng.choice((2, 2, 3)) if rng.random() < 0.3 else 1)
            if rng.random() < 0.07:
                words += rng.choices(rng.sample(_DIGITS, 3), k=rng.randint(3, 8))
        text = " ".join(words)
        copied = self.table.words(text, rng)
        take = (np.resize(codes, 3 * len(words)), [3 * i for i in range(len(words))], voice, rate)
        return self._lay_out(copied, text, take, rng, only_text=True)

    def _lay_out(
        self,
        words: list[list[int]],
        text: str,
        take: Take,
        rng: random.Random,
        only_text: bool = False,
    ) -> LaidOut:
        codes, starts, voice, rate = take
        prompt = self.prompt(voice, rate, words)
        chunks = cut_chunks(text.split(), starts, len(codes), rng)
        return lay_out(prompt, words, codes, chunks, self.config.special, only_text=only_text)

    def sequences(
        self, rng: random.Random, share: tuple[int, int], *, dropout: bool
    ) -> Iterator[LaidOut]:
        """An epoch: every `share[1]`-th text from `share[0]` on in random order, with drills
        between."""
        order = list(range(share[0], len(self.reads), share[1]))
        rng.shuffle(order)
        for index in order:
            yield self.read_sequence(index, rng, dropout=dropout)
            if dropout and rng.random() < DRILL_SHARE:
                yield self.drill_sequence(index, rng)
