"""Whether somebody who pauses has finished: by words and melody, a probability; from it the silence
that is waited for.

    wait_s(log_odds(text, melody_of(melody, pcm)))

Words: a logistic regression over how a sentence begins and ends, trained by
`python -m scripts.turns words`. Melody: Smart Turn, where its package is installed, and how the
pitch ends; else words alone are judged.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import zlib
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from moss_engine.audio.pitch import Ending, ending
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.smart_turn import MELODY_S, Melody, load_melody
from moss_engine.audio.turn_taking import END_S, LOOK_S, NUMBERS

_FILE = Path("assets", "turns", "words.npz")
_PACKAGE = Path(__file__).resolve().parents[1]

NUM_WEIGHTS = 1 << 18
WORDS_BOUND = 4.0
"""Words alone never give log-odds beyond this."""
_ENDINGS = ("ing", "ed", "ly", "s", "er", "est", "tion", "able", "al", "ive", "y")


def words_of(text: str) -> list[str]:
    """In lower case; each figure is "0"."""
    words = re.findall(r"[a-z']+|\d+", text.lower())
    return ["0" if word.isdigit() else word for word in words]


def traits(text: str, common: Container[str]) -> list[str]:
    """Features of a text by which it is judged to be complete or not: its last one to four words
    (also with every word that is not `common` replaced by its kind), its first words, and how many
    there are."""
    words = words_of(text)
    if not words:
        return []
    kinds = [word if word in common else _kind(word) for word in words]
    found = [f"k{kinds[-1]}", f"b{words[0]}", f"b{' '.join(words[:2])}"]
    for size in range(1, min(4, len(words)) + 1):
        found.append(f"e{' '.join(words[-size:])}")
        if size > 1 and kinds[-size:] != words[-size:]:
            found.append(f"k{' '.join(kinds[-size:])}")
    return [*found, f"be{words[0]} {words[-1]}", f"n{min(len(words), 12)}"]


def _kind(word: str) -> str:
    if word in NUMBERS or word == "0":
        return "#"
    long = (end for end in _ENDINGS if word.endswith(end) and len(word) > len(end) + 2)
    return f"~{next(long, '')}"


def weight_of(trait: str) -> int:
    """The index of a trait's weight."""
    return zlib.crc32(trait.encode()) % NUM_WEIGHTS


class Words:
    """`weights` is float32 [NUM_WEIGHTS]; `common` are the words that count as themselves, others
    by their kind."""

    def __init__(self, weights: np.ndarray, bias: float, common: Iterable[str]):
        self._weights = weights
        self._bias = bias
        self._common = frozenset(common)

    def log_odds(self, text: str) -> float:
        """Log-odds that these words are complete; far below zero where there are none."""
        found = [weight_of(trait) for trait in traits(text, self._common)]
        if not found:
            return -WORDS_BOUND
        odds = self._bias + float(self._weights[found].sum())
        return max(-WORDS_BOUND, min(WORDS_BOUND, odds))


@functools.cache
def load_words() -> Words:
    roots = (_PACKAGE, _PACKAGE.parent)
    with np.load(next(root / _FILE for root in roots if (root / _FILE).is_file())) as kept:
        weights = kept["weights"].astype(np.float32) * kept["scale"]
        return Words(weights, float(kept["bias"]), str(kept["common"]).split())


BOTH = (1.479, 0.334, 0.508, 1.07, -1.572)
WORDS = (0.648, 0.43, 1.096, 0.455)
"""Weights of the values of `said`; BOTH has that of melody before them."""
MELODY = (0.362, 0.897, 0.683, -0.21, -0.95, -0.107, -1.473, 1.045)
"""Weights of the values of `sounded`."""
SURE, SHORT_S = 3.0, 1.0
LEVELS = (2.68, 0.18)
WAITS_S = (0.19, 0.67, 0.9)
"""A turn with log-odds above LEVELS[i] ends after WAITS_S[i] of silence, one below all levels after
the last. Levels, waits and weights come from `scripts.turns tune`."""
EAGERNESS = {"low": 1.6, "medium": 1.0, "auto": 1.0, "high": 0.6}
"""Factors of that silence."""


def melody_of(melody: Melody, pcm: np.ndarray) -> float:
    """The log-odds that the turn is over by how it sounds, int16 [n] at RATE_HZ."""
    return weighed(MELODY, sounded(melody.log_odds(pcm), ending(pcm)))


def log_odds(text: str | None, melody: float | None) -> float | None:
    """The same with the turn's words, too; None where neither is known."""
    if text is None:
        return melody
    heard = said(text)
    return weighed(WORDS, heard) if melody is None else weighed(BOTH, (melody, *heard))


def sounded(melody: float, pitch: Ending) -> tuple[float, ...]:
    """Features of a turn's sound: Smart Turn's log-odds, and their excess over SURE; the pitch,
    twice: as it is, and times how short the turn is, as short turns fall anyway; how short it is;
    1."""
    short = max(0.0, SHORT_S - pitch.voiced_s)
    falls = pitch.last, pitch.end
    return melody, max(melody - SURE, 0.0), *falls, *(short * one for one in falls), short, 1.0


def said(text: str) -> tuple[float, ...]:
    """Features of a turn's words: their log-odds, these again if below 0, whether a mark ends them,
    1."""
    odds = load_words().log_odds(text)
    return odds, min(odds, 0.0), ends_with_a_mark(text), 1.0


def weighed(weights: tuple[float, ...], given: tuple[float, ...]) -> float:
    return sum(weight * value for weight, value in zip(weights, given, strict=True))


def ends_with_a_mark(text: str) -> bool:
    """Recognisers put one after what they take for a sentence."""
    return text.rstrip(" '\"").endswith((".", "?", "!"))


def wait_s(odds: float | None, eagerness: str = "auto") -> float:
    """Seconds of silence that end a turn with these log-odds of being over."""
    if odds is None:
        return END_S
    place = sum(odds < level for level in LEVELS)
    return max(LOOK_S, WAITS_S[place] * EAGERNESS[eagerness])


_MELODIES = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4), "melody")
"""So that the pauses of many speakers take no more than a quarter of the cores."""


class Judge:
    """Judges the pauses of one session, whose turns end `later_s` earlier, as answers are heard
    later."""

    def __init__(self, eagerness: str = "auto", later_s: float = 0.0):
        self._eagerness = eagerness
        self._later_s = later_s

    async def melody(self, pcm: np.ndarray, rate_hz: int) -> float | None:
        """int16 [n] at RATE_HZ or FROM_HZ, up to the pause, -> log-odds; None without the
        package."""
        return await asyncio.get_running_loop().run_in_executor(_MELODIES, _heard, pcm, rate_hz)

    @property
    def longest_s(self) -> float:
        """The silence that ends a turn which seems unfinished."""
        return WAITS_S[-1] * EAGERNESS[self._eagerness] - self._later_s

    def wait_s(self, text: str | None, melody: float | None) -> float:
        judged_s = wait_s(log_odds(text, melody), self._eagerness)
        return max(LOOK_S, judged_s - self._later_s)


def _heard(pcm: np.ndarray, rate_hz: int) -> float | None:
    if (melody := load_melody()) is None:
        return None
    pcm = pcm[-MELODY_S * rate_hz :]
    return melody_of(melody, Downsampler().push(pcm) if rate_hz == FROM_HZ else pcm)
