"""Spans of days, months and years in English text -> words. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import cardinal, ordinal, year
from moss_engine.text.spoken.days import (
    MONTH,
    MONTH_RANGE,
    MONTHS,
    Rule,
    date_words,
    month_name,
    month_range,
)


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
