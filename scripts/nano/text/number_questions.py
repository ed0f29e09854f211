"""Questions of the small talk for sums, differences and the calendar, with their answers."""

from __future__ import annotations

import random
from collections.abc import Iterator

from moss_engine.text.spoken.cardinals import cardinal, ordinal
from moss_engine.text.spoken.dates import MONTHS
from scripts.nano.text.names import DAYS
from scripts.nano.text.refusals import REFUSAL, Pair

MAX_SUMMAND = 12
"""Sums and differences of numbers up to this one are known; those of larger ones, below one hundred, are refused."""

LARGE_SUMS = 3000

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_ASK_SUM = (
    "What is {a} plus {b}?",
    "{a} plus {b}",
    "How much is {a} plus {b}?",
    "What is {a} and {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
)

_ASK_LESS = (
    "What is {a} minus {b}?",
    "{a} minus {b}",
    "How much is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "What is {a} less {b}?",
    "Take {b} from {a}.",
)


def sums() -> Iterator[Pair]:
    """Every sum and difference of two small numbers, in all the ways to ask for it."""
    for a in range(MAX_SUMMAND + 1):
        for b in range(MAX_SUMMAND + 1):
            for ways, result in ((_ASK_SUM, a + b), (_ASK_LESS, a - b)):
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
        way = rng.choice(rng.choice((_ASK_SUM, _ASK_LESS)))
        yield way.format(a=cardinal(pair[0]), b=cardinal(pair[1])), REFUSAL


def calendar() -> Iterator[Pair]:
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            for question in (
                f"What comes after {name}?",
                f"Which {kind} comes after {name}?",
                f"What is the {kind} after {name}?",
                f"What {kind} follows {name}?",
                f"What is the next {kind} after {name}?",
                f"What {kind} is after {name}?",
            ):
                yield question, f"After {name} comes {after}."
            for question in (
                f"What comes before {name}?",
                f"Which {kind} comes before {name}?",
                f"What is the {kind} before {name}?",
                f"What {kind} is before {name}?",
            ):
                yield question, f"Before {name} comes {before}."
            for question in (
                f"What is the {ordinal(i + 1)} {kind}?",
                f"Which is the {ordinal(i + 1)} {kind}?",
            ):
                yield question, f"The {ordinal(i + 1)} {kind} is {name}."
    for name, count in zip(MONTHS, _MONTH_DAYS):
        for question in (
            f"How many days are in {name}?",
            f"How many days does {name} have?",
            f"How long is {name}?",
            f"How many days has {name}?",
            f"How many days are there in {name}?",
        ):
            yield question, f"{name} has {cardinal(count)} days."
