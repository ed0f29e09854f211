"""Arithmetic, as it is typed and as it is said. Pure."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction
from math import isqrt

from moss_engine.talk.numbers import read_number, say_number
from moss_engine.talk.wording import bare

MOST_BITS = 1000
"""Size of the largest number that may occur in a calculation."""
MOST_CHARS = 400
"""Longest sum; a longer one is refused."""
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
_SIGNS = {"^": "**", "root": "~"} | {sign: sign for sign in "+-*/%()"}


def _expression(words: list[str]) -> tuple[ast.expr, list[Fraction]]:
    """A line of numbers and signs in Python's grammar, which knows what comes first: `~` is the
    root, "a % b" so many percent of b, and `n0`, `n1` ... are the numbers. Raises SyntaxError where
    it is none."""
    numbers: list[Fraction] = []
    code, at = "", 0
    while at < len(words):
        ends_value = code.endswith((" ", ")"))  # a minus behind one belongs to no number
        if not ends_value and (found := read_number(words, at)):
            code += f"n{len(numbers)} "
            numbers.append(found[0])
            at = found[1]
        elif words[at] in _SIGNS:
            code += _SIGNS[words[at]]
            at += 1
        else:
            raise SyntaxError
    return ast.parse(code, mode="eval").body, numbers


def _value(node: ast.AST, numbers: list[Fraction]) -> Fraction:
    if isinstance(node, ast.Name):
        return _bounded(numbers[int(node.id[1:])])
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, numbers))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        return _bounded(_BINARY[type(node.op)](left, right))
    raise SyntaxError


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise OverflowError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent) > MOST_BITS:
        raise OverflowError
    return base ** int(exponent)


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise ValueError
    scale = 10**12
    top = value.numerator * scale * scale // value.denominator
    return Fraction(isqrt(top), scale)


_UNARY = {ast.USub: operator.neg, ast.Invert: _root}
_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: lambda part, whole: part * whole / 100, ast.Pow: _power,
}  # fmt: skip


def answered(question: str) -> str | None:
    """A sentence with the result of a sum, or None where it is none."""
    text = re.sub(_HEADS, "", bare(question[: MOST_CHARS + 1]))
    if len(question) > MOST_CHARS:
        return TOO_MUCH if _FIGURES.fullmatch(text) else None
    text = text.replace("=", " ").replace("equal", " ").strip()
    text = text.replace("-", " - ") if re.search(r"[a-z]-[a-z]", text) is None else text
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    text = re.sub(r"\band\b(?= (?:what|how)\b).*", "", text)
    for pattern, by in _REWRITES:
        text = re.sub(pattern, by, text)
    try:
        sum_, numbers = _expression(text.split())
        return (
            None if isinstance(sum_, ast.Name) else f"That is {say_number(_value(sum_, numbers))}."
        )
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    except ZeroDivisionError:
        return NO_DIVISION
    except OverflowError:
        return TOO_LONG
