"""Dates, times of day, weekdays and decades in English text -> words. `RULES` go from the most
special form to the plainest. Pure."""

from __future__ import annotations

import math
import re

from moss_engine.text.spoken.cardinals import (
    BEFORE_FIGURE,
    cardinal,
    digits,
    integer,
    ordinal,
    year,
)
from moss_engine.text.spoken.rules import after, before, rules
from moss_engine.text.spoken.tables import SENTENCE_STARTERS

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
MONTH = "|".join(f"{name}|{name[:3]}\\.?|{name[:4]}\\." for name in MONTHS) + "|Sept"
DAYS = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday",
    "Thur": "Thursday", "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
_GOES_ON = rf"(?:{'|'.join(DAYS.values())}|[ECMP][SD]?T|GMT|UTC)\b"
"""What follows a time of day within its sentence."""
_NEXT_SENTENCE = re.compile(rf"\s+(?!{_GOES_ON})[A-Z]|\s*\Z")


def period(m: re.Match[str]) -> str:
    """Again where the one of "p.m." also ended the sentence."""
    return "." if m[0].endswith(".") and _NEXT_SENTENCE.match(after(m)) else ""


_SHORT_DAY = rf"\b(?:{'|'.join(DAYS)})\b"
_DAY_LIST = (
    rf"{_SHORT_DAY}(?:\.?(?:,\s?(?:and\s|&\s)?|\s?[/&]\s?|\s(?:and|or)\s){_SHORT_DAY}(?!'))+"
    r"(?:\.(?=,|\s[a-z\d]))?"
    rf"|(?<![Tt]he\s){_SHORT_DAY}(?:\.(?=:)|(?=:))"
    rf"|(?:(?<=\bon\s)|(?<=\bby\s)|(?<=\b[ln][ae][sx]t\s))(?!Sun){_SHORT_DAY}"
    r"(?:\.(?=\s[a-z]))?(?!'|\s[A-Z])"
)


def _month_range(m: re.Match[str]) -> str:
    """ "Apr-Oct", "Jan-Feb-Mar"."""
    return " to ".join(map(month_name, re.split(r"\s?-\s?", m[0]))) + period(m)


def _day_range(m: re.Match[str]) -> str:
    return f"{DAYS[m['first']]} to {DAYS[m['last']]}"


def _day_before_date(m: re.Match[str]) -> str:
    """A weekday, unless a name goes before it: "Edmonton Sun, August 16"."""
    found = re.search(r"\b([A-Z]\w*)\s+$", before(m))
    named = found is not None and found[1] not in SENTENCE_STARTERS
    return m[0] if named else DAYS[m["day"]]


def month_name(text: str) -> str:
    return next(name for name in MONTHS if name.lower().startswith(text.lower().rstrip(".")))


def date_words(month: str, day: int, year_text: str | None) -> str:
    return f"{month} {ordinal(day)}" + (f", {year(int(year_text))}" if year_text else "")


def _days_of_month(m: re.Match[str]) -> str:
    """ "Oct. 3-5, 2024" -> "October third to fifth, twenty twenty-four"."""
    first, last = int(m["first"]), int(m["last"])
    if not 1 <= first < last <= 31:
        return m[0]
    days = f"{month_name(m['month'])} {ordinal(first)} to {ordinal(last)}"
    return days + (f", {year(int(m['year']))}" if m["year"] else "")


def _days_of_year(m: re.Match[str]) -> str:
    """ "9/3-9/7", but "1/4-1/2"."""
    parts = [tuple(map(int, m[name].split("/"))) for name in ("first", "last")]
    if all(day in (2, 3, 4, 8, 16) for _, day in parts):
        return m[0]
    if not all(1 <= month <= 12 and 1 <= day <= 31 for month, day in parts):
        return m[0]
    return " to ".join(date_words(MONTHS[month - 1], day, None) for month, day in parts)


def _years(m: re.Match[str]) -> str:
    """ "1914-18" to the end of it, "2024-25" as a season is said."""
    first, last = int(m["first"]), int(m["first"][:2] + m["last"])
    return f"{first} to {last}" if last > first + 1 else m[0]


