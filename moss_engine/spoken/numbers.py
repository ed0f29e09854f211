"""Figures in English text -> the words said for them. Pure; one pass, from the most special form to the plainest."""

from __future__ import annotations

import re
from collections.abc import Callable

MONTHS = tuple("January February March April May June July August September October November December".split())
_MONTH = "|".join(f"{name}|{name[:3]}\\.?|{name[:4]}\\." for name in MONTHS)
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = ["", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split()]
_GROUPS = ("", " thousand", " million", " billion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_CURRENCIES = {
    "$": ("dollar", "cent"),
    "€": ("euro", "cent"),
    "£": ("pound", "penny"),
    "¥": ("yen", ""),
    "₹": ("rupee", "paisa"),
    "¢": ("cent", ""),
}
# fmt: off
_SCALES = {
    "k": "thousand", "m": "million", "bn": "billion", "b": "billion", "thousand": "thousand", "million": "million",
    "billion": "billion", "trillion": "trillion",
}
_UNITS = {
    "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "mi": "mile", "ft": "foot",
    "yd": "yard", "km²": "square kilometer", "m²": "square meter", "m³": "cubic meter", "l": "liter", "L": "liter",
    "ml": "milliliter", "mL": "milliliter", "h": "hour", "hr": "hour", "hrs": "hour", "min": "minute",
    "mins": "minute", "s": "second", "sec": "second", "secs": "second", "ms": "millisecond", "Hz": "hertz",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte",
    "GB": "gigabyte", "TB": "terabyte", "W": "watt", "kW": "kilowatt", "kWh": "kilowatt hour", "V": "volt",
    "km/h": "kilometer per hour", "kph": "kilometer per hour", "mph": "mile per hour", "m/s": "meter per second",
    "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree",
}
# fmt: on
_UNIT = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_NO_PLURAL = {"hertz", "yen"}
_FRACTIONS = {2: ("half", "halves"), 3: ("third", "thirds"), 4: ("quarter", "quarters")}
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"


def cardinal(value: int) -> str:
    """12305 -> "twelve thousand three hundred five"; below a trillion, digit by digit above."""
    if value >= 10**12:
        return digits(str(value))
    groups, scale = [], 0
    while value or not groups:
        value, group = divmod(value, 1000)
        if group or not (value or groups):
            groups.append(f"{_below_thousand(group)}{_GROUPS[scale]}")
        scale += 1
    return " ".join(reversed(groups))


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    tens, ones = divmod(rest, 10)
    words = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest < 20:
        words += [_ONES[rest]] if rest or not hundreds else []
    else:
        words.append(_TENS[tens] + (f"-{_ONES[ones]}" if ones else ""))
    return " ".join(words)


