"""The sources of the text to read, each a stream of sentences.

In the table of homographs a line is word | phonemes | frames; a frame holds the word as `~`.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.nano.speech.teacher_voice import corrections
from scripts.nano.text.grammar import Grammar
from scripts.nano.text.packages import (
    bible_verses,
    is_coarse,
    manual_sentences,
    novel_sentences,
    read_tables,
    scowl_names,
    scowl_words,
    word_counts,
    wordnet_senses,
)

TABLES = read_tables("reading")
ACRONYMS = " ".join(TABLES["acronyms"]).split()
_DOUBTFUL = re.compile(r"\b(?:bow|bows|bass|lead|sow|sows|wound)\b", re.I)
"""Homographs that the teacher reads wrongly too often: only texts of `homographs`, where their
phonemes are given, may have them."""


class Homographs:
    """Makes random sentences with homographs: (text, {place of a word: its phonemes})."""

    def __init__(self, expand: Callable[[str], str], rng: random.Random):
        self.expand, self.rng = expand, rng
        self.senses = []
        for line in TABLES["homographs"]:
            word, said, frames = line.split("|", 2)
            self.senses.append((word, said, [frame.strip() for frame in frames.split(";")]))

    def _frame(self, sense: tuple[str, str, list[str]]) -> tuple[str, dict[int, str]]:
        word, said, frames = sense
        text = self.expand(self.rng.choice(frames))
        place = next(k for k, item in enumerate(text.split()) if "~" in item)
        text = text.replace("~", word)
        return text[0].upper() + text[1:], {place: said}

    def sentence(self) -> tuple[str, dict[int, str]]:
        """One frame, or two in a sentence, then often of the same word in both its senses."""
        sense = self.rng.choice(self.senses)
        text, forced = self._frame(sense)
        clause = self.rng.choice(TABLES["clauses"])
        other, other_forced = "", {}
        if "{1}" in clause:
            same = [s for s in self.senses if s[0] == sense[0] and s is not sense]
            other, other_forced = self._frame(self.rng.choice(same or self.senses))
        whole = clause.format(text, other)
        shift = len(re.sub(r"\{.\}.*", "", clause).split())
        if clause.startswith("{1}"):
            first = len(other.split())
            return whole, {**other_forced, **{k + first: said for k, said in forced.items()}}
        second = {k + len(text.split()): said for k, said in other_forced.items()}
        return whole, {**{k + shift: said for k, said in forced.items()}, **second}


def letter_slots(rng: random.Random, names: list[str]) -> dict[str, Callable[[], str]]:
    """Slots for sentences with letters, besides those of the grammar."""

    def letters(low: int, high: int) -> str:
        return " ".join(rng.choices(string.ascii_uppercase, k=rng.randint(low, high)))

    def mixed() -> str:
        items = letters(1, 4).split() + [str(rng.randint(0, 9)) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.4:
            rng.shuffle(items)
        return " ".join(items)

    def acronym() -> str:
        return letters(2, 4).replace(" ", "") if rng.random() < 0.35 else rng.choice(ACRONYMS)

    def named(how: str, apart: str) -> str:
        name = rng.choice(names)
        return f"{name} is {how} {apart.join(name.upper())}"

    return {
        "letter": lambda: letters(1, 1),
        "letters": lambda: letters(2, 7),
        "letters3": lambda: letters(2, 3),
        "mixed": mixed,
        "acronym": acronym,
        "spelled": lambda: named("spelled", " "),
        "written": lambda: named("written", ", "),
        "flight": lambda: f"{letters(2, 2)} {rng.randint(10, 999)}",
        "grade": lambda: rng.choice("AF"),
        "seat": lambda: f"{rng.randint(1, 40)} {rng.choice('ABCDEFG')}",
        "key": lambda: f"F{rng.randint(1, 12)}",
    }


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
        named = (f"{word}, {meaning}", f"{word} means {meaning}", f"{word}: {meaning}")
        yield _as_sentence(rng.choice((meaning, meaning, *named)))


def _verses(sources: Path, rng: random.Random) -> Iterator[str]:
    verses = bible_verses(sources)
    rng.shuffle(verses)
    for verse in verses:
        parts = re.split(r"(?<=[:;?!.])\s+", re.sub(r"[()]", "", verse))
        yield from map(_as_sentence, parts)


def _carried(words: list[str], carriers: list[str], rng: random.Random) -> Iterator[str]:
    """Endless sentences with groups of words; every word occurs once in each round."""
    while True:
        pool = words[:]
        rng.shuffle(pool)
        while len(pool) > 6:
            carrier = rng.choice(carriers)
            used = len(set(re.findall(r"\{(\d)\}", carrier)))
            yield _as_sentence(carrier.format(*[pool.pop() for _ in range(used)]))


def _plain(texts: Iterator[str]) -> Iterator[tuple[str, dict[int, str]]]:
    for text in texts:
        yield text, {}


def _sure(texts: Iterator[str]) -> Iterator[tuple[str, dict[int, str]]]:
    """The texts without words that the teacher reads wrongly."""
    return _plain(text for text in texts if not _DOUBTFUL.search(text))


def _random(texts: Iterator[str], rng: random.Random) -> Iterator[tuple[str, dict[int, str]]]:
    """The same in random order, for sentences that come in the order of a book."""
    found = list(_sure(texts))
    rng.shuffle(found)
    return iter(found)


def _endless(sentence: Callable[[], str]) -> Iterator[str]:
    while True:
        yield sentence()


def streams_of(
    sources: Path, rng: random.Random
) -> dict[str, Iterator[tuple[str, dict[int, str]]]]:
    """Endless or long streams of (written text, forced phonemes), by the name of their source."""
    grammar = Grammar(sources, rng)
    words = [w for w in scowl_words(sources, 60) if len(w) > 2 and not is_coarse(w)]
    names = [w for w in scowl_names(sources, 70) if not is_coarse(w)]
    hard = [w.capitalize() for w in corrections() if "'" not in w and "-" not in w]
    grammar.slots |= letter_slots(rng, names)
    homographs = Homographs(grammar.expand, rng)

    def letters() -> str:
        table = "technical" if rng.random() < 0.45 else "letters"
        return _as_sentence(grammar.expand(rng.choice(TABLES[table])))

    return {
        "everyday": _plain(_endless(lambda: grammar.sentence("everyday"))),
        "talk": _plain(_endless(lambda: grammar.sentence("talk"))),
        "wordnet_examples": _random(_examples(sources), rng),
        "definitions": _sure(_definitions(sources, rng)),
        "bible": _sure(_verses(sources, rng)),
        "novels": _random(novel_sentences(sources), rng),
        "manuals": _random(manual_sentences(sources), rng),
        "carriers": _plain(_carried(words, TABLES["carriers"], rng)),
        "names": _plain(_carried(names, TABLES["names"], rng)),
        "hard_names": _plain(_carried(hard, TABLES["names"], rng)),
        "letters": _plain(_endless(letters)),
        "homographs": iter(homographs.sentence, None),
    }
