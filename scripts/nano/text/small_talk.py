"""Question and answer pairs for the `<chat>` mode: scripts, sums, calendar, words, capitals, and honest refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moss_engine.text.spoken.text import spoken_text
from scripts.nano.text.intents import intents
from scripts.nano.text.number_questions import calendar, large_sums, sums
from scripts.nano.text.refusals import REFUSALS, Pair, off_script
from scripts.nano.text.word_questions import (
    all_capitals,
    meanings,
    opposites,
    plurals,
    unknown_words,
)

HELD_SHARE = 0.05
"""Of the questions that have no answer of their own, so many are kept out of the training."""
_OPENERS = ("please", "hey", "hello", "hi", "okay", "so", "well", "um", "tell me", "nano")
_SHORTENED = (
    ("what is", "what's"),
    ("What is", "What's"),
    ("I am", "I'm"),
    ("who is", "who's"),
    ("do not", "don't"),
    ("you are", "you're"),
    ("cannot", "can't"),
    ("How is", "How's"),
    ("how is", "how's"),
)
_ASKING = frozenset(
    "what who how where when why which do are can is does whose may am at wha hi".split()
)


@dataclass(frozen=True)
class Talk:
    """One question, as typed, and the one answer to it, both in spoken form; `is_held`: kept out of the training."""

    kind: str
    user: str
    spoken: str
    is_held: bool


def small_talk(sources: Path, rng: random.Random) -> Iterator[Talk]:
    """Every pair of the chat by kind, each question as it stands and in ways in which people type it."""
    plain = {
        "intents": (list(_scripted()), 6),
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
    """As people type it: with or without capitals, marks, contractions, apostrophes and a word before it."""
    if rng.random() < 0.4:
        for full, short in _SHORTENED:
            question = question.replace(full, short)
        if rng.random() < 0.25:
            question = question.replace("'", "")
    if rng.random() < 0.12:
        first = question[0] if question.startswith("I ") else question[0].lower()
        question = f"{rng.choice(_OPENERS)}{rng.choice((',', ''))} {first}{question[1:]}"
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


def _scripted() -> Iterator[Pair]:
    for questions, answer in intents():
        yield from ((question, answer) for question in questions)