def ordinal(value: int) -> str:
    """21 -> "twenty-first"."""
    words = cardinal(value)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    return words[:cut] + (_ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th"))


def digits(text: str) -> str:
    """Digit by digit: "2040" -> "two zero four zero"; other characters are skipped."""
    return " ".join(cardinal(int(c)) for c in text if c in "0123456789")


def year(value: int) -> str:
    """1905 -> "nineteen oh five", 2026 -> "twenty twenty-six", 2005 -> "two thousand five"."""
    century, rest = divmod(value, 100)
    if not 1100 <= value <= 2099 or 2000 <= value <= 2009:
        return cardinal(value)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _integer(text: str) -> str:
    """An integer as written: years, codes with leading zeros and long runs have their own readings."""
    plain = text.replace(",", "")
    if "," in text or len(plain) < 4:
        return digits(plain) if len(plain) > 1 and plain[0] == "0" else cardinal(int(plain))
    if plain[0] == "0" or len(plain) > 12 or (len(plain) >= 7 and not plain.endswith("000")):
        return ", ".join(digits(plain[i : i + 3]) for i in range(0, len(plain), 3))
    return year(int(plain)) if len(plain) == 4 else cardinal(int(plain))


def _amount(text: str) -> str:
    """A decimal or integer as a quantity, never as a year."""
    whole, _, decimals = text.replace(",", "").partition(".")
    words = cardinal(int(whole)) if whole else "zero"
    return f"{words} point {digits(decimals)}" if decimals else words


def _plural(noun: str, amount: str) -> str:
    if amount == "1" or noun in _NO_PLURAL:
        return noun
    head, per, tail = noun.partition(" per ")
    head = {"foot": "feet", "penny": "pence", "paisa": "paise"}.get(head) or (
        head.replace("degree", "degrees") if head.startswith("degree") else f"{head}s"
    )
    return head + per + tail


def _money(m: re.Match[str]) -> str:
    noun, small = _CURRENCIES[m["sign"]]
    if m["scale"]:
        return f"{_amount(m['amount'])} {_SCALES[m['scale'].lower()]} {_plural(noun, '')}"
    whole, _, decimals = m["amount"].replace(",", "").partition(".")
    if len(decimals) != 2 or not small:
        return f"{_amount(m['amount'])} {_plural(noun, m['amount'])}"
    parts = [f"{cardinal(int(whole))} {_plural(noun, whole)}"] if int(whole) or not int(decimals) else []
    if int(decimals):
        parts.append(f"{cardinal(int(decimals))} {_plural(small, str(int(decimals)))}")
    return " and ".join(parts)


def _clock(m: re.Match[str]) -> str:
    hour, minute, half = int(m["hour"]), int(m["minute"] or 0), (m["half"] or "").replace(".", "").upper()
    if hour > 24 or minute > 59:
        return f"{cardinal(hour)} to {cardinal(minute)}"
    words = cardinal(hour)
    if minute or m["second"]:
        words += f" oh {cardinal(minute)}" if minute < 10 else f" {cardinal(minute)}"
    elif not half and hour in (0, 24):
        return "midnight"
    elif not half:
        words += " o'clock" if hour <= 12 else " hundred"
    if m["second"]:
        words += f" and {cardinal(int(m['second']))} seconds"
    return f"{words} {' '.join(half)}".rstrip()


def _month(text: str) -> str:
    return next(name for name in MONTHS if name.lower().startswith(text.lower().rstrip(".")))


def _date(month: str, day: int, year_text: str | None) -> str:
    return f"{month} {ordinal(day)}" + (f", {year(int(year_text))}" if year_text else "")


def _numeric_date(m: re.Match[str]) -> str:
    month, day = int(m["month"]), int(m["day"])
    if month > 12 >= day:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " ".join(_integer(part) for part in re.findall(r"\d+", m[0]))
    year_text = m["year"] if len(m["year"]) == 4 else "20" + m["year"]
    return _date(MONTHS[month - 1], day, year_text)


def _dotted_date(m: re.Match[str]) -> str:
    day, month = int(m["day"]), int(m["month"])
    if month > 12 >= day:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " point ".join(_integer(part) for part in m[0].split("."))
    return f"the {ordinal(day)} of {MONTHS[month - 1]} {year(int(m['year']))}"


def _feet_and_inches(m: re.Match[str]) -> str:
    return f"{cardinal(int(m['feet']))} foot {cardinal(int(m['inches']))}"


def _telephone(m: re.Match[str]) -> str:
    return ("plus " if m[0][0] == "+" else "") + ", ".join(digits(part) for part in re.findall(r"\d+", m[0]))


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    whole = f"{cardinal(int(m['whole']))} and " if m["whole"] else ""
    if not 2 <= bottom <= 20 or not 1 <= top < 100:
        return f"{whole}{cardinal(top)} over {cardinal(bottom)}"
    one, many = _FRACTIONS.get(bottom) or (ordinal(bottom), ordinal(bottom) + "s")
    if whole and top == 1:
        return f"{whole}{'an' if bottom in (8, 11, 18) else 'a'} {one}"
    return f"{whole}{cardinal(top)} {one if top == 1 else many}"


def _decade(m: re.Match[str]) -> str:
    value = int(m["decade"])
    words = year(value) if value >= 100 else cardinal(value)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
_RULES: tuple[_Rule, ...] = (
    (re.compile(r"(?<![\w./-])(?:24/7|50/50|9/11)(?![\w./-])"), lambda m: " ".join(map(_integer, m[0].split("/")))),
    (re.compile(r"(?<![\w.])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>[12]\d{3})(?![\w.]*\d)"), _dotted_date),
    (re.compile(r"(?<![\w.,])(?P<feet>\d{1,2})\s?['\u2032]\s?(?P<inches>\d{1,2})(?:\"|''|\u2033)"), _feet_and_inches),
    (re.compile(r"(?<![\d/-])(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?![\d-])"), _numeric_date),
    (re.compile(r"(?<![\d/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\d/])"), _numeric_date),
    (
        re.compile(
            rf"\b(?P<month>{_MONTH})\s+(?P<day>[0-3]?\d)(?:st|nd|rd|th)?(?:,?\s+(?P<year>[12]\d{{3}}))?"
            r"(?![\d:.,/]\d|\d)"
        ),
        lambda m: _date(_month(m["month"]), int(m["day"]), m["year"]),
    ),
    (
        re.compile(
            rf"\b(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month>{_MONTH})(?:,?\s+(?P<year>[12]\d{{3}}))?(?!\w)"
        ),
        lambda m: (
            f"the {ordinal(int(m['day']))} of {_month(m['month'])}" + (f" {year(int(m['year']))}" if m["year"] else "")
        ),
    ),
    (
        re.compile(
            r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?"
            r"(?:\s*(?P<half>[ap]\.?m)\b\.?)?(?![\d:])",
            re.I,
        ),
        _clock,
    ),
    (re.compile(r"(?<![\d:.,])(?P<hour>\d{1,2})(?P<minute>)(?P<second>)\s*(?P<half>[ap]\.?m)\b\.?", re.I), _clock),
    (
        re.compile(
            rf"(?P<sign>[$€£¥₹])\s?(?P<amount>{_NUMBER})(?:\s?"
            r"(?P<scale>thousand|million|billion|trillion|bn|[kKmMbB])\b)?"
        ),
        _money,
    ),
    (re.compile(rf"(?P<amount>{_NUMBER})\s?(?P<sign>[€£¥₹¢])(?P<scale>)"), _money),
    (re.compile(r"'?\b(?P<decade>\d{1,3}0)'?s\b"), _decade),
    (
        re.compile(
            r"(?<![\w.,])(?:\(\d{3}\)\s?\d{3}[ -]\d{4}|"
            r"\+?(?:\d{1,4}[ -])?\d{3}[ -]\d{3,4}[ -]\d{4}|\d{3}-\d{4}|"
            r"(?:\+\d{1,3}|0\d{2,4})(?:[ /-]\d{2,8}){1,5})(?![\d-])"
        ),
        _telephone,
    ),
    (re.compile(r"(?<![\d/.,])(?:(?P<whole>\d+)\s+)?(?P<top>\d{1,4})\s?/\s?(?P<bottom>\d{1,4})(?![\d/])"), _fraction),
    (re.compile(r"(?<![\d.-])(?P<low>\d[\d,]*(?:\.\d+)?)\s?-\s?(?=\d[\d,.]*(?![\d-]))"), lambda m: f"{m['low']} to "),
    (re.compile(r"\d+(?:\.\d+){2,}"), lambda m: " point ".join(_integer(part) for part in m[0].split("."))),
    (re.compile(rf"(?P<amount>{_NUMBER})\s?%"), lambda m: f"{_amount(m['amount'])} percent"),
    (
        re.compile(rf"(?P<amount>{_NUMBER})\s?(?P<unit>{_UNIT})(?![\w°²³/])"),
        lambda m: f"{_amount(m['amount'])} {_plural(_UNITS[m['unit']], m['amount'])}",
    ),
    (
        re.compile(r"(?P<value>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", re.I),
        lambda m: ordinal(int(m["value"].replace(",", ""))),
    ),
    (re.compile(r"(?P<amount>\d{1,3}(?:,\d{3})+\.\d+|\d*\.\d+)"), lambda m: _amount(m["amount"])),
    (re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"), lambda m: _integer(m[0])),
)


def numbers_to_words(text: str) -> str:
    """Every figure in `text` written out; the result holds no ASCII digit."""
    text = re.sub(r"(?<![\w.)])[-−](?=[$€£¥₹]?\d)", "minus ", text)
    for pattern, say in _RULES:
        text = pattern.sub(lambda m, say=say: _apart(m, say(m)), text)
    return text


def _apart(m: re.Match[str], words: str) -> str:
    """Spaces between the words and letters or figures that touched the match."""
    before, after = m.string[: m.start()][-1:], m.string[m.end() :][:1]
    return (" " if before.isalnum() else "") + words + (" " if after.isalnum() and not words.endswith(" ") else "")
