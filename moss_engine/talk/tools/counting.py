"""Counting up and down. Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.numbers import read
from moss_engine.talk.tools.wording import bare
from moss_engine.text.spoken.cardinals import cardinal

MOST = 50
TOO_FAR = f"That would take long; I count {MOST} numbers at a time."
_NUMBER = r"[\w ,-]+?"
_UP = re.compile(
    rf"count(?: up)?(?: (?:from )?(?P<a>{_NUMBER}))?(?: up)? (?:to|till|until) (?P<b>{_NUMBER})"
    r"(?: loudly| slowly| quickly)?"
)
_DOWN = re.compile(
    rf"(?:count (?:down|backwards?)|countdown|a countdown|give me a countdown|start a countdown)"
    rf"(?: from (?P<a>{_NUMBER}))?(?: (?:to|till|until) (?P<b>{_NUMBER}))?"
)
_DOWN_TOO = re.compile(rf"count from (?P<a>{_NUMBER}) (?:down|backwards?)(?: to (?P<b>{_NUMBER}))?")


def answer(question: str) -> str | None:
    """The numbers, where counting is asked for."""
    text = bare(question)
    if found := _DOWN.fullmatch(text) or _DOWN_TOO.fullmatch(text):
        return _line(_whole(found["a"], 10), _whole(found["b"], 0))
    if found := _UP.fullmatch(text):
        return _line(_whole(found["a"], 1), _whole(found["b"], 10))
    return None


def _whole(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    words = text.replace("-", " ").split()
    found = read(words, 0)
    if found is None or found[1] < len(words) or found[0].denominator != 1:
        return None
    return int(found[0])


def _line(first: int | None, last: int | None) -> str | None:
    if first is None or last is None or min(first, last) < 0:
        return None
    if abs(last - first) >= MOST:
        return TOO_FAR
    step = 1 if last >= first else -1
    line = ", ".join(cardinal(number) for number in range(first, last + step, step))
    return f"{line[:1].upper()}{line[1:]}."
