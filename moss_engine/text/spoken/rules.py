"""Rules: a pattern, and what is said for what it finds.

Most rules find nothing in most texts, and a look for some letters takes far less time than a
search: each is tried on texts alone that hold the letters that it needs, as its pattern says, and
where those are rare, around them alone. One period at the end of a long text costs a search around
it, not one of the whole text.
"""

from __future__ import annotations

import math
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
    """Wherever `pattern` finds something, one text of each of `needs` is there, too, and one of
    `near` within REACH characters; without any, the pattern may look further."""

    pattern: re.Pattern[str]
    said: Said
    needs: tuple[tuple[str, ...], ...]
    near: tuple[str, ...]


def rules(*written: tuple[str | re.Pattern[str], Said] | Rule) -> tuple[Rule, ...]:
    """Of patterns and what is said for them; rules of other tables may be among them."""
    return tuple(one if isinstance(one, Rule) else _rule(*one) for one in written)


def _rule(written: str | re.Pattern[str], said: Said) -> Rule:
    pattern = re.compile(written)
    needs = needs_of(pattern)
    reach = _reach(parser.parse(pattern.pattern, pattern.flags))
    return Rule(pattern, said, needs, needs[0] if needs and reach <= REACH else ())


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
            text = _sub(rule, text)
    return text


REACH = 160
"""Characters on either side of the letters that a rule needs."""
RUN = 60
"""No longer is a run of spaces, figures or letters that is read out."""


def _sub(rule: Rule, text: str) -> str:
    pattern, said, _, near = rule
    if not near or sum(map(text.count, near)) * 3 * REACH > len(text):
        return pattern.sub(said, text)
    parts, done = list[str](), 0
    for start, end in _around(near, text):
        for m in pattern.finditer(text, start, end):
            parts += text[done : m.start()], m.expand(said) if isinstance(said, str) else said(m)
            done = m.end()
    return "".join(parts) + text[done:]


def _around(near: tuple[str, ...], text: str) -> Iterator[tuple[int, int]]:
    """From where to where the letters stand, with REACH on either side; in order and apart."""
    start = end = 0
    for m in re.finditer("|".join(map(re.escape, near)), text):
        if m.start() - REACH > end:
            yield start, end
            start = m.start() - REACH
        end = m.end() + REACH
    yield start, end


def _reach(tree: Any) -> float:
    """Characters that a pattern looks at, at most: infinitely many where it has a run of anything
    but spaces, figures or letters alone."""
    return sum(_width(kind, value) for kind, value in tree)


def _width(kind: Any, value: Any) -> float:
    if kind in REPEATS:
        _, most, body = value
        if most is not parser.MAXREPEAT:
            return most * _reach(body)
        return RUN if len(body) == 1 and _is_run(*body[0]) else math.inf
    if kind is parser.BRANCH:
        return max(map(_reach, value[1]))
    if kind is parser.SUBPATTERN:
        return _reach(value[3])
    if kind in (parser.ASSERT, parser.ASSERT_NOT):
        return _reach(value[1])
    return math.inf if kind is parser.GROUPREF else kind is not parser.AT


def _is_run(kind: Any, value: Any) -> bool:
    """Whether a class has spaces alone, or none."""
    if kind is not parser.IN:
        return kind is parser.LITERAL
    spaces = [one == (parser.CATEGORY, parser.CATEGORY_SPACE) for one in value]
    chars = "".join(chr(one) for what, one in value if what is parser.LITERAL)
    return value[0][0] is not parser.NEGATE and (all(spaces) or not (any(spaces) or " " in chars))


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
