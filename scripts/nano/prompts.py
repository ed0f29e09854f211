"""Stage 1: text packages, templates and small talk -> prompts.jsonl.gz and talk.jsonl.gz.

    python -m scripts.nano.prompts --work DIR [--sources ROOT] --hours 112

ROOT is the folder into which the packages of `word_sources.py` were unpacked. Each line is {"id",
"mode", "spoken", "takes": [[voice, speed], ...], "split"}, what the teacher has to say; the text is
in its spoken form. Where the teacher needs another text to say the same, it is "voiced" ("What's
new?" for "what's new"); "forced" are phonemes of words by their place. Lines are in random order,
so any leading part of the file is a fair sample. Rows of the mode "chat" are the answers of the
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
from dataclasses import dataclass
from pathlib import Path

from moss_engine.text.spoken.text import spoken_text
from scripts.nano.speech.pronunciations import words_said_otherwise
from scripts.nano.speech.voices import ADA, BEN, MAX_RATE, MIN_RATE, VOICES
from scripts.nano.text import talk_patterns
from scripts.nano.text.grammar import Grammar
from scripts.nano.text.hard_sentences import HARD, HOMOGRAPHS
from scripts.nano.text.homographs import Homographs
from scripts.nano.text.letters import Letters
from scripts.nano.text.prose import manual_sentences, novel_sentences
from scripts.nano.text.sentences import EVERYDAY, HARVARD, STRESS
from scripts.nano.text.small_talk import small_talk
from scripts.nano.text.word_sources import (
    bible_verses,
    is_coarse,
    scowl_names,
    scowl_words,
    word_counts,
    wordnet_senses,
)

CHARS_PER_S = 16.0
HELD_SHARE = 0.008
SHARES = {
    "everyday": 0.19,
    "talk": 0.13,
    "wordnet_examples": 0.16,
    "definitions": 0.09,
    "bible": 0.03,
    "novels": 0.09,
    "manuals": 0.09,
    "carriers": 0.08,
    "names": 0.06,
    "hard_names": 0.02,
    "letters": 0.06,
    "homographs": 0.05,
}
SECOND_TAKE_SHARE = 0.5
"""So many of the texts are spoken by both voices."""
STEADY_SHARE = 0.5
"""So many takes are spoken at about the usual rate, the others at any."""
_DOUBTFUL = re.compile(r"\b(?:bow|bows|bass|lead|sow|sows|wound)\b", re.I)
"""Homographs that the teacher's own step gets wrong too often: only the text of `homographs` has
them."""
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
    "{0} {1}, {2} {3}, and {4}.",
    "My name is {0} {1}.",
    "This is {0} {1} from {2}.",
    "Dr. {0} and Professor {1} teach in {2}.",
    "Mr. {0} called Mrs. {1} from {2}.",
    "Is {0} in {1} or in {2}?",
    "{0} {1} was born in {2} and died in {3}.",
    "Hello, {0}, have you seen {1}?",
    "{0}'s sister {1} works for {2}.",
    "We flew from {0} to {1} by way of {2}.",
    "{0}?",
    "{0} {1}.",
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
    senses = [
        s for s in wordnet_senses(sources) if s.definition and s.words[0].replace(" ", "").isalpha()
    ]
    rng.shuffle(senses)
    for sense in sorted(senses, key=lambda s: -min(counts.get(s.words[0].lower(), 0), 3)):
        word, meaning = sense.words[0], sense.definition
        yield _as_sentence(
            rng.choice(
                (
                    f"{word}, {meaning}",
                    meaning,
                    meaning,
                    f"{word} means {meaning}",
                    f"{word}: {meaning}",
                )
            )
        )


def _verses(sources: Path, rng: random.Random) -> Iterator[str]:
    verses = bible_verses(sources)
    rng.shuffle(verses)
    for verse in verses:
        yield from (
            _as_sentence(part) for part in re.split(r"(?<=[:;?!.])\s+", re.sub(r"[()]", "", verse))
        )


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
        homographs = [sentence for sentence, *_ in HOMOGRAPHS]
        self.whole = {
            normal(spoken_text(text)) for text in (*HARVARD, *EVERYDAY, *STRESS, *HARD, *homographs)
        }
        self.runs = {run for text in self.whole for run in self._runs(text)}

    def _runs(self, text: str) -> set[str]:
        words = text.split()
        return {" ".join(words[i : i + self.RUN]) for i in range(len(words) - self.RUN + 1)}

    def touches(self, text: str) -> bool:
        text = normal(text)
        return text in self.whole or not self.runs.isdisjoint(self._runs(text))


@dataclass(frozen=True)
class Line:
    """A text to read; the teacher says `voiced`, which has the same words."""

    spoken: str
    voiced: str
    forced: dict[int, str]


def _vary(text: str, forced: dict[int, str], rng: random.Random) -> Line:
    """Now and then as people type: without the last mark, or without capitals, or both."""
    draw, typed = rng.random(), text
    if draw < 0.08:
        typed = text.rstrip(".?!") or text
    if draw < 0.05 or 0.08 <= draw < 0.1:
        typed = " ".join(
            w if len(w.strip(".,?!;:'s")) < 2 and w[0] != "I" else w.lower() for w in typed.split()
        )
    return Line(typed, text, forced)


def _plain(texts: Iterator[str]) -> Iterator[tuple[str, dict[int, str]]]:
    for text in texts:
        yield text, {}


def _random(texts: Iterator[str], rng: random.Random) -> Iterator[tuple[str, dict[int, str]]]:
    """Sentences of books and manuals, which come in order, in random order; without words read
    wrongly."""
    found = [text for text in texts if not _DOUBTFUL.search(text)]
    rng.shuffle(found)
    return _plain(iter(found))


def _talk(grammar: Grammar, rng: random.Random) -> Iterator[str]:
    while True:
        yield grammar.sentence_of(rng.choice(talk_patterns.PATTERNS))


def _with_homographs(grammar: Grammar, rng: random.Random) -> Iterator[tuple[str, dict[int, str]]]:
    homographs = Homographs(grammar.expand, rng)
    while True:
        yield homographs.sentence()


def _with_letters(grammar: Grammar, rng: random.Random, names: list[str]) -> Iterator[str]:
    letters = Letters(grammar.expand, rng, names)
    while True:
        yield _as_sentence(letters.sentence())


def streams_of(
    sources: Path, rng: random.Random
) -> dict[str, Iterator[tuple[str, dict[int, str]]]]:
    """Endless or long streams of (written text, forced phonemes), by the name of their source."""
    grammar = Grammar(sources, rng)
    words = [w for w in scowl_words(sources, 60) if len(w) > 2 and not is_coarse(w)]
    names = [w for w in scowl_names(sources, 70) if not is_coarse(w)]
    hard = [w.capitalize() for w in words_said_otherwise() if "'" not in w and "-" not in w]
    return {
        "everyday": _plain(_everyday(sources, rng)),
        "talk": _plain(_talk(grammar, rng)),
        "wordnet_examples": _random(_examples(sources), rng),
        "definitions": _plain(
            text for text in _definitions(sources, rng) if not _DOUBTFUL.search(text)
        ),
        "bible": _plain(text for text in _verses(sources, rng) if not _DOUBTFUL.search(text)),
        "novels": _random(novel_sentences(sources), rng),
        "manuals": _random(manual_sentences(sources), rng),
        "carriers": _plain(_carried(words, _CARRIERS, rng)),
        "names": _plain(_carried(names, _NAME_CARRIERS, rng)),
        "hard_names": _plain(_carried(hard, _NAME_CARRIERS, rng)),
        "letters": _plain(_with_letters(grammar, rng, names)),
        "homographs": _with_homographs(grammar, rng),
    }


def read_rows(
    sources: Path, chars: int, rng: random.Random, judged: Judged
) -> Iterator[tuple[str, Line]]:
    """(source, line) of about `chars` characters in all."""
    seen: set[str] = set()
    streams = streams_of(sources, rng)
    for source, share in SHARES.items():
        left = chars * share
        kept: list[Line] = []
        for text, forced in streams[source]:
            if left <= 0:
                break
            if is_coarse(text):
                continue
            said = spoken_text(text)
            key = normal(said) if source != "letters" else said
            if forced and len(said.split()) != len(text.split()):
                continue
            if (
                not 1 <= len(key.split()) <= 40
                or len(said) > 230
                or key in seen
                or judged.touches(said)
            ):
                continue
            if len(key.split()) < 3 and rng.random() > 0.3:
                continue
            seen.add(key)
            left -= len(said) + 1
            kept.append(_vary(said, forced, rng))
        rng.shuffle(kept)
        yield from ((source, line) for line in _joined(kept, rng))


def _joined(lines: list[Line], rng: random.Random) -> Iterator[Line]:
    """Some neighbours as one text of two or three sentences."""
    position = 0
    while position < len(lines):
        count = rng.choices((1, 2, 3), (0.74, 0.17, 0.09))[0]
        group = lines[position : position + count]
        if count > 1 and (
            sum(len(line.spoken) for line in group) > 225
            or not all(line.spoken.endswith((".", "?", "!")) for line in group)
        ):
            group = group[:1]
        places = [0]
        for line in group:
            places.append(places[-1] + len(line.spoken.split()))
        forced = {
            k + place: said for line, place in zip(group, places) for k, said in line.forced.items()
        }
        yield Line(
            " ".join(line.spoken for line in group), " ".join(line.voiced for line in group), forced
        )
        position += len(group)


def draw_speed(rng: random.Random) -> float:
    if rng.random() < STEADY_SHARE:
        return round(rng.uniform(0.94, 1.06), 3)
    return round(MIN_RATE * (MAX_RATE / MIN_RATE) ** rng.random(), 3)


def draw_takes(mode: str, rng: random.Random) -> list[tuple[str, float]]:
    """An answer of the small talk is said by both voices at the usual rate, and once more by one at
    any."""
    if mode == "chat":
        return [(ADA, 1.0), (BEN, 1.0), (rng.choice(VOICES), draw_speed(rng))]
    first = rng.choice(VOICES)
    takes = [(first, draw_speed(rng))]
    if rng.random() < SECOND_TAKE_SHARE:
        takes.append((BEN if first == ADA else ADA, draw_speed(rng)))
    return takes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--sources", type=Path, help="folder of the unpacked packages (default: WORK/sources)"
    )
    parser.add_argument("--hours", type=float, default=110.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only-talk", action="store_true", help="write talk.jsonl.gz alone: the answers are spoken"
    )
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
    answers = list(dict.fromkeys(pair.spoken for pair in talk))
    read_chars = int(args.hours * 3600 * CHARS_PER_S)
    rows = [("chat", "chat", Line(answer, answer, {})) for answer in answers]
    rows += [(source, "read", line) for source, line in read_rows(sources, read_chars, rng, judged)]
    rng.shuffle(rows)
    counted: Counter[str] = Counter()
    with gzip.open(args.work / "prompts.jsonl.gz", "wt", encoding="utf-8", compresslevel=9) as out:
        for index, (source, mode, line) in enumerate(rows):
            assert not judged.touches(line.spoken), (
                f"an evaluation sentence in the training text: {line.spoken}"
            )
            split = "held" if mode == "read" and rng.random() < HELD_SHARE else "train"
            row = {
                "id": index,
                "mode": mode,
                "spoken": line.spoken,
                "takes": draw_takes(mode, rng),
                "split": split,
            }
            row |= {"voiced": line.voiced} if line.voiced != line.spoken else {}
            row |= {"forced": line.forced} if line.forced else {}
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            counted[source] += 1
            counted[f"{source} chars"] += len(line.spoken)
    names = [*SHARES, "chat"]
    for name in names:
        chars = counted[f"{name} chars"]
        print(
            f"{name:18s} {counted[name]:7d} rows  {chars / 1e6:6.2f} M characters  "
            f"{chars / CHARS_PER_S / 3600:6.1f} h"
        )
    total = sum(counted[f"{name} chars"] for name in names)
    print(
        f"{'total':18s} {len(rows):7d} rows  {total / 1e6:6.2f} M characters  "
        f"{total / CHARS_PER_S / 3600:6.1f} h"
    )


if __name__ == "__main__":
    main()
