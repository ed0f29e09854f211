"""Admitting that something is not known: in varied words, with one suggestion of what works.
Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.wording import bare, words

_ADMITTED = (
    "I do not know that.",
    "That is more than I know.",
    "I have no answer to that.",
    "That I have not learned.",
    "I am too small to know that.",
    "I would have to guess, and I do not.",
)
_NOT_CAUGHT = (
    "I did not understand that.",
    "Those are no words that I know.",
    "That I could not make out.",
)
_OUTSIDE = (
    "I cannot look outside: I know nothing of weather, news or places.",
    "I have no window and no internet, so I cannot tell.",
)
_NO_HANDS = (
    "I cannot do that: I have a voice, but no hands.",
    "I can only talk, so that is beyond me.",
)
_SUGGESTED = (
    "Ask me for the time.",
    "Try a sum, such as seventeen times three.",
    "Ask me to spell a word.",
    "Ask me for a joke.",
    "Say: count to ten.",
    "Ask me for the capital of a country.",
    "Say: repeat after me, and a sentence.",
    "Ask me how fast I am.",
)
_ABOUT_OUTSIDE = re.compile(
    r"\b(?:weather|rain|snow|sunny|forecast|temperature|news|stock|score|traffic|headlines)\b"
)
_TO_DO = re.compile(
    r"^(?:call|send|play|turn (?:on|off)|set|remind|book|order|buy|open|close|start|write|email"
    r"|text|navigate|search|google|find|show|draw|switch)\b"
)
_VOWEL = re.compile(r"[aeiouy]")


def admit(question: str, count: int) -> str:
    """A sentence that says so, and one that helps; `count` of them were said before."""
    text = bare(question)
    if not any(map(is_word, words(question))):
        kind = _NOT_CAUGHT
    elif _ABOUT_OUTSIDE.search(text):
        kind = _OUTSIDE
    elif _TO_DO.match(text):
        kind = _NO_HANDS
    else:
        kind = _ADMITTED
    return f"{kind[count % len(kind)]} {_SUGGESTED[(count * 3 + len(text)) % len(_SUGGESTED)]}"


def is_word(word: str) -> bool:
    """Whether letters may be an English word: vowels lie between not too many others."""
    if word.isdigit():
        return True
    return bool(_VOWEL.search(word)) and not re.search(
        r"[^aeiouy']{5}|[aeiou]{4}|sdf|dfg|qw|jk", word
    )
