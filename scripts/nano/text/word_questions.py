"""Questions of the small talk for opposites, capitals, meanings and plurals, with their answers."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from pathlib import Path

from scripts.nano.text.intents import intents
from scripts.nano.text.names import FIRST_NAMES, PLACES
from scripts.nano.text.refusals import WORD_REFUSAL, Pair
from scripts.nano.text.word_sources import (
    capitals,
    is_coarse,
    main_noun_senses,
    scowl_words,
    word_counts,
)

COMMON_WORDS, THING_WORDS = 250, 250
"""So many words are defined: the most frequent, and of the others the most frequent names of things."""

_THINGS = ("05", "06", "08", "13", "17", "20")

UNKNOWN_WORDS = 9000

_OPPOSITES = """hot cold|big small|old young|new old|fast slow|high low|up down|left right|day night|black white|good bad|rich poor|long short
wet dry|hard soft|light dark|early late|open closed|full empty|happy sad|strong weak|thick thin|wide narrow|deep shallow|loud quiet|clean dirty
cheap expensive|easy difficult|first last|inside outside|above below|before after|always never|all none|begin end|start stop|buy sell|give take
push pull|come go|love hate|laugh cry|win lose|remember forget|true false|near far|north south|east west|summer winter|true false|sharp dull
smooth rough|sweet sour|tall short|safe dangerous|right wrong|front back|top bottom|question answer|friend enemy|heaven earth|more less
many few|awake asleep|alive dead|brave afraid|polite rude|same different|straight crooked|tight loose|heavy light|kind mean""".replace(
    "\n", "|"
).split("|")


def opposites() -> Iterator[Pair]:
    for pair in _OPPOSITES:
        first, second = pair.split()
        for a, b in ((first, second), (second, first)):
            if (a, b) in (
                ("old", "young"),
                ("short", "long"),
                ("light", "heavy"),
                ("right", "left"),
            ):
                continue
            for question in (
                f"What is the opposite of {a}?",
                f"Tell me the opposite of {a}.",
                f"The opposite of {a}",
            ):
                yield question, f"The opposite of {a} is {b}."


_MORE_CAPITALS = {
    "Mexico": "Mexico City",
    "the United States": "Washington",
    "America": "Washington",
    "the United Kingdom": "London",
    "England": "London",
    "Scotland": "Edinburgh",
    "Wales": "Cardiff",
    "the Netherlands": "Amsterdam",
    "Russia": "Moscow",
    "South Korea": "Seoul",
    "Vietnam": "Hanoi",
    "Syria": "Damascus",
    "South Africa": "Pretoria",
}


def all_capitals(sources: Path) -> Iterator[Pair]:
    listed = {
        country: city
        for country, city in capitals(sources)
        if not any(mark in country + city for mark in ",(;")
    }
    for country, capital in (listed | _MORE_CAPITALS).items():
        for question in (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"The capital of {country}",
            f"Tell me the capital of {country}.",
            f"What is the capital city of {country}?",
        ):
            yield question, f"The capital of {country} is {capital}."


_ASK_MEANING = (
    "What does {word} mean?",
    "What is {article} {word}?",
    "Define {word}.",
    "What is the meaning of {word}?",
    "Tell me what {word} means.",
    "What does the word {word} mean?",
    "Do you know what {word} means?",
    "Tell me the meaning of {word}.",
    "Explain the word {word}.",
    "What is meant by {word}?",
)


def _asked(way: str, word: str) -> str:
    return way.format(word=word, article="an" if word[0] in "aeiou" else "a")


def defined_words(sources: Path) -> dict[str, str]:
    """The most frequent nouns whose main meaning has a short definition, with it."""
    counts, common = word_counts(sources), set(scowl_words(sources, 35))
    scripted = {
        question.split()[-1].lower()
        for questions, _ in intents()
        for question in questions
        if question.startswith("what is ")
    }
    found = {}
    for word, sense in main_noun_senses(sources).items():
        definition = sense.definition
        is_plain = definition.replace("-", "").replace(",", "").replace(" ", "").isalpha()
        if (
            word in common
            and word not in scripted
            and len(word) > 2
            and counts.get(word, 0) >= 2
            and 2 <= len(definition.split()) <= 8
            and is_plain
            and word not in definition
            and not is_coarse(f"{word} {definition}")
        ):
            found[word] = sense
    ranked = sorted(found, key=lambda word: (-counts[word], word))
    things = [word for word in ranked[COMMON_WORDS:] if found[word].kind in _THINGS][:THING_WORDS]
    return {word: found[word].definition for word in (*ranked[:COMMON_WORDS], *things)}


def meanings(sources: Path) -> Iterator[Pair]:
    for word, definition in defined_words(sources).items():
        for way in _ASK_MEANING:
            yield _asked(way, word), f"{word.capitalize()} means {definition}."


def unknown_words(sources: Path, rng: random.Random) -> Iterator[Pair]:
    """Questions for the meaning of words that are not defined here, the common ones among them first."""
    asked_for = {
        question.split()[-1].lower() for questions, _ in intents() for question in questions
    }
    known: Collection[str] = defined_words(sources).keys() | asked_for
    usable = [
        w
        for w in scowl_words(sources, 50)
        if w.islower() and len(w) > 2 and w not in known and not is_coarse(w)
    ]
    names = [name for name in (*PLACES, *FIRST_NAMES) if name.lower() not in known]
    half = UNKNOWN_WORDS // 2
    chosen = [*usable[:half], *rng.sample(usable[half:], min(half, len(usable) - half)), *names]
    for word in chosen:
        yield _asked(rng.choice(_ASK_MEANING), word), WORD_REFUSAL


def plurals(sources: Path) -> Iterator[Pair]:
    import inflect  # pyright: ignore[reportMissingImports]

    counts, common, plural = (
        word_counts(sources),
        set(scowl_words(sources, 20)),
        inflect.engine().plural,
    )
    nouns = [
        w
        for w in main_noun_senses(sources)
        if w in common and counts.get(w, 0) >= 5 and len(w) > 2 and not is_coarse(w)
    ]
    for word in sorted(nouns, key=lambda word: (-counts[word], word))[:700]:
        if not word.endswith("s"):
            for question in (
                f"What is the plural of {word}?",
                f"The plural of {word}",
                f"Tell me the plural of {word}.",
            ):
                yield question, f"The plural of {word} is {plural(word)}."
