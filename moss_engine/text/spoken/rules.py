"""Rules: a pattern, and what is said for what it finds.

Most rules find nothing in most texts, and a look for some letters takes far less time than a
search: each is tried on texts alone that hold the letters that it needs, as its pattern says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
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
REPEATS = (parser.MAX_REPEAT, parser.MIN_REPEAT)
WITHOUT_WIDTH = (parser.AT, parser.ASSERT, parser.ASSERT_NOT)


def needs_of(pattern: re.Pattern[str]) -> tuple[tuple[str, ...], ...]:
    """What every text has in which a pattern finds something, the rarest first."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    found = dict.fromkeys(_needs(tree, caseless=bool(pattern.flags & re.I)))
    return tuple(sorted(found, key=lambda texts: -min(map(len, texts))))


def _needs(tree: Any, *, caseless: bool) -> Iterator[tuple[str, ...]]:
    """Of a sequence: of the signs that stand side by side in it, and of its parts."""
    side_by_side = [""]
    for kind, value in tree:
        signs = _signs(kind, value, caseless=caseless)
        if kind not in WITHOUT_WIDTH and len(side_by_side) * len(signs) not in range(1, MAX_TEXTS):
            if side_by_side[0]:
                yield tuple(side_by_side)
            side_by_side = [""]
        if signs:
            side_by_side = [first + sign for first, sign in product(side_by_side, signs)]
        else:
            yield from _parts_needs(kind, value, caseless=caseless)
    if side_by_side[0]:
        yield tuple(side_by_side)


def _signs(kind: Any, value: Any, *, caseless: bool) -> list[str]:
    """All that a part of one sign may stand for; none where those are too many."""
    listed = [(kind, value)] if kind is not parser.IN else value
    signs = [chr(sign) for what, sign in listed if what is parser.LITERAL]
    cased = caseless and any(sign.lower() != sign.upper() for sign in signs)
    return [] if cased or not len(listed) == len(signs) < MAX_TEXTS else signs


def _parts_needs(kind: Any, value: Any, *, caseless: bool) -> Iterator[tuple[str, ...]]:
    """What a part needs that is more than a sign."""
    if kind is parser.SUBPATTERN:
        yield from _needs(value[3], caseless=_caseless(value, caseless))
    elif kind is parser.ASSERT:
        yield from _needs(value[1], caseless=caseless)
    elif kind in REPEATS and value[0]:
        yield from _needs(value[2], caseless=caseless)
    elif kind is parser.BRANCH:
        each = [list(_needs(branch, caseless=caseless)) for branch in value[1]]
        if all(each):
            best = [
                max(needs, key=lambda texts: (min(map(len, texts)), -len(texts))) for needs in each
            ]
            texts = list(dict.fromkeys(text for needs in best for text in needs))
            if len(texts) <= MAX_TEXTS:
                yield tuple(texts)


def _caseless(subpattern: tuple[Any, int, int, Any], outside: bool) -> bool:
    _, added, taken, _ = subpattern
    return bool(added & re.I) or (outside and not taken & re.I)


def before(m: re.Match[str], size: int = 60) -> str:
    """The end of what stands before a match. Rules look no further back, so that their time grows
    with the text and not with its square."""
    return m.string[max(0, m.start() - size) : m.start()]


def after(m: re.Match[str], size: int = 60) -> str:
    """The beginning of what stands behind a match."""
    return m.string[m.end() : m.end() + size]
