"""Spelling a word letter by letter. Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.wording import bare, unquoted

MOST_LETTERS = 40
_NO_WORDS = ("it", "that", "this", "something", "my name")
_ASKED = re.compile(
    r"(?:spell|how (?:do|would|can) (?:you|i|we|one) spell|how is|spelling of"
    r"|what is the spelling of)"
    r"(?: out)?(?: the (?:word|name))?(?: my name,?(?: it is| which is| is)?)?:? (?P<word>.+?)"
    r"(?: spelled| spelt| written| letter by letter| correctly)?"
)


def answer(question: str) -> str | None:
    """The letters of the word that is asked for."""
    text = unquoted(bare(question))
    found = _ASKED.fullmatch(text)
    if found is None or (text.startswith("how is") and not re.search(r"spel(?:led|t)$", text)):
        return None
    if found["word"] in _NO_WORDS and "the word" not in text and text == bare(question):
        return None
    if found["word"] == "your name":
        return "N, A, N, O."
    letters = [char.upper() for char in found["word"] if char.isalnum()]
    if not letters:
        return None
    if len(letters) > MOST_LETTERS or len(found["word"].split()) > 3:
        return "I spell one word at a time; give me a shorter one."
    return f"{', '.join(letters)}."
