"""What stands in a text for the eye alone: tags, Markdown, list marks, emoji. Pure."""

from __future__ import annotations

import re

_EMOJI = (r"[\U0001F000-\U0001FAFF\u2600-\u27BF\u2B05-\u2B55\u231A\u231B\u23E9-\u23FA]"
          r"[\U0001F3FB-\U0001F3FF\uFE0F\u20E3\u200D]*")
_EMOJIS = rf"(?:{_EMOJI}\s*)+"
_RULES = (
    (re.compile(r"</?[A-Za-z][^<>\n]*>"), " "),
    (re.compile(r"^[ \t]*#{1,6}[ \t]+(.*)$", re.M), r"\1."),
    (re.compile(r"^[ \t]*(?:[=*_-][ \t]*){3,}$", re.M), ""),
    (re.compile(r"(?P<sign>[=&#$%@|~])(?P=sign)+"), r"\g<sign>"),
    (re.compile(r"(?<![.!?:;,\s])[ \t]*\n\s*(?=(?:[-*•]|\d{1,2}[.)])[ \t])"), ".\n"),
    (re.compile(r"^[ \t]*[-*•][ \t]+", re.M), ""),
    (re.compile(rf"(?P<emoji>{_EMOJI})(?:\s*(?P=emoji))+"), r"\g<emoji>"),
)
_DECORATION = re.compile(rf"(?<=[.!?,;:]) *{_EMOJIS}|{_EMOJIS}(?=[.!?,;:]|$)|^\s*{_EMOJIS}", re.M)


def without_markup(text: str) -> str:
    """The text without what nobody would read out. Emoji go where they stand beside a sentence, and stay inside one;
    a text of nothing else stays as it is.
    """
    for pattern, said in _RULES:
        text = pattern.sub(said, text)
    plain = _DECORATION.sub(" ", text)
    return plain if re.search(r"\w", plain) else text
