"""Figures in English text -> the words said for them. Pure; one pass, from the most special form to
the plainest."""

from __future__ import annotations

import re

from moss_engine.text.spoken import codes, dates, units
from moss_engine.text.spoken.cardinals import amount, cardinal, integer, ordinal
from moss_engine.text.spoken.dates import Rule
from moss_engine.text.spoken.tables import CHAT_FIGURES
from moss_engine.text.spoken.units import CURRENCY, NUMBER, UNIT, is_unit, of_unit


def _thousands(m: re.Match[str]) -> str:
    return m[1] + m[2].replace(" ", ",")


def _episode(m: re.Match[str]) -> str:
    return f"Season {int(m[1])}, Episode {int(m[2])}"


def _said_twice(m: re.Match[str]) -> str:
    """ "ten (10)", "30 (thirty)": once."""
    words, figure = (m[1], m[2]) if m[2].isdigit() else (m[2], m[1])
    said = cardinal(int(figure))
    return words if words.endswith(said) and len(words) >= len(said) else m[0]


_FRACTIONS = {2: ("half", "halves"), 3: ("third", "thirds"), 4: ("quarter", "quarters")}
_POINTS = (
    (re.compile(r"(?<![\w.)])[-−](?=[$€£¥₹]?\.?\d)"), "minus "),
    (re.compile(r"\b([Nn])o\.(?=\d)"), r"\1umber "),
    (re.compile(r"\b(pp?|[Ff]igs?|[Nn]os|[Cc]h|[Vv]ol|Sec|Eqs?)\.(?=\d)"), r"\1. "),
    (re.compile(r"(?<![\w.)])\.(?=\d)"), "0."),
    (
        re.compile(
            r"\b((?:(?i:order|invoice|tracking|model|part|serial|case|ref|reference|account|phone|"
            r"policy|item|lot|flight|bus|room|house|page|plate|box|issue|patent|ticket|receipt|license|licence|the|his|her|its|their|our)|"
            r"(?!(?:it|that|there|here|what|who|s?he|let)')[a-z]+'s)\s)no\.?\s?(?=\d)"
        ),
        r"\1number ",
    ),
    (re.compile(r"\bno\.\s(?=1\b)"), "number "),
    (re.compile(r"(?<![\w,.])\d{1,2}(?:,\d\d)+,\d{3}(?!,?\d)"), lambda m: m[0].replace(",", "")),
    (re.compile(r"(?<=\d)'(?=\d{3}(?!\d))"), ","),
    (
        re.compile(r"(?<![\d,.])(\d{1,3}),(\d{1,2})(?=\s?(?:k[gm]|c?m|ha|°C|[lL]|%)(?!\w))"),
        r"\1.\2",
    ),
    (re.compile(r"(?<![A-Za-z])\$(\d(?:[\d,.]*\d)?)\s?(USD|CAD|AUD)\b"), r"\2 \1"),
    (re.compile(r"(?<![\w$.,])(\d{1,2})/(?=\$\d)"), r"\1 for "),
    (re.compile(r"\bf/(?=\d)"), "f "),
    (re.compile(r"(?<![\w.])(\d{2,3}\.\d)\s?F\b"), r"\1 °F"),
    (re.compile(r"\b[Ss](\d{1,2})\s?:?[Ee](\d{1,2})\b"), _episode),
    (re.compile(r"\b([a-z]+(?:[ -][a-z]+){0,3})\s\((\d{1,4})\)"), _said_twice),
    (re.compile(r"(?<![\w.,])(\d{1,4})\s\(([a-z]+(?:[ -][a-z]+){0,3})\)"), _said_twice),
    (re.compile(r"(?<![\d-])(?<!\d\s)([1-9]\d{0,2})((?:\s000)+)(?!\s?[\d-])"), _thousands),
    (re.compile(r"(?:(?<=\d)|(?<=\d[snrt][tdh]))-(to|in|on|by|for|and|or|of)-(?=\d)"), r" \1 "),
    (
        re.compile(r"(?<![\d/])(\d{1,2}/(?:[2348]|16))\s?-\s?(?=\d{1,2}/(?:[2348]|16)(?![\d/]))"),
        r"\1 to ",
    ),
    (re.compile(r"(?<![\w-])(\d{1,3})-(\d{1,3})-(\d{1,3})(?![\w/-])"), r"\1, \2, \3"),
    (re.compile(r"(?<=\d/[2348])\s[cC]\b\.?(?=\s[a-z])"), " cup"),
    (re.compile(r"(?<![\w.,/])1\s[cC]\.(?=\s[a-z])"), "1 cup"),
    (re.compile(r"(?<![\w.,/])(\d{1,2})\s[cC]\.(?=\s[a-z])"), r"\1 cups"),
    (re.compile(r"(?<=\d[CF])/(?=gas\b)"), ", "),
    (re.compile(r"\b(\d{2,3})\s?([CF])\s?/\s?(?=\d{2,3}\s?[CF]\b)"), r"\1 °\2, "),
    (
        re.compile(
            r"(?:(?<=\b[aA]t\s)|(?<=\b[tT]o\s)|(?<=[CF],\s))(\d{3})\s?([CF])(?![\w-]|\s[A-Z])"
        ),
        r"\1 °\2",
    ),
    (re.compile(r"(?<=\d)[.-](alpha|beta|rc|dev|preview)\.?(?=\d)"), r" \1 "),
    (re.compile(r"(?<=\d)\.x\b"), " point X"),
    (re.compile(r"\b([a-z]+\s)4(?=\s(?:me|u|ur|us|you)\b)"), r"\1for"),
    (re.compile(r"(\b[uU]|^[mM]e|(?<=[.!?,]\s)[mM]e)\s2(?=\s*(?:[.!?,]\s|[.!?,]*$))"), r"\1 too"),
    (re.compile(r"\b([A-Z]{1,2})(\d{1,4})-(?=\1\d)"), r"\1\2 to "),
    (re.compile(r"#(?=[A-Z]{1,5}-\d|[A-Z]{1,2}\d{3})"), "number "),
    (re.compile(r"(?<![\w.])b\.\s?(?=[12]\d{3}\b)"), "born "),
    (re.compile(r"(?<![\w.])d\.\s?(?=[12]\d{3}\b)"), "died "),
    (re.compile(rf"(?<![\w'-])({'|'.join(CHAT_FIGURES)})(?![\w'-])"), lambda m: CHAT_FIGURES[m[1]]),
)
"""Signs before figures that would be lost, or taken for the point of a decimal: ".5", "p.5"."""
# fmt: off
_PER = {
    "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second", "mo": "month",
    "yr": "year", "wk": "week", "lb": "pound", "kg": "kilogram", "oz": "ounce", "gal": "gallon",
    "bbl": "barrel", "l": "liter", "L": "liter", "mL": "milliliter", "ml": "milliliter",
    "dL": "deciliter", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "mi": "mile",
    "sqft": "square foot", "km²": "square kilometer", "km2": "square kilometer",
    "sq mi": "square mile", "sq. mi": "square mile", "m²": "square meter",
}
_WHOLE = (
    "second", "minute", "hour", "day", "night", "week", "month", "quarter", "year", "person",
    "user", "seat", "item", "unit", "mile",
)
# fmt: on
_BY = "|".join(sorted(map(re.escape, (*_PER, *_WHOLE, "ea", "each")), key=len, reverse=True))
_RATE = re.compile(
    rf"(?<![\w.,/])(?P<much>(?:{CURRENCY})?\s?\d(?:[\d,.]{{0,15}}\d)?[kKmMbB]?"
    rf"\s?(?P<of>{UNIT}|[%¢€£]|[a-z]{{1,20}})?)\s?/\s?(?P<by>{_BY})\b(?!/)(?:\.(?=\s[a-z]))?"
)
_AFTER = r"(?P<before>(?i:\b(?:after|every|for|under|wait|within|default:|to|about)\s+|[~=]))"
_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    whole = f"{cardinal(int(m['whole']))} and " if m["whole"] else ""
    if top + bottom == 100:  # a split of 60/40
        return f"{whole}{cardinal(top)} {cardinal(bottom)}"
    if bottom == 100 and 1 < top < 100:
        return f"{whole}{cardinal(top)} out of one hundred"
    if not 2 <= bottom <= 20 or not 1 <= top < 100:
        return f"{whole}{cardinal(top)} over {cardinal(bottom)}"
    one, many = _FRACTIONS.get(bottom) or (ordinal(bottom), ordinal(bottom) + "s")
    if whole and top == 1:
        return f"{whole}{'an' if bottom in (8, 11, 18) else 'a'} {one}"
    return f"{whole}{cardinal(top)} {one if top == 1 else many}"


