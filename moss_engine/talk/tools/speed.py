"""The speaking rate, changed by asking for it. Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.wording import bare

STEP = 1.2
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


def changed(question: str, now: float, slowest: float, fastest: float) -> tuple[float, str] | None:
    """The new rate and a sentence, where another is asked for."""
    text = _LOST.sub("", bare(question))
    if _SLOWER.fullmatch(text):
        return _moved(now, max(slowest, now / STEP), "slower", "I cannot speak any slower.")
    if _FASTER.fullmatch(text):
        return _moved(now, min(fastest, now * STEP), "faster", "I cannot speak any faster.")
    if _NORMAL.fullmatch(text):
        return 1.0, "I speak at my normal speed again."
    return None


def _moved(now: float, then: float, how: str, limit: str) -> tuple[float, str]:
    then = round(then, 2)
    return (now, limit) if abs(then - now) < 0.01 else (then, f"All right, I speak {how} now.")