_DAY_RANGE = (
    rf"(?<![A-Za-z])(?P<first>{'|'.join(DAYS)})\.?\s?-\s?(?P<last>{'|'.join(DAYS)})\b\.?",
    _day_range,
)
_DAY_BEFORE_DATE = (
    rf"(?<![A-Za-z])(?P<day>{'|'.join(DAYS)})\.?(?=,?\s+(?:\d|{MONTH}))",
    _day_before_date,
)
_MONTH_RANGE = (
    rf"(?<![A-Za-z]{{2}}[bceghlnprtvy]-)\b(?:{MONTH})(?:\s?-\s?(?:{MONTH}))+(?![\w'-])",
    _month_range,
)
WEEKDAYS = rules(
    _DAY_RANGE,
    _DAY_BEFORE_DATE,
    (_DAY_LIST, lambda m: re.sub(r"([A-Z][a-z]+)\.?", lambda d: DAYS[d[1]], m[0])),
    (r"(?<![\w-])M-F(?![\w-])", "Monday to Friday"),
    _MONTH_RANGE,
)
"""Those for "Sun, Aug 16", "Mon-Fri", "Sat & Sun" and "Apr-Oct" by themselves, also for words that
came apart later: "SunAug"."""


_SPANS = (
    _MONTH_RANGE,
    (
        rf"\b(?P<month>{MONTH})\s(?P<first>\d{{1,2}})(?:st|nd|rd|th)?\s?-\s?(?P<last>\d{{1,2}})"
        r"(?:st|nd|rd|th)?(?![\w/:-]|[.,]\d|\s?[ap]\.?m\b)(?:,?\s(?P<year>[12]\d{3})\b)?",
        _days_of_month,
    ),
    (
        r"(?<![\w/:.,-])(?:[Tt]he\s)?(?P<first>\d{1,2})(?:st|nd|rd|th)?\s?-\s?"
        rf"(?=\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{MONTH})\b)",
        lambda m: f"the {ordinal(int(m['first']))} to ",
    ),
    (
        r"(?<![\d/-])(?P<first>\d{1,2}/\d{1,2})\s?-\s?(?P<last>\d{1,2}/\d{1,2})(?![\d/-]|\.\d)",
        _days_of_year,
    ),
    (r"(?<![\w.,-])(?P<first>(?:1[1-9]|20)\d\d)-(?P<last>\d\d)(?![\w/-]|[.,]\d)", _years),
    (
        r"(?<![\w./-])(?P<first>20\d\d)/(?P<last>\d\d)(?![\w/-]|[.,]\d)",
        lambda m: (
            f"{year(int(m['first']))} {cardinal(int(m['last']))}"
            if int(m["last"]) == (int(m["first"]) + 1) % 100
            else m[0]
        ),
    ),
    (
        rf"(?:(?<=\b[12]\d{{3}})|(?<=BC)|(?<=CE))\s?-\s?(?=\d{{1,2}}\s(?:{MONTH})|"
        rf"(?:{MONTH})\s\d|\d{{1,4}}\s?(?:BCE?|CE|AD)\b)",
        " to ",
    ),
    (rf"(?P<one>\b(?:{MONTH})\s\d{{1,2}})\s?-\s?(?={MONTH})", r"\g<one> to "),
    (rf"(?P<one>\b\d{{1,2}}\s(?:{MONTH}))\s?-\s?(?=\d{{1,2}}\s(?:{MONTH}))", r"\g<one> to "),
)


_DETERMINER = "(?i:the|a|this|that|every|each|last|next|my|your|his|her|its|our|their)"
_TIME = r"\d{1,2}(?::\d{2})?\s?(?:[ap]\.?m\b\.?)?"


