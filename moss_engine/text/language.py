"""Languages that a voice can read: how a text is spoken in each, and a guess of script and language
of what it cannot read. Pure.

The guess is cautious: names, code, single words and short English are never doubted, so that some
foreign texts pass.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from moss_engine.api.errors import ForeignTextError
from moss_engine.api.modes import Mode
from moss_engine.text.spoken.text import spoken_text


@dataclass(frozen=True)
class Language:
    """`name` as `foreign` returns it; `voice` is what sentences to visitors call it; `spoken_text`
    turns any text into the words to be spoken, "" where there are none."""

    name: str
    voice: str
    spoken_text: Callable[[str], str]


LANGUAGES = {"en": Language("English", "American English", spoken_text)}
"""By the `language` of a checkpoint's modes."""


def said(mode: Mode, text: str) -> str:
    """The text as a mode reads it: as spoken words where the mode spells out."""
    return LANGUAGES[mode.language].spoken_text(text) if mode.spell_out else text


def check_language(mode: Mode, text: str, remedy: str) -> None:
    """Raise ForeignTextError, with the remedy, if the mode spells out what it reads and the text
    seems to be in another language."""
    found = doubt(text, mode.language) if mode.spell_out else None
    if found is not None:
        raise ForeignTextError(f"{found}; {remedy}.")


def doubt(text: str, language: str = "en") -> str | None:
    """One sentence if `text` does not look like the language that is read, else None."""
    found, read = foreign(text), LANGUAGES[language]
    if found in (None, read.name):
        return None
    return f"This looks like {found}, and this voice reads {read.voice}"


MIN_FOREIGN_SHARE = 0.34
"""With so many of its letters in another script, a text has more of it than a name or a formula."""

_GUESSES: dict[str, Any] = json.loads(
    files("moss_engine.text").joinpath("languages.json").read_text(encoding="utf-8")
)
_SCRIPTS: dict[str, str] = _GUESSES["scripts"]
"""Scripts, by the beginning of their letters' Unicode names, and what each is called."""
_WHOLE_WORDS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")  # one letter of others is mathematics
_ENGLISH = frozenset(" ".join(_GUESSES["English"]).split())
_WORDS_OF = {
    name: (
        frozenset(word for word in words if not word.isupper()),
        frozenset(word.lower() for word in words if word.isupper()),
    )
    for name, lines in _GUESSES["frequent"].items()
    if (words := " ".join(lines).split())
}
"""For each language its frequent words that are not English, and those (in capitals in the file)
that are also parts of names, and do not count alone."""
_CODE = re.compile(r"[\w)][_/\\.@=(){}\[\]<>:][\w(]|[_=(){}\[\]<>\\]|\d")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def foreign(text: str) -> str | None:
    """The script or the language that a text seems to be in, if it is not English."""
    return _script(text) or _language(text)


def _script(text: str) -> str | None:
    if text.isascii():
        return None
    found: Counter[str] = Counter()
    for word in _WORD.findall(text):
        if len(word) > 1 or _script_of(word).startswith(_WHOLE_WORDS):
            found.update(map(_script_of, word))
    del found[""]
    if found.total() < 2 or found.total() < MIN_FOREIGN_SHARE * sum(map(str.isalpha, text)):
        return None
    languages = Counter[str]()
    for prefix, count in found.items():
        languages[_SCRIPTS[prefix]] += count
    if languages["Japanese"] and languages["Chinese"]:
        return "Japanese"
    return languages.most_common(1)[0][0]


@lru_cache(maxsize=4096)
def _script_of(letter: str) -> str:
    """The key of a letter's script; "" where it is Latin, or unknown."""
    name = unicodedata.name(letter, "").removeprefix("HALFWIDTH ")
    return next((prefix for prefix in _SCRIPTS if name.startswith(prefix)), "")


def _language(text: str) -> str | None:
    prose = " ".join(part for part in text.split() if not _CODE.search(part))
    words = Counter(word.lower().replace("’", "'") for word in _WORD.findall(prose))
    num_words = words.total()
    if num_words < 2:
        return None
    english = _count(words, _ENGLISH)
    best = max(_WORDS_OF, key=lambda name: _hits(words, name))
    hits = _hits(words, best)
    distinct = len(words.keys() & _WORDS_OF[best][0])
    accented = not all(map(str.isascii, words))
    enough = distinct >= (2 if num_words < 8 or accented else 3)
    return best if enough and hits >= 0.25 * num_words and hits > 2 * english else None


def _hits(words: Counter[str], language: str) -> float:
    frequent, in_names = _WORDS_OF[language]
    plain = _count(words, frequent)
    return plain + 0.5 * _count(words, in_names) if plain else 0


def _count(words: Counter[str], known: frozenset[str]) -> int:
    return sum(words[word] for word in words.keys() & known)
