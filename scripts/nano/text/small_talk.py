"""Questions and answers of the mode `<chat>`: scripts, sums, calendar, words, refusals.

In the table of intents a line is `ways to ask => answer`, the ways separated by ` | `.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from moss_engine.text.spoken.cardinals import cardinal, ordinal
from moss_engine.text.spoken.dates import MONTHS
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.text.grammar import SLOTS, read_tables
from scripts.nano.text.packages import (
    capitals,
    is_coarse,
    main_noun_senses,
    scowl_words,
    word_counts,
)

TABLES = read_tables("small_talk")
Pair = tuple[str, str]
"""A question and its answer."""
OFF_SCRIPT_QUESTIONS = 9000
REFUSAL = "I am the small built-in voice. I do not know that yet."
WORD_REFUSAL = "I am the small built-in voice. I do not know that word."
REFUSALS = (REFUSAL, WORD_REFUSAL)
MAX_SUMMAND = 12
"""Sums and differences of numbers up to this one are known; those of larger ones are refused."""
LARGE_SUMS = 3000
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
COMMON_WORDS, THING_WORDS = 250, 250
"""So many words are defined: the most frequent, and of the others names of things."""
_THINGS = ("05", "06", "08", "13", "17", "20")
UNKNOWN_WORDS = 9000
HELD_SHARE = 0.05
"""Of the questions that have no answer of their own, so many are kept out of the training."""
_SHORTENED = [line.split(": ") for line in TABLES["shortened"]]
_ASKING = frozenset(TABLES["asking"][0].split())


@dataclass(frozen=True)
class Talk:
    """A question, as typed, and the one answer to it; `is_held`: kept out of the training."""

    kind: str
    user: str
    spoken: str
    is_held: bool


def small_talk(sources: Path, rng: random.Random) -> Iterator[Talk]:
    """Every pair, each question as it stands and in ways in which people type it."""
    plain = {
        "intents": ([(ask, answer) for asks, answer in intents() for ask in asks], 6),
        "calendar": (list(calendar()), 2),
        "opposites": (list(opposites()), 3),
        "capitals": (list(all_capitals(sources)), 3),
        "meanings": (list(meanings(sources)), 2),
        "plurals": (list(plurals(sources)), 2),
        "sums": (list(sums()), 1),
        "large sums": (list(large_sums(rng)), 1),
        "unknown words": (list(unknown_words(sources, rng)), 1),
        "off the script": (list(off_script(sources, rng)), 1),
    }
    for kind, (pairs, ways) in plain.items():
        for user, answer in pairs:
            is_held = answer in REFUSALS and rng.random() < HELD_SHARE
            asked = dict.fromkeys(
                [spoken_text(user), *(spoken_text(typed(user, rng)) for _ in range(ways))]
            )
            for question in asked:
                yield Talk(kind, question, spoken_text(answer), is_held)


def typed(question: str, rng: random.Random) -> str:
    """With or without capitals, marks, contractions, apostrophes and a word before it."""
    if rng.random() < 0.4:
        for full, short in _SHORTENED:
            question = question.replace(full, short)
        if rng.random() < 0.25:
            question = question.replace("'", "")
    if rng.random() < 0.12:
        first = question[0] if question.startswith("I ") else question[0].lower()
        question = f"{rng.choice(TABLES['openers'])}{rng.choice((',', ''))} {first}{question[1:]}"
    elif rng.random() < 0.06:
        question = question.rstrip("?.!") + rng.choice((" please", ", please"))
    draw = rng.random()
    if draw < 0.25:
        return question.lower().rstrip("?.!")
    question = question[0].upper() + question[1:]
    if question.endswith(("?", ".", "!")):
        return question
    asks = question.split()[0].lower().strip(",'s") in _ASKING
    return question + ("?" if asks and len(question.split()) > 1 else "." if draw < 0.9 else "!")


def intents() -> list[tuple[list[str], str]]:
    """(ways to ask, answer) of every intent; no question has two answers."""
    lines = (line.split(" => ") for line in TABLES["intents"])
    return [(questions.split(" | "), answer) for questions, answer in lines]


def sums() -> Iterator[Pair]:
    """Every sum and difference of two small numbers, in all the ways to ask for it."""
    for a in range(MAX_SUMMAND + 1):
        for b in range(MAX_SUMMAND + 1):
            for ways, result in ((TABLES["sum"], a + b), (TABLES["difference"], a - b)):
                if result >= 0:
                    for way in ways:
                        yield (
                            way.format(a=cardinal(a), b=cardinal(b)),
                            f"{cardinal(result).capitalize()}.",
                        )


def large_sums(rng: random.Random) -> Iterator[Pair]:
    for _ in range(LARGE_SUMS):
        pair = [rng.randint(MAX_SUMMAND + 1, 99), rng.randint(0, rng.choice((MAX_SUMMAND, 99)))]
        rng.shuffle(pair)
        way = rng.choice(rng.choice((TABLES["sum"], TABLES["difference"])))
        yield way.format(a=cardinal(pair[0]), b=cardinal(pair[1])), REFUSAL


def calendar() -> Iterator[Pair]:
    for names, kind in ((SLOTS["day"], "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before, place = names[(i + 1) % len(names)], names[i - 1], ordinal(i + 1)
            for table, answer in (
                ("after", f"After {name} comes {after}."),
                ("before", f"Before {name} comes {before}."),
                ("ordinal", f"The {place} {kind} is {name}."),
            ):
                for way in TABLES[table]:
                    yield way.format(name=name, kind=kind, place=place), answer
    for name, count in zip(MONTHS, _MONTH_DAYS):
        for way in TABLES["length"]:
            yield way.format(name=name), f"{name} has {cardinal(count)} days."


def opposites() -> Iterator[Pair]:
    for pair in TABLES["opposites"]:
        first, second = pair.split()
        for a, b in ((first, second), (second, first)):
            if f"{a} {b}" not in TABLES["one way"]:
                for way in TABLES["opposite"]:
                    yield way.format(word=a), f"The opposite of {a} is {b}."


def all_capitals(sources: Path) -> Iterator[Pair]:
    listed = {
        country: city
        for country, city in capitals(sources)
        if not any(mark in country + city for mark in ",(;")
    }
    more = dict(line.split(": ") for line in TABLES["capitals"])
    for country, capital in (listed | more).items():
        for way in TABLES["capital"]:
            yield way.format(country=country), f"The capital of {country} is {capital}."


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
        for way in TABLES["meaning"]:
            yield _asked(way, word), f"{word.capitalize()} means {definition}."


def unknown_words(sources: Path, rng: random.Random) -> Iterator[Pair]:
    """Questions for the meaning of words that are not defined here, common ones first."""
    asked_for = {
        question.split()[-1].lower() for questions, _ in intents() for question in questions
    }
    known: Collection[str] = defined_words(sources).keys() | asked_for
    usable = [
        w
        for w in scowl_words(sources, 50)
        if w.islower() and len(w) > 2 and w not in known and not is_coarse(w)
    ]
    names = [name for name in (*SLOTS["city"], *SLOTS["first"]) if name.lower() not in known]
    half = UNKNOWN_WORDS // 2
    chosen = [*usable[:half], *rng.sample(usable[half:], min(half, len(usable) - half)), *names]
    for word in chosen:
        yield _asked(rng.choice(TABLES["meaning"]), word), WORD_REFUSAL


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
            for way in TABLES["plural"]:
                yield way.format(word=word), f"The plural of {word} is {plural(word)}."


def off_script(sources: Path, rng: random.Random) -> Iterator[Pair]:
    nouns = [
        w
        for w in scowl_words(sources, 35)
        if 3 < len(w) < 10 and w.islower() and not is_coarse(w) and not w.endswith("s")
    ]
    asked, places, names = TABLES["off the script"], SLOTS["city"], SLOTS["first"]
    for i in range(OFF_SCRIPT_QUESTIONS):
        question = asked[i % len(asked)].format(
            place=rng.choice(places),
            place2=rng.choice(places),
            name=rng.choice(names),
            noun=rng.choice(nouns),
            adj=rng.choice(nouns),
            when=rng.choice(
                ("tomorrow", "today", "tonight", "on Sunday", "next week", "yesterday")
            ),
            number=cardinal(rng.randint(2, 99)),
            number2=cardinal(rng.randint(2, 99)),
            big=cardinal(rng.randint(100, 999)),
            big2=cardinal(rng.randint(100, 999)),
        )
        yield question, REFUSAL
