"""What the small talk can do by itself: the clock, saying again, spelling, counting, another
speaking rate.
A tool gives a sentence, or None where something else was asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from moss_engine.api.request import Message, Text
from moss_engine.talk.numbers import read_number
from moss_engine.talk.wording import bare, unquoted
from moss_engine.text.spoken.cardinals import cardinal

_TIME = (
    r"(?:what time (?:is it|it is|do you have)|what is the time|the time|time|the current time"
    r"|what is the current time|how late is it|have you got the time|what time)"
)
_DAY = r"(?:what|which) (?:day|weekday|day of the week) (?:is it|it is|is today|do we have)"
_DATE = r"(?:(?:what|which) date (?:is it|it is|is today)|what is the date|the date|what is today"
_DATE += r"|what is today's date|today's date|what is the day)"


def clock(question: str, now: datetime) -> str | None:
    """The time, the day or the date, where that is asked for."""
    text = re.sub(r"(?<! is) (?:today|now|here|right now|at the moment)$", "", bare(question))
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


_MOST_CHARS = 400  # of a question about what was said
_AFTER_ME = re.compile(
    r"^.{0,40}?\b(?:repeat after me|say after me"
    r"|repeat (?:(?:this|the following)(?: sentence| words?)?|the (?:sentence|words?))"
    r"(?: after me)?)\b[\s,:;.-]*(?P<text>.+)$",
    re.I | re.S,
)
_SAY = re.compile(
    r"^(?:please |can you |could you |would you )*(?:say|pronounce)(?: please)?"
    r"(?: the (?:word|words|sentence|following|name))?[\s:,]+(?P<text>.+)$",
    re.I | re.S,
)
_NOT_A_TEXT = re.compile(
    r"(?:hello|hi)|(?:that|it|this|something|anything|a (?:sentence|word)|the alphabet|what"
    r"|your name|who you are|more|nothing|so)\b(?: .*)?",
    re.I,
)
_MINE = (
    r"what (?:did|have) i (?:just )?(?:say|said|ask|asked|tell you|told you|type|typed)(?: before)?"
    r"|do you remember what i (?:just )?said|what were my (?:last )?words|what was my question"
)
_YOURS = (
    r"repeat that|repeat it|repeat|say that again|say it again|again|once more|what did you"
    r"(?: just)? say|pardon(?: me)?|come again|what was that"
    r"|i did not (?:hear|get|catch) (?:that|you)|one more time|repeat (?:your|the last) answer"
    r"|say again|what|huh"
)


def said_again(question: str, before: Sequence[Message]) -> str | None:
    """What was said `before`, or what is asked to be said."""

    def last_of(role: str) -> str | None:
        said = (m.content for m in reversed(before) if m.role == role)
        return next((one.text for one in said if isinstance(one, Text) and one.text), None)

    text = bare(question[:_MOST_CHARS])
    if re.fullmatch(_MINE, text):
        mine = last_of("user")
        return f"You said: {mine}" if mine else "You have just begun: that was your first question."
    if re.fullmatch(_YOURS, text):
        return last_of("assistant") or "I have said nothing yet."
    found = _AFTER_ME.match(question.strip())
    if found is None:
        found = _SAY.match(question.strip())
        if found is None or _NOT_A_TEXT.fullmatch(unquoted(found["text"]).strip(" .!?")):
            return None
    words = unquoted(found["text"]).strip()
    words = re.sub(r"[,]? (?:please|for me)[.!?]*$", "", words, flags=re.I)
    return words[:1].upper() + words[1:] if words else None


_MOST_LETTERS = 40
_NO_SPELLING = ("it", "that", "this", "something", "my name")
_SPELL = re.compile(
    r"(?:spell|how (?:do|would|can) (?:you|i|we|one) spell|how is|spelling of"
    r"|what is the spelling of)"
    r"(?: out)?(?: the (?:word|name))?(?: my name,?(?: it is| which is| is)?)?:? (?P<word>.+?)"
    r"(?: spelled| spelt| written| letter by letter| correctly)?"
)


def spelled(question: str) -> str | None:
    """The letters of the word that is asked for."""
    text = unquoted(bare(question))
    found = _SPELL.fullmatch(text)
    if found is None or (text.startswith("how is") and not re.search(r"spel(?:led|t)$", text)):
        return None
    if found["word"] in _NO_SPELLING and "the word" not in text and text == bare(question):
        return None
    if found["word"] == "your name":
        return "N, A, N, O."
    letters = [char.upper() for char in found["word"] if char.isalnum()]
    if not letters:
        return None
    if len(letters) > _MOST_LETTERS or len(found["word"].split()) > 3:
        return "I spell one word at a time; give me a shorter one."
    return f"{', '.join(letters)}."


_MOST_COUNTED = 50
TOO_FAR = f"That would take long; I count {_MOST_COUNTED} numbers at a time."
_NUMBER = r"[\w ,-]+?"
_UP = re.compile(
    rf"count(?: up)?(?: (?:from )?(?P<a>{_NUMBER}))?(?: up)? (?:to|till|until) (?P<b>{_NUMBER})"
    r"(?: loudly| slowly| quickly)?"
)
_DOWN = re.compile(
    rf"(?:count (?:down|backwards?)|countdown|a countdown|give me a countdown|start a countdown)"
    rf"(?: from (?P<a>{_NUMBER}))?(?: (?:to|till|until) (?P<b>{_NUMBER}))?"
)
_DOWN_TOO = re.compile(rf"count from (?P<a>{_NUMBER}) (?:down|backwards?)(?: to (?P<b>{_NUMBER}))?")


def counted(question: str) -> str | None:
    """The numbers, where counting is asked for."""
    text = bare(question)
    if found := _DOWN.fullmatch(text) or _DOWN_TOO.fullmatch(text):
        return _line(_whole(found["a"], 10), _whole(found["b"], 0))
    if found := _UP.fullmatch(text):
        return _line(_whole(found["a"], 1), _whole(found["b"], 10))
    return None


def _whole(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    words = text.replace("-", " ").split()
    found = read_number(words, 0)
    if found is None or found[1] < len(words) or found[0].denominator != 1:
        return None
    return int(found[0])


def _line(first: int | None, last: int | None) -> str | None:
    if first is None or last is None or min(first, last) < 0:
        return None
    if abs(last - first) >= _MOST_COUNTED:
        return TOO_FAR
    step = 1 if last >= first else -1
    line = ", ".join(cardinal(number) for number in range(first, last + step, step))
    return f"{line[:1].upper()}{line[1:]}."


_STEP = 1.2
_SPEAK = r"(?:(?:speak|talk|read|say (?:it|that)|go|be|make it|try it|answer) ?)?"
_MORE = r"(?:a (?:little|bit|lot) |much |even |more |some ?what |a little bit |way )*"
_SLOWER = re.compile(
    rf"{_SPEAK}{_MORE}(?:slower|slowly|slow)|slow (?:it )?down.*|(?:you are|you speak|you talk"
    rf"|that (?:is|was)) (?:too|so) (?:fast|quick)(?:ly)?|not so fast|less (?:speed|fast)"
)
_FASTER = re.compile(
    rf"{_SPEAK}{_MORE}(?:faster|quicker|quickly|fast)|speed (?:it )?up.*|hurry(?: up)?|(?:you are|"
    rf"you speak|you talk|that (?:is|was)) (?:too|so) slow(?:ly)?|not so slow(?:ly)?"
)
_NORMAL = re.compile(
    rf"{_SPEAK}(?:(?:at|in|with|back to|again) )*(?:the |your )?(?:normal|usual|original|default)"
    r"(?: speed| pace| tempo| rate)?(?: again)?|reset (?:the )?speed|normally"
)
_LOST = re.compile(r" (?:than (?:that|this|before)|from now on|again|this time|now)$")


def other_rate(
    question: str, now: float, slowest: float, fastest: float
) -> tuple[float, str] | None:
    """The new rate and a sentence, where another is asked for."""
    text = _LOST.sub("", bare(question))
    if _SLOWER.fullmatch(text):
        return _moved(now, max(slowest, now / _STEP), "slower", "I cannot speak any slower.")
    if _FASTER.fullmatch(text):
        return _moved(now, min(fastest, now * _STEP), "faster", "I cannot speak any faster.")
    if _NORMAL.fullmatch(text):
        return 1.0, "I speak at my normal speed again."
    return None


def _moved(now: float, then: float, how: str, limit: str) -> tuple[float, str]:
    then = round(then, 2)
    return (now, limit) if abs(then - now) < 0.01 else (then, f"All right, I speak {how} now.")
