"""Dates, times of day and decades in English text -> words. `RULES` go from the most special form
to the plainest. Pure."""

from __future__ import annotations

import math
import re

from moss_engine.text.spoken.cardinals import cardinal, digits, integer, ordinal, year
from moss_engine.text.spoken.days import (
    DAY_BEFORE_DATE,
    DAY_RANGE,
    DAYS,
    MONTH,
    MONTHS,
    SPANS,
    Rule,
    date_words,
    day_before_date,
    day_range,
    month_name,
    period,
    to_words,
)

_DETERMINER = "(?i:the|a|this|that|every|each|last|next|my|your|his|her|its|our|their)"
_TIME = r"\d{1,2}(?::\d{2})?\s?(?:[ap]\.?m\b\.?)?"


def _clock(m: re.Match[str]) -> str:
    hour, minute, half = (
        int(m["hour"]),
        int(m["minute"] or 0),
        (m["half"] or "").replace(".", "").upper(),
    )
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


def _verse(m: re.Match[str]) -> str:
    return f"{m['book']}{cardinal(int(m['chapter']))} {m['verse']}"


_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Job|"
    "Psalms?|Proverbs|Ecclesiastes|Isaiah|Jeremiah|Ezekiel|Daniel|Hosea|Matthew|Mark|Luke|John|"
    "Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Colossians|Thessalonians|Timothy|"
    "Titus|Hebrews|James|Peter|Jude|Revelation|Quran|Surah"
)
_VERSE = re.compile(
    rf"\b(?P<book>(?:{_BOOKS})\s+)(?P<chapter>\d{{1,3}}):(?P<verse>\d{{1,3}})"
    r"(?![\d:]|\s?(?i:[ap]\.?m)\b)"
)
_DAY_OF_MONTH = "(?:[12]\\d|3[01]|0?[1-9])"
RULES: tuple[Rule, ...] = (
    (_VERSE, _verse),
    (DAY_RANGE, day_range),
    (DAY_BEFORE_DATE, day_before_date),
    *SPANS,
    (
        re.compile(
            r"(?P<one>(?<=[\d\s][ap]m)|\bnoon\b|\bmidnight\b)\s?-\s?(?=noon|midnight|close\b|\d)",
            re.I,
        ),
        to_words,
    ),
    (
        re.compile(r"\b(?P<hour>[01]?\d|2[0-3])h(?P<minute>[0-5]\d)\b"),
        lambda m: f"{m['hour']}:{m['minute']}",
    ),
    (re.compile(r"(?<=\d:\d\d)\s?h(?:rs?)?\b"), lambda m: ""),
    (
        re.compile(r"(?<=T\d\d:\d\d:\d\d)(?P<sign>[-+])(?P<hour>\d\d):?(?P<minute>\d\d)(?!\d)"),
        _zone,
    ),
    (re.compile(r"(?<!\w)'0(?P<year>\d)(?![\w:])"), lambda m: f"oh {cardinal(int(m['year']))}"),
    (re.compile(r"(?<=\d)T(?=\d\d:\d\d)"), lambda m: " at "),
    (re.compile(r"(?<=:\d\d)(?:\.\d+)?Z\b"), lambda m: " U T C"),
    (
        re.compile(rf"(?<![\w:.,/-])(?P<from>{_TIME})\s*-\s*(?=(?P<to>{_TIME})(?![\w/-]))", re.I),
        lambda m: f"{m['from']} to " if re.search("(?i)[:m]", m["from"] + m["to"]) else m[0],
    ),
    (
        re.compile(
            r"(?<![\w.])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>[12]\d{3})(?![\w.]*\d)"
        ),
        _dotted_date,
    ),
    (
        re.compile(r"(?<![\d/-])(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?![\d-])"),
        _numeric_date,
    ),
    (
        re.compile(
            rf"(?<![\w.,/-])(?P<month>{_DAY_OF_MONTH})-(?P<day>{_DAY_OF_MONTH})-"
            r"(?P<year>[12]\d{3})(?![\d-])"
        ),
        _numeric_date,
    ),
    (
        re.compile(
            rf"(?P<before>\b(?:{'|'.join(DAYS.values())}|(?i:on|due|until|since|by|week\sof|ends|starts|begins|expires|thru|dated|effective))\.?,?\s+)"
            rf"(?P<month>1[0-2]|0?[1-9])/(?P<day>{_DAY_OF_MONTH})"
            r"(?![\w/%\"-]|\.\d|\s+(?:of|cups?|inch|miles?|stars)\b)"
        ),
        _day_of_year,
    ),
    (
        re.compile(r"(?<![\d/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\d/])"),
        _numeric_date,
    ),
    (
        re.compile(
            rf"\b(?P<month>{MONTH})\s+(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
            r"(?:,?\s+(?P<year>[12]\d{3}))?"
            r"(?![\d:.,/]\d|\d)"
        ),
        lambda m: date_words(month_name(m["month"]), int(m["day"]), m["year"]),
    ),
    (
        re.compile(
            rf"(?<![\d.,/-])\b(?:(?P<before>{_DETERMINER})\s+)?(?P<day>[0-3]?\d)"
            r"(?:st|nd|rd|th)?\s+(?:of\s+)?"
            rf"(?P<month>{MONTH})"
            r"(?:,?\s+(?P<year>[12]\d{3}))?(?!\w)"
        ),
        lambda m: (
            f"{m['before'] or 'the'} {ordinal(int(m['day']))} of {month_name(m['month'])}"
            + (f" {year(int(m['year']))}" if m["year"] else "")
        ),
    ),
    (
        re.compile(rf"\b(?P<month>{MONTH})(?=,?\s+(?:[12]\d{{3}}|'\d\d)\b)"),
        lambda m: month_name(m["month"]),
    ),
    (
        re.compile(
            r"(?<![\d:.,])(?P<parts>(?:\d{1,2}:)?\d{1,2}:\d\d)\.(?P<decimals>\d{1,3})(?![\d:])"
        ),
        _lap,
    ),
    (
        re.compile(
            r"(?<![\d:.,])(?P<hour>\d{1,2})\.(?P<minute>[0-5]\d)(?P<second>)"
            r"\s*(?P<half>[ap]\.?m)\b\.?",
            re.I,
        ),
        _clock,
    ),
    (
        re.compile(
            r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?"
            r"(?:\s*(?P<half>[ap]\.?m)\b\.?)?(?!\d|:\d|[.,]\d)",
            re.I,
        ),
        _clock,
    ),
    (
        re.compile(
            r"(?<![\d:.,])(?P<hour>\d{1,2})(?P<minute>)(?P<second>)\s*(?P<half>[ap]\.?m)\b\.?", re.I
        ),
        _clock,
    ),
    (
        re.compile(r"\b(?P<zone>UTC|GMT)\s?(?P<sign>[-+])\s?(?=\d)"),
        lambda m: f"{m['zone']} {'plus' if m['sign'] == '+' else 'minus'} ",
    ),
    (re.compile(r"'?\b(?P<decade>\d{1,3}0)'?s\b"), _decade),
)
