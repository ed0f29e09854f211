"""Prompts, talk, codes and tokenizer -> sequences: an epoch has every text to read once, and small
talk between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from moss_engine.models.config import ModelConfig
from scripts.nano.lm.layout import NANO_CONFIG, LaidOut, cut_chunks, lay_out
from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS, rate_token
from scripts.nano.tokenizer import (
    CHAT,
    DROPOUT,
    IM_END,
    IM_START,
    READ,
    load_tokenizer,
    read_prompts,
    read_talk,
)

VARIANTS = 8
TALK_SHARE = 0.45
"""So many of the sequences are small talk: its answers have to be known by heart."""
KIND_SHARES = {
    "intents": 0.12,
    "calendar": 0.02,
    "opposites": 0.03,
    "capitals": 0.05,
    "meanings": 0.13,
    "plurals": 0.03,
    "sums": 0.36,
    "large sums": 0.09,
    "unknown words": 0.12,
    "off the script": 0.05,
}
ONLY_TEXT_SHARE = 0.8
"""So many of the answers are learnt without most of their sound, since that is several times
shorter."""
TALK_DROPOUT_SHARE = 0.1
DRILL_SHARE = 0.15
"""After so many of the texts to read comes a drill: words and phrases that stand twice or more, to
be copied."""
MAX_DRILL_WORDS = 45
_DIGITS = "zero one two three four five six seven eight nine".split()


def nano_config() -> ModelConfig:
    return ModelConfig.from_dict(dict(NANO_CONFIG), source="scripts/nano/lm/layout.py")


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


Take = tuple[np.ndarray, list[int], str, str]
"""The codes of an utterance, the starts of its words in codes, its voice, and the token of its
rate."""


class Corpus:
    """Everything the workers need, built once before they are forked; `refresh` takes in speech
    that came later."""

    def __init__(self, work: Path, split: str):
        self.config, self.path = nano_config(), work / "codes.npz"
        prompts = (
            row for row in read_prompts(work) if row["mode"] == "chat" or row["split"] == split
        )
        self.prompts = {
            row["id"]: (row["mode"], row["spoken"], row["voice"], rate_token(row["speed"]))
            for row in prompts
        }
        self.pairs = [
            (row["kind"], row["user"], row["spoken"])
            for row in read_talk(work)
            if row["is_held"] == (split == "held")
        ]
        self.loaded_ns = 0
        self.refresh()
        if not self.reads:
            raise SystemExit(
                f"{self.path} has no utterance of the split {split!r}; run the earlier stages "
                f"first."
            )
        tokenizer = load_tokenizer(work / "tokenizer.json")
        texts = ["Say " + " ".join(_DIGITS), *(row[1] for row in self.prompts.values())]
        texts += [text for _, *pair in self.pairs for text in pair]
        self.table = PieceTable(tokenizer, texts, VARIANTS)
        names = (IM_START, IM_END, READ, CHAT, *VOICE_TOKENS.values(), *RATE_TOKENS)
        special = {name: tokenizer.token_to_id(name) for name in names}
        assert None not in special.values(), "the tokenizer lacks the tokens of voices and rates"
        plain = {name: tokenizer.encode(name).ids for name in ("system", "user", "assistant", "\n")}
        start, end, line = [special[IM_START]], [special[IM_END]], plain["\n"]
        self.opening = {
            (mode, voice, rate): [
                *start,
                *plain["system"],
                *line,
                special[name],
                special[voice_token],
                special[rate],
                *end,
                *line,
                *start,
                *plain["user"],
                *line,
            ]
            for mode, name in (("read", READ), ("chat", CHAT))
            for voice, voice_token in VOICE_TOKENS.items()
            for rate in RATE_TOKENS
        }
        self.closing = [*end, *line, *start, *plain["assistant"], *line]

    def refresh(self) -> None:
        """Load codes.npz if it is another file than last time, and the small talk whose answers are
        in it."""
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
            mode, text, voice, rate = self.prompts.get(utterance, ("", "", "", ""))
            starts = word_starts[word_offsets[i] : word_offsets[i + 1]]
            if mode and len(starts) == len(text.split()) and offsets[i + 1] > offsets[i]:
                take = (codes[offsets[i] : offsets[i + 1]], starts, voice, rate)
                if mode == "chat":
                    self.answers.setdefault(text, []).append(take)
                else:
                    self.reads.append((text, take))
        self.talk: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KIND_SHARES}
        for kind, user, answer in self.pairs:
            if answer in self.answers:
                self.talk[kind].append((user, answer))
        self.kinds = [kind for kind, pairs in self.talk.items() if pairs]

    def read_sequence(
        self, index: int, rng: random.Random, *, dropout: bool, only_text: bool = False
    ) -> LaidOut:
        text, take = self.reads[index]
        words = self.table.words(text, rng if dropout else None)
        return self._lay_out("read", words, words, text, take, rng, only_text)

    def drill_sequence(self, index: int, rng: random.Random) -> LaidOut:
        """A text with some of it repeated, or with digits, as text alone; its few codes are another
        text's."""
        text, (codes, _, *how) = self.reads[index]
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
        voice, rate = how
        take = (np.resize(codes, 3 * len(words)), [3 * i for i in range(len(words))], voice, rate)
        return self._lay_out("read", copied, copied, text, take, rng, only_text=True)

    def talk_sequence(
        self, kind: str, rng: random.Random, *, dropout: bool, only_text: bool
    ) -> LaidOut:
        """A question of a kind with its answer."""
        return self.answer_sequence(
            *rng.choice(self.talk[kind]), rng, dropout=dropout, only_text=only_text
        )

    def answer_sequence(
        self, user: str, answer: str, rng: random.Random, *, dropout: bool, only_text: bool
    ) -> LaidOut:
        """A question, and its answer, which is always written in the same pieces."""
        asked = self.table.words(
            user, rng if dropout and rng.random() < TALK_DROPOUT_SHARE else None
        )
        said = self.table.words(answer, None)
        return self._lay_out(
            "chat", asked, said, answer, rng.choice(self.answers[answer]), rng, only_text
        )

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
        codes, starts, voice, rate = take
        prompt = [
            *self.opening[mode, voice, rate],
            *(i for word in asked for i in word),
            *self.closing,
        ]
        chunks = cut_chunks(text.split(), starts, len(codes), rng)
        return lay_out(prompt, said, codes, chunks, self.config.special, only_text=only_text)

    def sequences(
        self, rng: random.Random, share: tuple[int, int], *, dropout: bool
    ) -> Iterator[LaidOut]:
        """An epoch: every `share[1]`-th text to read from `share[0]` on in random order, with small
        talk between."""
        order = list(range(share[0], len(self.reads), share[1]))
        rng.shuffle(order)
        weights = [KIND_SHARES[kind] for kind in self.kinds]
        for index in order:
            yield self.read_sequence(index, rng, dropout=dropout)
            if dropout and rng.random() < DRILL_SHARE:
                yield self.drill_sequence(index, rng)
            while self.kinds and rng.random() < TALK_SHARE:
                kind, only_text = (
                    rng.choices(self.kinds, weights)[0],
                    rng.random() < ONLY_TEXT_SHARE,
                )
                yield self.talk_sequence(kind, rng, dropout=dropout, only_text=only_text)
