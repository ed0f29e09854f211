"""Stage 1: text packages, templates and small talk -> prompts.jsonl.gz and talk.jsonl.gz.

    python -m scripts.nano.prompts --work DIR [--sources ROOT] --hours 112

ROOT is the folder into which the packages of `word_sources.py` were unpacked. Each line is
{"id", "mode", "user", "spoken", "speed", "split"}, what the teacher has to say; the text is in its spoken form. Lines
are in random order, so any leading part of the file is a fair sample. Rows of the mode "chat" are the answers of the
small talk; their questions are the lines of talk.jsonl.gz, {"kind", "user", "spoken", "is_held"}.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from moss_engine.spoken.text import spoken_text
from scripts.nano.grammar import Grammar
from scripts.nano.sentences import EVERYDAY, HARVARD, STRESS
from scripts.nano.small_talk import small_talk
from scripts.nano.word_sources import bible_verses, is_coarse, scowl_names, scowl_words, word_counts, wordnet_senses

CHARS_PER_S = 16.0
HELD_SHARE = 0.008
TAKES = 2
"""So many times, at changing speed, the teacher says an answer of the small talk."""
SHARES = {
    "everyday": 0.42,
    "wordnet_examples": 0.19,
    "definitions": 0.12,
    "bible": 0.06,
    "carriers": 0.15,
    "names": 0.06,
}
_CARRIERS = (
    "The words are {0}, {1}, {2}, and {3}.",
    "{0}, {1}, {2}, {3}, and {4}.",
    "He wrote {0}, {1}, and {2} on the board.",
    "Between {0} and {1} there is {2}.",
    "Is it {0}, {1}, or {2}?",
    "They spoke of {0} and {1}, but not of {2}.",
    "{0} or {1}? I would say {2}.",
    "Please say {0}, {1}, {2}, {3}.",
    "Not {0}, but {1} and {2}.",
    "{0} comes before {1} and after {2}.",
    "{0}.",
    "{0} {1}.",
    "What is the meaning of {0}, {1}, or {2}?",
    "The {0} of {1} and the {2} of {3}.",
    "With {0}, without {1}, and for {2}.",
    "The list has {0}, {1}, {2}, {3}, {4}, and {5}.",
    "I read about {0} and {1}.",
    "{0}, {0}, and {0} again.",
    "Not {0}, not {0}, but {1}.",
    "Very, very {0}, and very, very, very {1}.",
    "I said that that {0} was {1}.",
    "They know that that is {0}, and that that is not {1}.",
    "What he had had was {0}, {0}, and {1}.",
    "If it is {0}, it is {0}; if it is not, it is {1}.",
    "Red {0}, {1} {0}, red {0}, {1} {0}.",
    "We say {0} and {1}, {2} and {3}.",
)
_NAME_CARRIERS = (
    "{0} and {1} met {2} in {3}.",
    "{0} wrote to {1} about {2}.",
    "Have you heard of {0}, {1}, or {2}?",
    "{0} {1} lives near {2}.",
    "My friends are called {0}, {1}, {2}, and {3}.",
    "From {0} we went to {1} and {2}.",
    "{0} was painted by {1} {2}.",
    "The {0} team played against {1} and {2}.",
    "{0}, {1}, and {2} are on the list.",
    "Ask {0} or {1}.",
    "{0} is not the same as {1}.",
)


def _as_sentence(text: str) -> str:
    text = text.strip(" ;,:-")
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else text + "."


def _examples(sources: Path) -> Iterator[str]:
    for sense in wordnet_senses(sources):
        yield from (_as_sentence(example) for example in sense.examples)


def _definitions(sources: Path, rng: random.Random) -> Iterator[str]:
    counts = word_counts(sources)
    senses = [s for s in wordnet_senses(sources) if s.definition and s.words[0].replace(" ", "").isalpha()]
    rng.shuffle(senses)
    for sense in sorted(senses, key=lambda s: -min(counts.get(s.words[0].lower(), 0), 3)):
        word, meaning = sense.words[0], sense.definition
        yield _as_sentence(
            rng.choice((f"{word}, {meaning}", meaning, meaning, f"{word} means {meaning}", f"{word}: {meaning}"))
        )


def _verses(sources: Path, rng: random.Random) -> Iterator[str]:
    verses = bible_verses(sources)
    rng.shuffle(verses)
    for verse in verses:
        yield from (_as_sentence(part) for part in re.split(r"(?<=[:;?!.])\s+", re.sub(r"[()]", "", verse)))


def _carried(words: list[str], carriers: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """Every word once a round, in random company, endlessly."""
    while True:
        pool = words[:]
        rng.shuffle(pool)
        while len(pool) > 6:
            carrier = rng.choice(carriers)
            used = len(set(re.findall(r"\{(\d)\}", carrier)))
            yield _as_sentence(carrier.format(*[pool.pop() for _ in range(used)]))


def _everyday(sources: Path, rng: random.Random) -> Iterator[str]:
    grammar = Grammar(sources, rng)
    while True:
        yield grammar.sentence()


def normal(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


class Judged:
    """The evaluation sentences, as runs of words that no training text may share."""

    RUN = 5

    def __init__(self) -> None:
        self.whole = {normal(spoken_text(text)) for text in (*HARVARD, *EVERYDAY, *STRESS)}
        self.runs = {run for text in self.whole for run in self._runs(text)}

    def _runs(self, text: str) -> set[str]:
        words = text.split()
        return {" ".join(words[i : i + self.RUN]) for i in range(len(words) - self.RUN + 1)}

    def touches(self, text: str) -> bool:
        text = normal(text)
        return text in self.whole or not self.runs.isdisjoint(self._runs(text))


def _vary(text: str, rng: random.Random) -> str:
    """Now and then as people type: without the last mark, or without capitals."""
    draw = rng.random()
    if draw < 0.05:
        text = text.rstrip(".")
    return text.lower() if draw < 0.03 else text


def read_rows(sources: Path, chars: int, rng: random.Random, judged: Judged) -> Iterator[tuple[str, str]]:
    """(source, spoken text) of about `chars` characters in all."""
    word_pool = [w for w in scowl_words(sources, 60) if len(w) > 2 and not is_coarse(w)]
    streams: dict[str, Iterator[str]] = {
        "everyday": _everyday(sources, rng),
        "wordnet_examples": _examples(sources),
        "definitions": _definitions(sources, rng),
        "bible": _verses(sources, rng),
        "carriers": _carried(word_pool, _CARRIERS, rng),
        "names": _carried([w for w in scowl_names(sources, 60) if not is_coarse(w)], _NAME_CARRIERS, rng),
    }
    seen: set[str] = set()
    for source, share in SHARES.items():
        left = chars * share
        kept: list[str] = []
        for text in streams[source]:
            if left <= 0:
                break
            if is_coarse(text):
                continue
            said = spoken_text(text)
            key = normal(said)
            if not 1 <= len(key.split()) <= 40 or len(said) > 230 or key in seen or judged.touches(said):
                continue
            if len(key.split()) < 3 and rng.random() > 0.3:
                continue
            seen.add(key)
            left -= len(said) + 1
            kept.append(_vary(said, rng))
        rng.shuffle(kept)
        yield from ((source, text) for text in _joined(kept, rng))


def _joined(texts: list[str], rng: random.Random) -> Iterator[str]:
    """Some neighbours as one text of two or three sentences."""
    position = 0
    while position < len(texts):
        count = rng.choices((1, 2, 3), (0.70, 0.19, 0.11))[0]
        group = texts[position : position + count]
        if count > 1 and (sum(map(len, group)) > 225 or not all(text.endswith((".", "?", "!")) for text in group)):
            group = group[:1]
        yield " ".join(group)
        position += len(group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sources", type=Path, help="folder of the unpacked packages (default: WORK/sources)")
    parser.add_argument("--hours", type=float, default=110.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-talk", action="store_true", help="write talk.jsonl.gz alone: the answers are spoken")
    args = parser.parse_args()
    sources = args.sources or args.work / "sources"
    rng, judged = random.Random(args.seed), Judged()
    talk = [pair for pair in small_talk(sources, rng) if not judged.touches(pair.spoken)]
    args.work.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.work / "talk.jsonl.gz", "wt", encoding="utf-8", compresslevel=9) as out:
        for pair in talk:
            out.write(json.dumps(dataclasses.asdict(pair)) + "\n")
    for kind, count in Counter(pair.kind for pair in talk).items():
        distinct = len({pair.spoken for pair in talk if pair.kind == kind})
        print(f"small talk: {kind:16s} {count:6d} questions, {distinct:5d} answers")
    if args.only_talk:
        return
    answers = [answer for answer in dict.fromkeys(pair.spoken for pair in talk) for _ in range(TAKES)]
    read_chars = int(args.hours * 3600 * CHARS_PER_S) - sum(len(answer) + 8 for answer in answers)
    rows = [("chat", "chat", "", answer) for answer in answers]
    rows += [(source, "read", text, text) for source, text in read_rows(sources, read_chars, rng, judged)]
    rng.shuffle(rows)
    counted: Counter[str] = Counter()
    with gzip.open(args.work / "prompts.jsonl.gz", "wt", encoding="utf-8", compresslevel=9) as out:
        for index, (source, mode, user, said) in enumerate(rows):
            assert not judged.touches(said), f"an evaluation sentence in the training text: {said}"
            split = "held" if mode == "read" and rng.random() < HELD_SHARE else "train"
            row = {
                "id": index,
                "mode": mode,
                "user": user,
                "spoken": said,
                "speed": round(rng.uniform(0.9, 1.1), 2),
                "split": split,
            }
            out.write(json.dumps(row) + "\n")
            counted[source] += 1
            counted[f"{source} chars"] += len(said)
    names = [*SHARES, "chat"]
    for name in names:
        chars = counted[f"{name} chars"]
        print(
            f"{name:18s} {counted[name]:7d} rows  {chars / 1e6:6.2f} M characters  {chars / CHARS_PER_S / 3600:6.1f} h"
        )
    total = sum(counted[f"{name} chars"] for name in names)
    print(f"{'total':18s} {len(rows):7d} rows  {total / 1e6:6.2f} M characters  {total / CHARS_PER_S / 3600:6.1f} h")


if __name__ == "__main__":
    main()
