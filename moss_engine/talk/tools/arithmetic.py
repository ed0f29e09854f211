"""Arithmetic of any size, as it is typed and as it is said. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isqrt

from moss_engine.talk.tools.numbers import MOST_DIGITS, read, said
from moss_engine.talk.tools.wording import bare

TOO_LONG = "That number is too long to say."
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


class _NotASum(Exception):
    pass


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
            left = left + right if sign == "+" else left - right
        return left

    def _factors(self) -> Fraction:
        left = self._power()
        while sign := self._take("*", "/", "%"):
            right = self._power()
            left = left / right if sign == "/" else left * right
            left = left / 100 if sign == "%" else left
        return left

    def _power(self) -> Fraction:
        base = self._single()
        if self._take("^") is None:
            return base
        exponent = self._power()
        if exponent.denominator != 1:
            raise _NotASum
        size = max(len(str(abs(base.numerator))), len(str(base.denominator)))
        if size * abs(exponent) > 40 * MOST_DIGITS:
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
        return value


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NotASum
    scale = 10**12
    top = value.numerator * scale * scale // value.denominator
    return Fraction(isqrt(top), scale)


def result(question: str) -> str | None:
    """The answer to a sum, or None where it is none."""
    text = re.sub(_HEADS, "", bare(question)).replace("=", " ").replace("equal", " ").strip()
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


def answer(question: str) -> str | None:
    """A sentence with the result."""
    found = result(question)
    if found is None or found in (TOO_LONG, NO_DIVISION):
        return found
    return f"That is {found}"
