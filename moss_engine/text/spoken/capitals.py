"""Capital letters: which words are spelt, which are said, which are only loud. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.acronyms import (
    RESPELT,
    SAID_AS_WORDS,
    SHOUTED,
    SPELT,
    SPELT_IN_SMALL_LETTERS,
)

_ONSET = (
    "(?:[bcdfghjklmnprstvwyz]|bl|br|ch|cl|cr|dr|fl|fr|gl|gr|kl|kr|ph|pl|pr|qu|sc|sch|scr|sh|sk|sl|"
    "sm|sn|sp|spl|spr|st|str|sw|th|thr|tr|tw|wh|wr)?"
)
_CODA = (
    "(?:[bcdfgklmnprstwxz]|ck|ct|ff|ft|gh|ld|lf|lk|ll|lm|lp|lt|mp|nd|ng|nk|nt|pt|rd|rk|rl|rm|rn|"
    "rp|rt|sh|sk|sp|ss|st|th|tch|zz)?s?"
)
_SAYABLE = re.compile(f"{_ONSET}[aeiouy]{{1,2}}(?:[a-z]{{1,2}}[aeiou]{{1,2}})*{_CODA}e?")
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WHOLE_NAME = re.compile(r"(?:Mc|Mac|Fitz|De|Di|Du|La|Le|Van|Von|O)[A-Z][a-z]+(?:'s?)?")
_NO_VOWEL_YET_SAID = re.compile(
    r"(?i)h?m{2,}|h?mm+h?|sh+|ts+k?|nth|br+|ps+t|pf+t|gr+|z+|[nr]d|st|th"
)


def unshout(text: str) -> str:
    """A text in capitals is read as words; a line of acronyms stays one."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    if len(words) < 2 or sum(w.isupper() for w in words) <= 0.7 * len(words):
        return text
    loud = [w for w in words if w.isupper() and (w in SHOUTED or _is_long(w))]
    if len(loud) < 0.3 * len(words):
        return text
    return re.sub(r"[A-Za-z']+", lambda m: m[0] if _stays(m[0]) else m[0].lower(), text)


def _is_long(word: str) -> bool:
    return len(word) > 5 and word not in SAID_AS_WORDS and bool(re.search("[AEIOUY]", word))


def _stays(word: str) -> bool:
    return word in SPELT or word in RESPELT or word in SAID_AS_WORDS or word == "I"


def say_capitals(word: str, begins: bool) -> str | None:
    """What is said for a word by its letters' case; None where that decides nothing. `begins`: it
    is the first of a sentence."""
    if word in RESPELT:
        return RESPELT[word]
    plural = re.fullmatch(r"([A-Z]{2,5})('?s)", word)
    stem, ending = (plural[1], "'s") if plural else (word, "")
    if word in SHOUTED or ("'" in word and word.isupper()):
        return word.capitalize() if begins else word.lower()
    if stem.isalpha() and stem.isupper() and len(stem) > 1:
        return _say_upper(stem, ending, begins)
    if word in SPELT_IN_SMALL_LETTERS or has_no_vowel(word):
        return " ".join(word.upper())
    if re.search("[a-z][A-Z]|[A-Z]{2}[a-z]", word) and not _WHOLE_NAME.fullmatch(word):
        return _parts(word)
    return None


def _say_upper(stem: str, ending: str, begins: bool) -> str:
    if stem in RESPELT:
        return RESPELT[stem] + ending
    if stem in SPELT or not (stem in SAID_AS_WORDS or _is_sayable(stem)):
        return " ".join(stem) + ending
    if stem in SAID_AS_WORDS or begins or ending:
        return stem.capitalize() + ending
    return stem.lower()


def _is_sayable(stem: str) -> bool:
    """Four letters or more that can be an English word: those are rarely spelt."""
    if len(stem) > 5:
        return bool(re.search("[AEIOUY]", stem))
    return len(stem) > 3 and bool(_SAYABLE.fullmatch(stem.lower()))


def has_no_vowel(word: str) -> bool:
    """Nothing that can be said as a word: no vowel, or too few."""
    if not word.isalpha() or len(word) == 1 or word.lower() in ("mr", "mrs", "ms", "dr"):
        return False
    if re.search("[aeiouyAEIOUY]", word):
        return bool(re.search("(?i)[^aeiouy]{7}", word))
    return not _NO_VOWEL_YET_SAID.fullmatch(word)


def _parts(word: str) -> str:
    """maxLen -> "max len", PostgreSQL -> "Postgre SQL"."""
    parts = _JOINT.sub(" ", word).split(" ")
    if parts[0].islower() and len(parts[0]) > 1:
        parts = [p if p.isupper() else p.lower() for p in parts]
    return " ".join(parts)
