"""Rules: a pattern, and what is said for what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Said = str | Callable[[re.Match[str]], str]
Rule = tuple[re.Pattern[str], Said]


def rules(*written: tuple[str | re.Pattern[str], Said]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), said) for pattern, said in written)


def apply(table: Iterable[Rule], text: str) -> str:
    """The text after every rule, one after the other."""
    for pattern, said in table:
        text = pattern.sub(said, text)
    return text


def before(m: re.Match[str], size: int = 60) -> str:
    """The end of what stands before a match. Rules look no further back, so that their time grows
    with the text and not with its square."""
    return m.string[max(0, m.start() - size) : m.start()]


def after(m: re.Match[str], size: int = 60) -> str:
    """The beginning of what stands behind a match."""
    return m.string[m.end() : m.end() + size]
