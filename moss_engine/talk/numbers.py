"""Numbers, as they are typed and as they are said. Pure."""

from __future__ import annotations

import re
from decimal import Context
from fractions import Fraction

from moss_engine.text.spoken import cardinals

ONES = {word: value for value, word in enumerate(cardinals.ONES)}
TENS = {word: 10 * value for value, word in enumerate(cardinals.TENS) if word}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MOST_DIGITS = 48
DECIMALS = 4
_FIGURE = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")


def read_number(words: list[str], start: int) -> tuple[Fraction, int] | None:
    """The number that begins at a word, and the first word behind it; None where there is none."""
    if start >= len(words):
        return None
    if words[start] in ("minus", "negative", "-") and (found := read_number(words, start + 1)):
        return -found[0], found[1]
    if _FIGURE.fullmatch(words[start]) and len(words[start]) <= MOST_DIGITS:
        value, at = Fraction(words[start].replace(",", "")), start + 1
        while at < len(words) and words[at] in SCALES:
            value, at = value * SCALES[words[at]], at + 1
        return value, at
    return _read_words(words, start)


def _read_words(words: list[str], start: int) -> tuple[Fraction, int] | None:
    total, group, at, is_number = 0, 0, start, False
    while at < len(words):
        word = words[at]
        if word in ONES or word in TENS:
            before = words[at - 1] if is_number else ""
            if before in ONES or (before in TENS and not 0 < ONES.get(word, 0) < 10):
                break
            group += ONES.get(word, TENS.get(word, 0))
        elif word == "hundred":
            group = max(1, group) * 100
        elif word in SCALES and (is_number or word == "thousand"):
            total, group = total + max(1, group) * SCALES[word], 0
        elif word == "a" and at + 1 < len(words) and words[at + 1] in ("hundred", *SCALES):
            group = 1
        elif not (word == "and" and is_number and words[at - 1] in ("hundred", *SCALES)
                  and at + 1 < len(words) and words[at + 1] in (*ONES, *TENS)):  # fmt: skip
            break
        is_number, at = True, at + 1
    if not is_number:
        return None
    value = Fraction(total + group)
    if at + 1 < len(words) and words[at] == "point" and words[at + 1] in ONES:
        digits = ""
        while at + 1 < len(words) and ONES.get(words[at + 1], 10) < 10:
            digits, at = digits + str(ONES[words[at + 1]]), at + 1
        value, at = value + Fraction(int(digits), 10 ** len(digits)), at + 1
    return value, at


def say_number(value: Fraction) -> str:
    """A number for a voice: "1,000,000", "about 0.3333"; raises OverflowError where nobody would
    listen to its digits."""
    if len(str(abs(value.numerator) // value.denominator)) > MOST_DIGITS:
        raise OverflowError
    rounded = round(value, DECIMALS)
    exact = Context(prec=MOST_DIGITS + DECIMALS)
    shown = f"{exact.divide(rounded.numerator, rounded.denominator):,f}"
    return shown if rounded == value else f"about {shown}"
