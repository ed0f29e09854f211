"""Arithmetic, as it is typed and as it is said. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isqrt

from moss_engine.talk.wording import bare
from moss_engine.text.spoken import cardinals

ONES = {word: value for value, word in enumerate(cardinals.ONES)}
TENS = {word: 10 * value for value, word in enumerate(cardinals.TENS) if word}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MOST_DIGITS = 48
DECIMALS = 4
_FIGURE = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")


def read(words: list[str], start: int) -> tuple[Fraction, int] | None:
    """The number that begins at a word, and the first word behind it; None where there is none."""
    if start >= len(words):
        return None
    if words[start] in ("minus", "negative", "-") and (found := read(words, start + 1)):
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


def said(value: Fraction) -> str:
    """A number for a voice: "1,000,000", "about 0.3333"; raises OverflowError where nobody would
    listen to its digits."""
    if len(str(abs(value.numerator) // value.denominator)) > MOST_DIGITS:
        raise OverflowError
    if value.denominator == 1:
        return f"{value.numerator:,}"
    exact = value * 10**DECIMALS
    rounded = Fraction(round(exact), 10**DECIMALS)
    sign, size = ("-" if rounded < 0 else ""), abs(rounded)
    whole, rest = divmod(size.numerator, size.denominator)
    decimals = f"{rest * 10**DECIMALS // size.denominator:0{DECIMALS}d}".rstrip("0")
    shown = f"{sign}{whole:,}.{decimals}" if decimals else f"{sign}{whole:,}"
    return shown if exact.denominator == 1 else f"about {shown}"


MOST_BITS = 1000
"""Of a number on the way to the result."""
MOST_CHARS = 400
"""Of a sum; with more of them it is refused, not done."""
TOO_LONG = "That number is too long to say."
TOO_MUCH = "That sum is too long for me; give me a shorter one."
NO_DIVISION = "Nobody can divide by zero."
_HEADS = (
    r"^(?:what is|what are|what does|how much is|how much are|how many is|calculate|compute"
    r"|work out|solve|what do you get if you|the result of|the answer to|do you know|is it)\b ?"
)
_REWRITES = (
    (r"(?:\badd|^plus) (.+?) (?:and|to|with|plus) (.+)$", r"\1 + \2"),
    (r"\bsubtract (.+?) from (.+)$", r"\2 - \1"),
    (r"\btake (.+?) (?:away )?from (.+)$", r"\2 - \1"),
    (r"\bmultiply (.+?) (?:by|with|and) (.+)$", r"\1 * \2"),
    (r"\bdivide (.+?) by (.+)$", r"\1 / \2"),
    (r"\b(?:the )?sum of (.+?) and (.+)$", r"\1 + \2"),
    (r"\b(?:the )?difference (?:between|of) (.+?) and (.+)$", r"\1 - \2"),
    (r"\b(?:the )?product of (.+?) and (.+)$", r"\1 * \2"),
    (r"\b(.+?) percent of (.+)$", r"\1 % \2"),
    (r"(\d)\s*% of (.+)$", r"\1 % \2"),
    (r"\b(?:the )?square root of (.+)$", r"root \1"),
    (r"\b(?:one |a )?half of (.+)$", r"\1 / 2"),
    (r"\b(?:double|twice) (.+)$", r"2 * \1"),
    (r"\b(?:the )?square of (.+)$", r"\1 ^ 2"),
    (r"\bto the power of\b|\bto the power\b|\braised to\b|\*\*", " ^ "),
    (r"\bsquared\b", " ^ 2 "),
    (r"\bcubed\b", " ^ 3 "),
    (r"\bmultiplied by\b|\btimes\b|[×·]|(?<=\d)\s*x\s*(?=\d)", " * "),
    (r"\bdivided by\b|\bover\b|÷|(?:(?<=\s)|(?<=\d{3})):(?=\s*\d)|:(?=\s*\d\b)", " / "),
    (r"\bplus\b|\band\b(?= (?:\d|a ))", " + "),
    (r"\bminus\b|\bless\b|−", " - "),
    (r"([-+*/^()%])", r" \1 "),
)


_FIGURES = re.compile(r"(?=.*\d)[-\d\s.,+*/^()x×·÷%=:−]+")


class _NotASum(Exception):
    pass


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise OverflowError
    return value


class _Sum:
    """A line of numbers and signs, read from the left."""

    def __init__(self, words: list[str]):
        self._words = words
        self._at = 0
        self.num_signs = 0

    def value(self) -> Fraction:
        found = self._terms()
        if self._at < len(self._words):
            raise _NotASum
        return found

    def _take(self, *signs: str) -> str | None:
        if self._at < len(self._words) and self._words[self._at] in signs:
            self._at += 1
            self.num_signs += 1
            return self._words[self._at - 1]
        return None

    def _terms(self) -> Fraction:
        left = self._factors()
        while sign := self._take("+", "-"):
            right = self._factors()
            left = _bounded(left + right if sign == "+" else left - right)
        return left

    def _factors(self) -> Fraction:
        left = self._power()
        while sign := self._take("*", "/", "%"):
            right = self._power()
            left = left / right if sign == "/" else left * right
            left = _bounded(left / 100 if sign == "%" else left)
        return left

    def _power(self) -> Fraction:
        base = self._single()
        if self._take("^") is None:
            return base
        exponent = self._power()
        if exponent.denominator != 1:
            raise _NotASum
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent) > MOST_BITS:
            raise OverflowError
        return base ** int(exponent)

    def _single(self) -> Fraction:
        if self._take("-"):
            return -self._single()
        if self._take("root"):
            return _root(self._single())
        if self._take("("):
            found = self._terms()
            if self._take(")") is None:
                raise _NotASum
            return found
        found = read(self._words, self._at)
        if found is None:
            raise _NotASum
        value, self._at = found
        return _bounded(value)


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NotASum
    scale = 10**12
    top = value.numerator * scale * scale // value.denominator
    return Fraction(isqrt(top), scale)


def result(question: str) -> str | None:
    """The answer to a sum, or None where it is none."""
    text = re.sub(_HEADS, "", bare(question[: MOST_CHARS + 1]))
    if len(question) > MOST_CHARS:
        return TOO_MUCH if _FIGURES.fullmatch(text) else None
    text = text.replace("=", " ").replace("equal", " ").strip()
    text = text.replace("-", " - ") if re.search(r"[a-z]-[a-z]", text) is None else text
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    text = re.sub(r"\band\b(?= (?:what|how)\b).*", "", text)
    for pattern, by in _REWRITES:
        text = re.sub(pattern, by, text)
    reader = _Sum(text.split())
    try:
        value = reader.value()
        return f"{said(value)}." if reader.num_signs else None
    except (_NotASum, RecursionError):
        return None
    except ZeroDivisionError:
        return NO_DIVISION
    except OverflowError:
        return TOO_LONG


def answered(question: str) -> str | None:
    """A sentence with the result."""
    found = result(question)
    return found if found in (None, TOO_LONG, TOO_MUCH, NO_DIVISION) else f"That is {found}"
