"""Canned answers: ways to ask and the answer to each, found by their words. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from importlib.resources import files

from moss_engine.talk.wording import TABLES, bare, unquoted, words

CLOSE = 0.74
"""Share of the weight of all words that a question and a way to ask it must have in common."""
_IGNORED = frozenset(
    "a an the to of is are am do does did be it that this there so really just please me my i you "
    "your in on for and or with at can could would will exactly then actually so".split()
)
_LIGHT = 0.25  # of a word that is in nearly every question
_ASKING = frozenset("what how who whose where when why which".split())
_I, _YOU = frozenset("i me my".split()), frozenset("you your".split())
_NAMED = re.compile(r"(?:my name is|i am called)(?: (?!what\b)[\w'-]+){1,3}")
_SAME = {
    word: meant
    for meant, all_ in TABLES["words that mean another"].items()
    for word in all_.split()
}


Answers = tuple[str, ...]


def find(question: str) -> Answers | None:
    """The answers to a known question, to be given in turn."""
    asked = _key("my name is" if _NAMED.fullmatch(bare(question)) else question)
    if not asked:
        return None
    exact, ways = _table()
    if asked in exact:
        return exact[asked]
    if len(asked) == 1 and asked[0] in _ASKING:
        return None
    of_visitor = _is_of(_I, _YOU, asked)
    best, answers = 0.0, None
    for way, known in ways:
        if of_visitor and _is_of(_YOU, _I, way):
            continue
        if (score := _closeness(asked, way)) > best:
            best, answers = score, known
    return answers if best >= CLOSE else None


def _is_of(one: frozenset[str], other: frozenset[str], words: tuple[str, ...]) -> bool:
    return not one.isdisjoint(words) and other.isdisjoint(words)


def _key(text: str) -> tuple[str, ...]:
    return tuple(_SAME.get(word, word) for word in words(unquoted(text)))


def _closeness(asked: tuple[str, ...], way: tuple[str, ...]) -> float:
    left, right = set(asked), set(way)
    both = sum(map(_weight, left & right))
    return both / max(1e-9, sum(map(_weight, left | right)))


def _weight(word: str) -> float:
    return _LIGHT if word in _IGNORED else _weights().get(word, 4.0)


@lru_cache(maxsize=1)
def _weights() -> dict[str, float]:
    _, ways = _table()
    counts = Counter(word for way, _ in ways for word in set(way))
    return {word: 1.0 + 0.4 * math.log(len(ways) / count) for word, count in counts.items()}


@lru_cache(maxsize=1)
def _table() -> tuple[dict[tuple[str, ...], Answers], list]:
    """Answers by way to ask, and the same as a list: `ways => answers`, each split by ` | `."""
    text = files("moss_engine.talk").joinpath("by_heart.txt").read_text(encoding="utf-8")
    exact: dict[tuple[str, ...], Answers] = {}
    for line in text.splitlines():
        asked, arrow, said = line.partition(" => ")
        if arrow and not line.startswith("#"):
            answers = tuple(part.strip() for part in said.split(" | "))
            for way in asked.split(" | "):
                exact.setdefault(_key(way), answers)
    return exact, list(exact.items())
