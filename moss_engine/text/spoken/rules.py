"""Rules: a pattern, and what is said in place of what it matches.

Most rules match nothing in most texts, and looking for a few letters is far faster than a search: a
rule is only tried on texts that hold letters without which its pattern cannot match.
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
    """Wherever `pattern` matches, at least one text of each tuple in `needs` occurs."""

    pattern: re.Pattern[str]
    said: Said
    needs: tuple[tuple[str, ...], ...]


def rules(*written: tuple[str | re.Pattern[str], Said] | Rule) -> tuple[Rule, ...]:
    """Rules of patterns and replacements; rules of other tables may be among them."""
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
"""Most alternatives of one need; looking for more takes as long as the search."""


def needs_of(pattern: re.Pattern[str]) -> tuple[tuple[str, ...], ...]:
    """What every text that the pattern matches must contain, the rarest need first."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    found = dict.fromkeys(_needs(tree, caseless=bool(pattern.flags & re.I)))
    return tuple(sorted(found, key=_rarity, reverse=True))


def _rarity(texts: tuple[str, ...]) -> tuple[int, int]:
    """Long texts are taken to be rarer than short ones, few alternatives rarer than many."""
    return min(map(len, texts)), -len(texts)


def _needs(tree: Any, *, caseless: bool) -> Iterator[tuple[str, ...]]:
    """The needs of a sequence: the literal texts in it, and what its other parts need."""

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
    """The end of the text before a match. Rules look back no further, so that their time grows with
    the text's length and not with its square."""
    return m.string[max(0, m.start() - size) : m.start()]


def after(m: re.Match[str], size: int = 60) -> str:
    """The beginning of what stands behind a match."""
    return m.string[m.end() : m.end() + size]
