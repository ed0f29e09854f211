"""Saying again: what a visitor wants to hear, said before, or was told. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moss_engine.talk.tools.wording import bare, unquoted

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


def answer(question: str, history: Sequence[tuple[str, str]]) -> str | None:
    """`history`: role and text of what was said before."""
    text = bare(question)
    if re.fullmatch(_MINE, text):
        mine = next((words for role, words in reversed(history) if role == "user"), None)
        return f"You said: {mine}" if mine else "You have just begun: that was your first question."
    if re.fullmatch(_YOURS, text):
        yours = next((words for role, words in reversed(history) if role == "assistant"), None)
        return yours or "I have said nothing yet."
    found = _AFTER_ME.match(question.strip())
    if found is None:
        found = _SAY.match(question.strip())
        if found is None or _NOT_A_TEXT.fullmatch(unquoted(found["text"]).strip(" .!?")):
            return None
    words = unquoted(found["text"]).strip()
    words = re.sub(r"[,]? (?:please|for me)[.!?]*$", "", words, flags=re.I)
    return words[:1].upper() + words[1:] if words else None
