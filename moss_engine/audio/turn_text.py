"""What the words of a turn say about its end. Pure."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

PAUSE_WHOLE_S = 0.4
"""Silence that ends a turn after a whole sentence."""
PAUSE_OPEN_S = 1.0
"""After words that want others behind them."""
PAUSE_MURMUR_S = 0.288
"""After a murmur over an answer, which goes on then."""
_OPEN = frozenset(
    "a an the and or but because so if when while that which who of to in on at for from with by "
    "about into is are was were am be my your his her its our their some any every this these "
    "those very um uh er and, than as not i we they he she would could should can will".split()
)
_MURMURS = frozenset(
    "mhm mm mmm hm hmm hmmm mmhmm mm-hmm mhmm uh-huh uh huh uhhuh ah oh eh um er aha ha".split()
)


def pause_s(text: str) -> float:
    """The silence, in seconds, that ends a turn of these words."""
    said = text.strip()
    found = re.findall(r"[a-z']+|\d+", said.lower())
    if not found or found[-1] in _OPEN or said.endswith((",", "-", "…", "...", ":")):
        return PAUSE_OPEN_S
    return PAUSE_WHOLE_S


MEANT_S = 0.6
"""Speech over an answer that is no murmur any more."""
_STOPS = frozenset("stop wait hold quiet silence enough nano pause cancel shut".split())


def interrupts(text: str, spoken_s: float, saying: str = "") -> bool:
    """Whether words over an answer mean to interrupt it: more of them than a murmur has, or one
    that says so, and not the answer's own, whose last ones are `saying`."""
    if is_murmur(text) or is_echo(text, saying):
        return False
    return spoken_s >= MEANT_S or not _STOPS.isdisjoint(re.findall(r"[a-z]+", text.lower()))


ECHO_SHARE = 0.6
"""Of the words that were understood, so many are the answer's own in an echo. Measured: three of
four scraps of an echo have them, and one of 150 questions about something else."""
_NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand".split()
)


def is_echo(text: str, saying: str) -> bool:
    """Whether words over an answer are those that it says, in its order. Numbers, which are heard
    as figures or words, do not count."""
    heard, said = _words(text), _words(saying)
    found = SequenceMatcher(None, said, heard, autojunk=False).get_matching_blocks()
    return bool(heard) and sum(block.size for block in found) >= ECHO_SHARE * len(heard)


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z']+", text.lower()) if word not in _NUMBERS]


def is_murmur(text: str) -> bool:
    """Whether somebody only listens: nothing but "mhm" and the like, or no words at all."""
    return all(word in _MURMURS for word in re.findall(r"[a-z]+(?:-[a-z]+)?|\d+", text.lower()))
