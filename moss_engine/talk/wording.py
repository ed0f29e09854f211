"""Questions as words: without politeness, contractions, quotes and marks. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

_SHORT = {
    "what's": "what is", "whats": "what is", "what're": "what are", "who's": "who is",
    "where's": "where is", "when's": "when is", "how's": "how is", "that's": "that is",
    "it's": "it is", "i'm": "i am", "you're": "you are", "we're": "we are", "don't": "do not",
    "dont": "do not", "can't": "can not", "cannot": "can not", "isn't": "is not",
    "doesn't": "does not", "won't": "will not", "i've": "i have", "you've": "you have",
    "let's": "let us", "there's": "there is", "i'd": "i would", "i'll": "i will",
}  # fmt: skip
_BEFORE = (
    r"(?:hey|hi|hello|okay|ok|so|well|um|uh|oh|and|but|now|nano|please|alright|all right|right|yes"
    r"|no(?![,.!]? than)|sorry|excuse me)[,.!]? "
)
_ASKING = (
    r"(?:(?:can|could|would|will) you(?: please)?(?: tell me)?(?: please)? "
    r"|(?:please )?tell me(?: again)? |do you know |i (?:would like|want) (?:you )?to "
    r"|i want to know |let us hear |go ahead and |say me )"
)
_AFTER = r",? (?:please|for me|thanks|thank you|nano|now|right now|again please|then)$"


def plain(text: str) -> str:
    """Lower case, one space between words, without marks at the end and without contractions."""
    text = re.sub(r"\s+", " ", text.strip().lower().replace("’", "'"))
    text = re.sub(r"[?!.,;:…]+$", "", text).strip()
    return " ".join(_SHORT.get(word, word) for word in text.split())


@lru_cache(maxsize=64)
def bare(text: str) -> str:
    """The same without what people say around a question: "hey, could you please ...".

    A text that is nothing else stays as it is.
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
