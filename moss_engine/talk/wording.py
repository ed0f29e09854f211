"""Questions as words: without politeness, contractions, quotes and marks. Pure."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

TABLES: dict[str, Any] = json.loads(
    files("moss_engine.talk").joinpath("words.json").read_text(encoding="utf-8")
)
"""Different ways to say the same, and the sentences for when an answer is not known."""
_SHORT: dict[str, str] = TABLES["short forms"]
_BEFORE = (
    r"(?:hey|hi|hello|okay|ok|so|well|um|uh|oh|and|but|now|nano|please|alright|all right|right|yes"
    r"|no(?![,.!]? than)|sorry|excuse me|(?:ada|ben)(?=[,.!])"
    r"|good (?:morning|afternoon|evening|day)(?=[,.!] (?!(?:ada|ben|nano)$)"
    r"| (?:how|what|who|where|can|could|tell)\b))[,.!]? "
)
_ASKING = (
    r"(?:(?:can|could|would|will) you(?: please)?(?: tell me)?(?: please)? "
    r"|(?:please )?tell me(?: again)? |do you know |i (?:would like|want) (?:you )?to "
    r"|i want to know |let us hear |go ahead and |say me )"
)
_AFTER = (
    r",? (?:please|for me|thanks|thank you|nano|now|right now|again please|then)$|, (?:ada|ben)$"
)


def plain(text: str) -> str:
    """Lower case, one space between words, without marks at the end and without contractions."""
    text = re.sub(r"\s+", " ", text.strip().lower().replace("’", "'"))
    text = re.sub(r"[?!.,;:…]+$", "", text).strip()
    return " ".join(_SHORT.get(word, word) for word in text.split())


@lru_cache(maxsize=64)
def bare(text: str) -> str:
    """The same without phrases around a question, such as "hey, could you please ...".

    A text of nothing else stays as it is.
    """
    found = plain(text)
    while True:
        less = re.sub(_AFTER, "", re.sub(f"^(?:{_BEFORE}|{_ASKING})", "", found))
        less = re.sub(r"^please |[?!.,;:]+$", "", less).strip()
        if not less or less == found:
            return found
        found = less


def words(text: str) -> list[str]:
    """The words of a question, without marks and quotes."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", bare(text))


def unquoted(text: str) -> str:
    """Without the quotes around words."""
    return re.sub(r"[\"“”„«»]|(?<!\w)['‘’]|['‘’](?!\w)", "", text)