def _part_of(m: re.Match[str]) -> str:
    """ "3/4 km", but "50/60 Hz" and "120/80 mmHg"."""
    top, bottom = int(m["top"]), int(m["bottom"])
    if bottom <= 20 or top == 1:
        return of_unit(_fraction(m), m["unit"])
    return f"{cardinal(top)} {'over' if top > bottom else 'or'} {bottom} {m['unit']}"


def _coordinate(m: re.Match[str]) -> str:
    minutes = f" {cardinal(int(m['minutes']))} minutes" if m["minutes"] else ""
    return f"{amount(m['degrees'])} degrees{minutes} {_COMPASS[m['side']]}"


def _range(m: re.Match[str]) -> str:
    """3-5 is a range, 4-1 and 112-98 a score, 747-400 a name."""
    low, high = (float(m[name].replace(",", "")) for name in ("low", "high"))
    named = m.string[m.start() - 1 : m.start()].isalpha()
    is_score = high < low and (low < 100 or (low < 600 and high > low / 2 and not named))
    is_range = low < high or is_score
    if named and high >= 100 * low:  # i7-13700
        return f"{m['low']} "
    return f"{m['low']} to " if is_range else f"{m['low']} "


def _out_of(m: re.Match[str]) -> str:
    return f"{amount(m['top'])} out of {cardinal(int(m['bottom']))}"


