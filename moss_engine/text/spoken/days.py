"""Days of the week and months in their short forms, and spans of days, months and years -> words.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from moss_engine.text.spoken.cardinals import cardinal, ordinal, year
from moss_engine.text.spoken.tables import SENTENCE_STARTERS

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
"""A pattern, and the words for what it finds."""

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
MONTH = "|".join(f"{name}|{name[:3]}\\.?|{name[:4]}\\." for name in MONTHS) + "|Sept"
DAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}
_GOES_ON = rf"(?:{'|'.join(DAYS.values())}|[ECMP][SD]?T|GMT|UTC)\b"
"""What follows a time of day within its sentence."""


def period(m: re.Match[str]) -> str:
    """Again where the one of "p.m." also ended the sentence."""
    after = re.match(rf"\s+(?!{_GOES_ON})[A-Z]|\s*$", m.string[m.end() :])
    return "." if m[0].endswith(".") and after else ""


DAY_RANGE = re.compile(
    rf"(?<![A-Za-z])(?P<first>{'|'.join(DAYS)})\.?\s?-\s?(?P<last>{'|'.join(DAYS)})\b\.?"
)
DAY_BEFORE_DATE = re.compile(rf"(?<![A-Za-z])(?P<day>{'|'.join(DAYS)})\.?(?=,?\s+(?:\d|{MONTH}))")


_SHORT_DAY = rf"\b(?:{'|'.join(DAYS)})\b"
_DAY_LIST = re.compile(
    rf"{_SHORT_DAY}(?:\.?(?:,\s?(?:and\s|&\s)?|\s?[/&]\s?|\s(?:and|or)\s){_SHORT_DAY}(?!'))+"
    r"(?:\.(?=,|\s[a-z\d]))?"
    rf"|(?<![Tt]he\s){_SHORT_DAY}(?:\.(?=:)|(?=:))"
    rf"|(?:(?<=\bon\s)|(?<=\bby\s)|(?<=\b[ln][ae][sx]t\s))(?!Sun){_SHORT_DAY}"
    r"(?:\.(?=\s[a-z]))?(?!'|\s[A-Z])"
)
_WORKDAYS = re.compile(r"(?<![\w-])M-F(?![\w-])")
MONTH_RANGE = re.compile(rf"\b(?P<first>{MONTH})\s?-\s?(?P<last>{MONTH})(?![\w'-])")


def weekdays_to_words(text: str) -> str:
    """The rules for "Sun, Aug 16", "Mon-Fri", "Sat & Sun" and "Apr-Oct" by themselves, also for
    words that came apart later: "SunAug"."""
    text = DAY_BEFORE_DATE.sub(day_before_date, DAY_RANGE.sub(day_range, text))
    text = _DAY_LIST.sub(lambda m: re.sub(r"([A-Z][a-z]+)\.?", lambda d: DAYS[d[1]], m[0]), text)
    text = _WORKDAYS.sub("Monday to Friday", text)
    return MONTH_RANGE.sub(month_range, text)


def month_range(m: re.Match[str]) -> str:
    return f"{month_name(m['first'])} to {month_name(m['last'])}" + period(m)


def day_range(m: re.Match[str]) -> str:
    return f"{DAYS[m['first']]} to {DAYS[m['last']]}"


def day_before_date(m: re.Match[str]) -> str:
    """A weekday, unless a name goes before it: "Edmonton Sun, August 16"."""
    before = re.search(r"\b([A-Z]\w*)\s+$", m.string[: m.start()])
    named = before is not None and before[1] not in SENTENCE_STARTERS
    return m[0] if named else DAYS[m["day"]]


def month_name(text: str) -> str:
    return next(name for name in MONTHS if name.lower().startswith(text.lower().rstrip(".")))


def date_words(month: str, day: int, year_text: str | None) -> str:
    return f"{month} {ordinal(day)}" + (f", {year(int(year_text))}" if year_text else "")


def to_words(m: re.Match[str]) -> str:
    return f"{m['one']} to "


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


SPANS: tuple[Rule, ...] = (
    (MONTH_RANGE, month_range),
    (
        re.compile(
            rf"\b(?P<month>{MONTH})\s(?P<first>\d{{1,2}})(?:st|nd|rd|th)?\s?-\s?(?P<last>\d{{1,2}})"
            r"(?:st|nd|rd|th)?(?![\w/:-]|[.,]\d|\s?[ap]\.?m\b)(?:,?\s(?P<year>[12]\d{3})\b)?"
        ),
        _days_of_month,
    ),
    (
        re.compile(
            r"(?<![\w/:.,-])(?:[Tt]he\s)?(?P<first>\d{1,2})(?:st|nd|rd|th)?\s?-\s?"
            rf"(?=\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{MONTH})\b)"
        ),
        lambda m: f"the {ordinal(int(m['first']))} to ",
    ),
    (
        re.compile(
            r"(?<![\d/-])(?P<first>\d{1,2}/\d{1,2})\s?-\s?(?P<last>\d{1,2}/\d{1,2})(?![\d/-]|\.\d)"
        ),
        _days_of_year,
    ),
    (
        re.compile(r"(?<![\w.,-])(?P<first>(?:1[1-9]|20)\d\d)-(?P<last>\d\d)(?![\w/-]|[.,]\d)"),
        _years,
    ),
    (
        re.compile(r"(?<![\w./-])(?P<first>20\d\d)/(?P<last>\d\d)(?![\w/-]|[.,]\d)"),
        lambda m: (
            f"{year(int(m['first']))} {cardinal(int(m['last']))}"
            if int(m["last"]) == (int(m["first"]) + 1) % 100
            else m[0]
        ),
    ),
    (
        re.compile(
            rf"(?:(?<=\b[12]\d{{3}})|(?<=BC)|(?<=CE))\s?-\s?(?=\d{{1,2}}\s(?:{MONTH})|"
            rf"(?:{MONTH})\s\d|\d{{1,4}}\s?(?:BCE?|CE|AD)\b)"
        ),
        lambda m: " to ",
    ),
    (re.compile(rf"(?P<one>\b(?:{MONTH})\s\d{{1,2}})\s?-\s?(?={MONTH})"), to_words),
    (re.compile(rf"(?P<one>\b\d{{1,2}}\s(?:{MONTH}))\s?-\s?(?=\d{{1,2}}\s(?:{MONTH}))"), to_words),
)
