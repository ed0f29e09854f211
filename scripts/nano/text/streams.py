"""The sources of the training text, each a stream of sentences to read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.nano.speech.pronunciations import words_said_otherwise
from scripts.nano.text import talk_patterns
from scripts.nano.text.grammar import Grammar
from scripts.nano.text.homographs import Homographs
from scripts.nano.text.letters import Letters
from scripts.nano.text.prose import manual_sentences, novel_sentences
from scripts.nano.text.word_sources import (
    bible_verses,
    is_coarse,
    scowl_names,
    scowl_words,
    word_counts,
    wordnet_senses,
)

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
