"""The word tables of `spoken_text`, which words.json holds: what a reader says for abbreviations,
signs and units, and words by how they are said. A pattern tries them in their order there."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_TABLES: dict[str, Any] = json.loads(
    files("moss_engine.text.spoken").joinpath("words.json").read_text(encoding="utf-8")
)


def _words(name: str) -> list[str]:
    return " ".join(_TABLES[name]).split()


Words = dict[str, str]

TITLES: Words = _TABLES["titles"]
ABBREVIATIONS: Words = _TABLES["abbreviations"]
COUNTED: Words = _TABLES["counted"]
"""Abbreviations before a number alone."""
DOTTED: Words = _TABLES["dotted"]
WORD_FORMS: Words = _TABLES["word forms"]
CHAT_FORMS: Words = _TABLES["chat forms"]
CHAT_FIGURES: Words = _TABLES["chat figures"]
"""Words written with figures in place of sounds."""
SENTENCE_STARTERS = frozenset(_words("sentence starters"))
EMOJI: Words = _TABLES["emoji"]
"""Signs whose name by Unicode nobody would say."""
SYMBOLS: Words = _TABLES["symbols"]
QUOTES = str.maketrans(_TABLES["quotes"])
UNITS: Words = _TABLES["units"]
DOTTED_UNITS: list[str] = _TABLES["dotted units"]
UNITS_ALONE = _words("units alone")
"""Units that are said in the plural where no number stands before them."""
PER: Words = _TABLES["per"]
WHOLE_UNITS = _words("whole units")
"""What a rate may be for: "5/h", "5/hour"."""
CURRENCIES: dict[str, tuple[str, str]] = _TABLES["currencies"]
"""And their hundredths, "" where nobody counts them."""
SCALES: Words = _TABLES["scales"]
NOT_NOUNS = _words("not nouns")
"""What no quantity describes."""
SIGN_NAMES: Words = _TABLES["sign names"]
TEX_COMMANDS: Words = _TABLES["tex commands"]
RESPELT: Words = _TABLES["respelt"]
"""What a reader says for them; it is also what is shown."""
SAID_AS_WORDS = frozenset(_words("said as words"))
SPELT = frozenset(_words("spelt"))
"""Acronyms that stay letters where everything is in capitals, or could be taken for a word."""
SPELT_IN_SMALL_LETTERS = frozenset(_words("spelt in small letters"))
SHOUTED = frozenset(_words("shouted"))
"""Words of up to five letters that are emphasised by capitals rather than spelt."""
