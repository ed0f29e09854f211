"""Days of the week and months in their short forms -> words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from moss_engine.text.spoken.cardinals import ordinal, year
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
    rf"|(?<![Tt]he\s){_SHORT_DAY}(?=:)"
    rf"|(?<=\bon\s)(?!Sun){_SHORT_DAY}(?!')"
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