def _clock(m: re.Match[str]) -> str:
    hour, minute = int(m["hour"]), int(m["minute"] or 0)
    half = (m["half"] or "").replace(".", "").upper()
    if hour > 24 or minute > 59:
        return f"{cardinal(hour)} to {cardinal(minute)}"
    words = cardinal(hour)
    seconds = int(m["second"] or 0)
    if minute:
        words += f" oh {cardinal(minute)}" if minute < 10 else f" {cardinal(minute)}"
    elif not half and hour in (0, 24) and not seconds:
        return "midnight"
    elif not half:
        words += " o'clock" if 0 < hour <= 12 else " hundred"
    if seconds:
        words += f" and {cardinal(seconds)} second{'s' if seconds > 1 else ''}"
    return f"{words} {' '.join(half)}".rstrip() + period(m)


def _numeric_date(m: re.Match[str]) -> str:
    month, day = int(m["month"]), int(m["day"])
    if month > 12 >= day:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " ".join(integer(part) for part in re.findall(r"\d+", m[0]))
    century = "" if len(m["year"]) == 4 else "19" if int(m["year"]) > 50 else "20"
    return date_words(MONTHS[month - 1], day, century + m["year"])


def _dotted_date(m: re.Match[str]) -> str:
    day, month = int(m["day"]), int(m["month"])
    if month > 12 >= day:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " point ".join(integer(part) for part in m[0].split("."))
    return f"the {ordinal(day)} of {MONTHS[month - 1]} {year(int(m['year']))}"


def _decade(m: re.Match[str]) -> str:
    value = int(m["decade"])
    words = year(value) if value >= 100 else cardinal(value)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _day_of_year(m: re.Match[str]) -> str:
    """ "by 12/20", but "by 3/4"."""
    month, day = int(m["month"]), int(m["day"])
    is_usual = month < day and math.gcd(month, day) == 1 and (day <= 10 or day in (12, 16))
    if is_usual and m["before"].lower().startswith("by"):
        return m[0]
    return m["before"] + date_words(MONTHS[month - 1], day, None)


def _lap(m: re.Match[str]) -> str:
    """ "1:27:05.9" -> "one twenty-seven oh five point nine"."""
    first, *rest = map(int, m["parts"].split(":"))
    words = (f"oh {cardinal(part)}" if part < 10 else cardinal(part) for part in rest)
    return f"{cardinal(first)} {' '.join(words)} point {digits(m['decimals'])}"


def _zone(m: re.Match[str]) -> str:
    """ "-05:30" -> "U T C minus five thirty"."""
    words = f" U T C {'plus' if m['sign'] == '+' else 'minus'} {cardinal(int(m['hour']))}"
    return words + (f" {cardinal(int(m['minute']))}" if int(m["minute"]) else "")


