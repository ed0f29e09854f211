"""Rules: a pattern, and what is said for what it finds.

Most rules find nothing in most texts, and a look for some letters takes far less time than a
search: each is tried on texts alone that hold the letters that it needs, as its pattern says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as parser

Said = str | Callable[[re.Match[str]], str]


class Rule(NamedTuple):
    """Wherever `pattern` finds something, one text of each of `needs` is there, too."""

    pattern: re.Pattern[str]
    said: Said
    needs: tuple[tuple[str, ...], ...]


def rules(*written: tuple[str | re.Pattern[str], Said] | Rule) -> tuple[Rule, ...]:
    """Of patterns and what is said for them; rules of other tables may be among them."""
    return tuple(one if isinstance(one, Rule) else _rule(*one) for one in written)


def _rule(written: str | re.Pattern[str], said: Said) -> Rule:
    pattern = re.compile(written)
    return Rule(pattern, said, needs_of(pattern))


def apply(table: Iterable[Rule], text: str) -> str:
    """The text after every rule, one after the other."""
    for rule in table:
        for texts in rule.needs:
            for needed in texts:
                if needed in text:
                    break
            else:
                break
        else:
            text = rule.pattern.sub(rule.said, text)
    return text


MAX_TEXTS = 24
"""Of which one is needed; to look for more takes as long as the search."""


def needs_of(pattern: re.Pattern[str]) -> tuple[tuple[str, ...], ...]:
    """What every text has in which a pattern finds something, the rarest first."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    found = dict.fromkeys(_needs(tree, caseless=bool(pattern.flags & re.I)))
    return tuple(sorted(found, key=_rarity, reverse=True))


def _rarity(texts: tuple[str, ...]) -> tuple[int, int]:
    """Long texts are rarer than short ones, and few than many."""
    return min(map(len, texts)), -len(texts)


def _needs(tree: Any, *, caseless: bool) -> Iterator[tuple[str, ...]]:
    """Of a sequence: the texts that stand in it, and what its other parts need."""

    def is_sign(part: tuple[Any, Any]) -> bool:
        kind, value = part
        if kind is not parser.LITERAL:
            return False
        return not caseless or chr(value).lower() == chr(value).upper()

    for are_signs, parts in groupby(tree, is_sign):
        if are_signs:
            yield ("".join(chr(value) for _, value in parts),)
            continue
        for kind, value in parts:
            yield from _part_needs(kind, value, caseless=caseless)


def _part_needs(kind: Any, value: Any, *, caseless: bool) -> Iterator[tuple[str, ...]]:
    if kind is parser.IN and not caseless:
        if all(what is parser.LITERAL for what, _ in value):
            yield tuple(chr(sign) for _, sign in value)
    elif kind is parser.SUBPATTERN:
        _, added, taken, tree = value
        yield from _needs(tree, caseless=bool(added & re.I) or (caseless and not taken & re.I))
    elif kind is parser.ASSERT:
        yield from _needs(value[1], caseless=caseless)
    elif kind in (parser.MAX_REPEAT, parser.MIN_REPEAT) and value[0]:
        yield from _needs(value[2], caseless=caseless)
    elif kind is parser.BRANCH:
        each = [list(_needs(branch, caseless=caseless)) for branch in value[1]]
        if all(each):
            texts = dict.fromkeys(chain(*(max(needs, key=_rarity) for needs in each)))
            if len(texts) <= MAX_TEXTS:
                yield tuple(texts)


def before(m: re.Match[str], size: int = 60) -> str:
    """The end of what stands before a match. Rules look no further back, so that their time grows
    with the text and not with its square."""
    return m.string[max(0, m.start() - size) : m.start()]


def after(m: re.Match[str], size: int = 60) -> str:
    """The beginning of what stands behind a match."""
    return m.string[m.end() : m.end() + size]
