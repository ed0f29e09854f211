"""What a clock and a calendar say, of the machine that runs the page."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from moss_engine.talk.tools.wording import bare

_TIME = (
    r"(?:what time (?:is it|it is|do you have)|what is the time|the time|time|the current time"
    r"|what is the current time|how late is it|have you got the time|what time)"
)
_DAY = r"(?:what|which) (?:day|weekday|day of the week) (?:is it|it is|is today|do we have)"
_DATE = r"(?:(?:what|which) date (?:is it|it is|is today)|what is the date|the date|what is today"
_DATE += r"|what is today's date|today's date|what is the day)"


def answer(question: str, now: datetime) -> str | None:
    """The time, the day or the date, where that is asked for."""
    text = re.sub(r" (?:today|now|here|right now|at the moment)$", "", bare(question))
    if re.fullmatch(_TIME, text):
        return f"It is {now.hour % 12 or 12}:{now.minute:02d} {'AM' if now.hour < 12 else 'PM'}."
    if re.fullmatch(_DAY, text):
        return f"Today is {now:%A}."
    if re.fullmatch(_DATE, text):
        return f"Today is {_date(now)}."
    if found := re.fullmatch(r"(?:what|which) (?:day|date) (?:is|was|will be)(?: it)? (\w+)", text):
        shift = {"tomorrow": 1, "yesterday": -1}.get(found[1])
        if shift is not None:
            verb = "is" if shift > 0 else "was"
            return f"{found[1].capitalize()} {verb} {_date(now + timedelta(shift))}."
    if re.fullmatch(r"(?:what|which) year (?:is it|is this|it is|do we have)", text):
        return f"It is {now.year}."
    if re.fullmatch(r"(?:what|which) month (?:is it|is this|it is)", text):
        return f"It is {now:%B}."
    return None


def _date(day: datetime) -> str:
    return f"{day:%A}, {day:%B} {day.day}, {day.year}"