_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Job|"
    "Psalms?|Proverbs|Ecclesiastes|Isaiah|Jeremiah|Ezekiel|Daniel|Hosea|Matthew|Mark|Luke|John|"
    "Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Colossians|Thessalonians|Timothy|"
    "Titus|Hebrews|James|Peter|Jude|Revelation|Quran|Surah"
)
_DAY_OF_MONTH = "(?:[12]\\d|3[01]|0?[1-9])"
NOON = rules(
    (r"(?i)((?<=[\d\s][ap]m)|\bnoon\b|\bmidnight\b)\s?-\s?(?=noon|midnight|close\b|\d)", r"\1 to ")
)
RULES = rules(
    (
        rf"\b(?P<book>(?:{_BOOKS})\s+)(?P<chapter>\d{{1,3}}):(?P<verse>\d{{1,3}})"
        r"(?![\d:]|\s?(?i:[ap]\.?m)\b)",
        lambda m: f"{m['book']}{cardinal(int(m['chapter']))} {m['verse']}",
    ),
    _DAY_RANGE,
    _DAY_BEFORE_DATE,
    *_SPANS,
    *NOON,
    (r"\b(?P<hour>[01]?\d|2[0-3])h(?P<minute>[0-5]\d)\b", r"\g<hour>:\g<minute>"),
    (r"(?<=\d:\d\d)\s?h(?:rs?)?\b", ""),
    (r"(?<=T\d\d:\d\d:\d\d)(?P<sign>[-+])(?P<hour>\d\d):?(?P<minute>\d\d)(?!\d)", _zone),
    (r"(?<!\w)'0(?P<year>\d)(?![\w:])", lambda m: f"oh {cardinal(int(m['year']))}"),
    (r"(?<=\d)T(?=\d\d:\d\d)", " at "),
    (r"(?<=:\d\d)(?:\.\d+)?Z\b", " U T C"),
    (
        rf"(?i)(?<![\w:.,/-])(?P<from>{_TIME})\s*-\s*(?=(?P<to>{_TIME})(?![\w/-]))",
        lambda m: f"{m['from']} to " if re.search("(?i)[:m]", m["from"] + m["to"]) else m[0],
    ),
    (
        r"(?<![\w.])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>[12]\d{3})(?![\w.]*\d)",
        _dotted_date,
    ),
    (r"(?<![\d/-])(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?![\d-])", _numeric_date),
    (
        rf"(?<![\w.,/-])(?P<month>{_DAY_OF_MONTH})-(?P<day>{_DAY_OF_MONTH})-"
        r"(?P<year>[12]\d{3})(?![\d-])",
        _numeric_date,
    ),
    (
        rf"(?P<before>\b(?:{'|'.join(DAYS.values())}|(?i:on|due|until|since|by|week\sof|ends|starts|begins|expires|thru|dated|effective))\.?,?\s+)"
        rf"(?P<month>1[0-2]|0?[1-9])/(?P<day>{_DAY_OF_MONTH})"
        r"(?![\w/%\"-]|\.\d|\s+(?:of|cups?|inch|miles?|stars)\b)",
        _day_of_year,
    ),
    (
        r"(?<![\d/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\d/])",
        _numeric_date,
    ),
    (
        rf"\b(?P<month>{MONTH})\s+(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
        r"(?:,?\s+(?P<year>[12]\d{3}))?"
        r"(?![\d:.,/]\d|\d)",
        lambda m: date_words(month_name(m["month"]), int(m["day"]), m["year"]),
    ),
    (
        rf"(?<![\d.,/-])\b(?:{BEFORE_FIGURE}(?P<before>{_DETERMINER})\s+)?(?P<day>[0-3]?\d)"
        r"(?:st|nd|rd|th)?\s+(?:of\s+)?"
        rf"(?P<month>{MONTH})"
        r"(?:,?\s+(?P<year>[12]\d{3}))?(?!\w)",
        lambda m: (
            f"{m['before'] or 'the'} {ordinal(int(m['day']))} of {month_name(m['month'])}"
            + (f" {year(int(m['year']))}" if m["year"] else "")
        ),
    ),
    (rf"\b(?P<month>{MONTH})(?=,?\s+(?:[12]\d{{3}}|'\d\d)\b)", lambda m: month_name(m["month"])),
    (r"(?<![\d:.,])(?P<parts>(?:\d{1,2}:)?\d{1,2}:\d\d)\.(?P<decimals>\d{1,3})(?![\d:])", _lap),
    (
        r"(?i)(?<![\d:.,])(?P<hour>\d{1,2})\.(?P<minute>[0-5]\d)(?P<second>)"
        r"\s*(?P<half>[ap]\.?m)\b\.?",
        _clock,
    ),
    (
        r"(?i)(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?"
        r"(?:\s*(?P<half>[ap]\.?m)\b\.?)?(?!\d|:\d|[.,]\d)",
        _clock,
    ),
    (
        r"(?i)(?<![\d:.,])(?P<hour>\d{1,2})(?P<minute>)(?P<second>)\s*(?P<half>[ap]\.?m)\b\.?",
        _clock,
    ),
    (r"\b(UTC|GMT)\s?\+\s?(?=\d)", r"\1 plus "),
    (r"\b(UTC|GMT)\s?-\s?(?=\d)", r"\1 minus "),
    (r"'?\b(?P<decade>\d{1,3}0)'?s\b", _decade),
)
