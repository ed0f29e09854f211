"""Figures in English text -> the words said for them. Pure; one pass, from the most special form to
the plainest."""

from __future__ import annotations

import re

from moss_engine.text.spoken import codes, dates, units
from moss_engine.text.spoken.cardinals import amount, cardinal, integer, ordinal
from moss_engine.text.spoken.dates import Rule
from moss_engine.text.spoken.units import NUMBER, UNIT, of_unit

_FRACTIONS = {2: ("half", "halves"), 3: ("third", "thirds"), 4: ("quarter", "quarters")}
_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    whole = f"{cardinal(int(m['whole']))} and " if m["whole"] else ""
    if top + bottom == 100:  # a split of 60/40
        return f"{whole}{cardinal(top)} {cardinal(bottom)}"
    if not 2 <= bottom <= 20 or not 1 <= top < 100:
        return f"{whole}{cardinal(top)} over {cardinal(bottom)}"
    one, many = _FRACTIONS.get(bottom) or (ordinal(bottom), ordinal(bottom) + "s")
    if whole and top == 1:
        return f"{whole}{'an' if bottom in (8, 11, 18) else 'a'} {one}"
    return f"{whole}{cardinal(top)} {one if top == 1 else many}"


def _coordinate(m: re.Match[str]) -> str:
    minutes = f" {cardinal(int(m['minutes']))} minutes" if m["minutes"] else ""
    return f"{amount(m['degrees'])} degrees{minutes} {_COMPASS[m['side']]}"


def _range(m: re.Match[str]) -> str:
    """3-5 is a range, 4-1 a score, 747-400 a name."""
    low, high = (float(m[name].replace(",", "")) for name in ("low", "high"))
    is_range = low < high or (low > high and low < 100)
    return f"{m['low']} to " if is_range else f"{m['low']} "


def _ratio(m: re.Match[str]) -> str:
    return f"{m['one']} to "


_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            r"(?<![\w.])(?P<degrees>\d{1,3}(?:\.\d+)?)\s?°\s?(?:(?P<minutes>\d{1,2})['\u2032]\s?)?"
            r"(?:\d{1,2}(?:\.\d+)?[\"\u2033]\s?)?(?P<side>[NSEW])\b"
        ),
        _coordinate,
    ),
    *codes.NAMES,
    *units.DURATIONS,
    *dates.RULES,
    *units.MONEY,
    *codes.CALLS,
    (
        re.compile(r"(?P<top>\d{1,2}(?:\.\d)?)\s?/\s?(?P<bottom>5|10)(?=\s+(?:stars|points)\b)"),
        lambda m: f"{amount(m['top'])} out of {cardinal(int(m['bottom']))}",
    ),
    (
        re.compile(
            r"(?<![\d/.,])(?:(?P<whole>\d+)\s+)?(?P<top>\d{1,4})\s?/\s?(?P<bottom>\d{1,4})(?![\d/])"
            rf"(?:\s?(?P<unit>{UNIT})(?![\w°²³/]))?"
        ),
        lambda m: of_unit(_fraction(m), m["unit"]) if m["unit"] else _fraction(m),
    ),
    (
        re.compile(
            r"(?<![\d.-])(?P<low>\d[\d,]*(?:\.\d+)?)\s?-\s?"
            r"(?=(?P<high>\d(?:,?\d)*(?:\.\d+)?)(?![\d-]))"
        ),
        _range,
    ),
    (re.compile(r"(?<![\w.])(?P<one>\d{1,3}):(?=\d{1,3}(?!\w|\.\d))"), _ratio),
    (
        re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{3}){2,}(?![\w.])"),
        lambda m: cardinal(int(m[0].replace(".", ""))),
    ),
    (
        re.compile(r"\d+(?:\.\d+){2,}"),
        lambda m: " point ".join(integer(part) for part in m[0].split(".")),
    ),
    *units.MEASURES,
    (
        re.compile(rf"(?<![\w.,])(?P<amount>{NUMBER})x\b(?!\s*[-+*/=^])"),
        lambda m: f"{amount(m['amount'])} times",
    ),
    (
        re.compile(r"(?P<value>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", re.I),
        lambda m: ordinal(int(m["value"].replace(",", ""))),
    ),
    (re.compile(r"(?P<amount>\d{1,3}(?:,\d{3})+\.\d+|\d*\.\d+)"), lambda m: amount(m["amount"])),
    (re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"), lambda m: integer(m[0])),
)


def numbers_to_words(text: str) -> str:
    """Every figure in `text` written out; the result holds no ASCII digit."""
    text = re.sub(r"(?<![\w.)])[-−](?=[$€£¥₹]?\d)", "minus ", text)
    for pattern, say in _RULES:
        text = pattern.sub(lambda m, say=say: _apart(m, say(m)), text)
    return text


def _apart(m: re.Match[str], words: str) -> str:
    """Spaces between the words and letters or figures that touched the match."""
    if words == m[0]:
        return words
    before, after = m.string[: m.start()][-1:], m.string[m.end() :][:1]
    return (
        (" " if before.isalnum() and not words.startswith(" ") else "")
        + words
        + (" " if after.isalnum() and not words.endswith(" ") else "")
    )
