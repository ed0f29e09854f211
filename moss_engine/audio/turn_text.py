"""What the words of a turn say about its end. Pure."""

from __future__ import annotations

import re

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


def interrupts(text: str, spoken_s: float) -> bool:
    """Whether words over an answer mean to interrupt it: more of them than a murmur has, or one
    that says so."""
    if is_murmur(text):
        return False
    return spoken_s >= MEANT_S or not _STOPS.isdisjoint(re.findall(r"[a-z]+", text.lower()))


def is_murmur(text: str) -> bool:
    """Whether somebody only listens: nothing but "mhm" and the like, or no words at all."""
    return all(word in _MURMURS for word in re.findall(r"[a-z]+(?:-[a-z]+)?|\d+", text.lower()))