def _ratio(m: re.Match[str]) -> str:
    return f"{m['one']} to "


def _rate(m: re.Match[str]) -> str:
    by = m["by"]
    if is_unit(f"{m['of']}/{by}") or (m["of"], by) == ("day", "night"):
        return m[0]
    return f"{m['much']} {'each' if by in ('ea', 'each') else f'per {_PER.get(by, by)}'}"


_DURATIONS: tuple[Rule, ...] = (
    # Beside hours or seconds an m is minutes, and 20s are no decade.
    (
        re.compile(r"\b(?P<h>\d{1,3})\s?h\s?(?P<m>\d{1,2})\s?m\b"),
        lambda m: f"{m['h']} h {m['m']} min",
    ),
    (
        re.compile(r"\b(?P<m>\d{1,2})(?: min|\s?m)\s?(?P<s>\d{1,2})s\b"),
        lambda m: f"{m['m']} min {m['s']} sec",
    ),
    (  # but "for 60s music"
        re.compile(rf"{_AFTER}(?P<s>10|(?:[2-9]|1\d)0(?!s\s[a-z]))s\b"),
        lambda m: f"{m['before']}{m['s']} sec",
    ),
)
_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            r"(?<![\w.])(?P<degrees>\d{1,3}(?:\.\d+)?)\s?°\s?(?:(?P<minutes>\d{1,2})['\u2032]\s?)?"
            r"(?:\d{1,2}(?:\.\d+)?(?:[\"\u2033]|'')\s?)?(?P<side>[NSEW])\b"
        ),
        _coordinate,
    ),
    *codes.NAMES,
    (_RATE, _rate),
    (
        re.compile(
            rf"(?P<much>(?:{CURRENCY})\s?\d(?:[\d,.]{{0,15}}\d)?[kKmMbB]?)\s?/\s?"
            r"(?P<by>[a-z]{3,20}\b(?!/)|\d{1,3}(?:[kKM]|,000)?(?=\s[a-z]))"
        ),
        lambda m: f"{m['much']} per {m['by']}",
    ),
    *_DURATIONS,
    *dates.RULES,
    *units.MONEY,
    *codes.CALLS,
    (
        re.compile(r"(?P<top>\d{1,2}(?:\.\d)?)\s?/\s?(?P<bottom>5|10)(?=\s+(?:stars|points)\b)"),
        _out_of,
    ),
    (
        re.compile(
            r"(?P<before>\b(?i:rat(?:e|es|ed|ing)|scor(?:e|es|ed|ing)|g[ai]ves?|given|solid)"
            r"(?::|(?:\s[A-Za-z']{1,20}){0,3})\s)(?P<top>\d{1,3})/(?P<bottom>5|10|20|50|100)"
            r"(?![\w/%]|\.\d|\sof\b)"
        ),
        lambda m: m["before"] + _out_of(m),
    ),
    (
        re.compile(
            r"(?<![\w.,/])(?P<top>\d\.\d{1,2}|10(?=/10)|5(?=/5))/(?P<bottom>5|10)(?![\w/%]|\.\d)"
        ),
        _out_of,
    ),
    (
        re.compile(
            r"(?<![\d/.,])(?:(?P<whole>\d+)(?:\s+|-(?=\d{1,2}/(?:2|3|4|8|16)(?!\d))))?"
            r"(?P<top>\d{1,4})\s?/\s?(?P<bottom>\d{1,4})(?![\d/])"
            rf"(?:\s?(?P<unit>{UNIT})(?![\w°²³/])(?:\.(?=\s[a-z]))?)?"
        ),
        lambda m: _part_of(m) if m["unit"] else _fraction(m),
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
        re.compile(
            rf"(?<![\w.,])(?P<amount>{NUMBER})x\b(?!\s*[-+*/=^]|\s+(?:plus|minus|equals)\b)"
        ),
        lambda m: f"{amount(m['amount'])} times",
    ),
    (
        re.compile(r"\b(?P<value>\d[1-9])ers\b"),
        lambda m: f"{cardinal(int(m['value'])).removesuffix('e')}ers",
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
    for pattern, said in _POINTS:
        text = pattern.sub(said, text)
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
