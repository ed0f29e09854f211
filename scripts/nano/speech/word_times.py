"""Where words begin in the teacher's speech, from its phonemes and their durations, and where the
speech ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scripts.nano.speech.shards import SAMPLE_RATE_HZ

DURATION_UNIT_SAMPLES = 600
PUNCTUATION = frozenset(' ;:,.!?—…"()“”')
STRESS_MARKS = frozenset("ˈˌ")
SILENCE = 0
"""The label of a code without a phoneme."""
CODE_S = 0.04
ENVELOPE_SAMPLES = 120
SILENCE_DB = -45.0
LEAD_S = 0.06
TAIL_S = 0.30
"""Silence kept at the end. Replies are read sentence by sentence, so this and LEAD_S make the pause
between two."""


@dataclass(frozen=True)
class SpokenWords:
    """Phonemes of a sentence and, for each written word, the index of the phoneme where its sound
    begins."""

    phonemes: str
    word_begins: tuple[int, ...]


def join_words(pieces: list[tuple[str, bool]], known: frozenset[str]) -> SpokenWords:
    """(phonemes, is the last piece of its written word) of every piece -> the words' places in the
    joined string.

    Characters outside `known` are left out, as the teacher leaves them out. A word begins at its
    first phoneme that is no punctuation; one that has none begins where its punctuation does.
    """
    phonemes, begins = "", []
    start, begin = 0, None
    for index, (text, ends_word) in enumerate(pieces):
        for char in text:
            if char not in known:
                continue
            if begin is None and char not in PUNCTUATION:
                begin = len(phonemes)
            phonemes += char
        if ends_word or index == len(pieces) - 1:
            begins.append(start if begin is None else begin)
            if index < len(pieces) - 1:
                phonemes += " "
            start, begin = len(phonemes), None
    return SpokenWords(phonemes, tuple(begins))


def spelled_a(tokens: list[str]) -> list[int]:
    """Where "A" is the name of the letter, as in "ten A M", "plan A" and "A, B", not the article
    that hibari would read.

    Within a sentence an article is written small; at its start the letter is followed by a letter
    or a mark.
    """

    def is_letter(token: str) -> bool:
        return len(token) == 1 and "A" <= token <= "Z"

    def opens(token: str) -> bool:
        return not token[-1:].isalnum() and token not in (",", ";")

    around = ["", *tokens, "."]
    return [
        k - 1
        for k, token in enumerate(around)
        if token == "A"
        and (is_letter(around[k + 1]) or around[k + 1] in PUNCTUATION or not opens(around[k - 1]))
    ]


def word_starts_s(durations: np.ndarray, word_begins: tuple[int, ...]) -> list[float]:
    """Durations [1 + phonemes + 1] in units of 25 ms, the first and last being silence -> seconds,
    one per word."""
    assert len(durations) >= 2 + max(word_begins, default=0)
    ends = np.cumsum(durations)
    return [float(ends[begin]) * DURATION_UNIT_SAMPLES / SAMPLE_RATE_HZ for begin in word_begins]


def speech_bounds(wave: np.ndarray) -> tuple[int, int]:
    """[samples] -> first and end sample of the speech with a little silence around it; (0, 0) where
    all is silent."""
    frames = len(wave) // ENVELOPE_SAMPLES
    power = (
        wave[: frames * ENVELOPE_SAMPLES].astype(np.float64).reshape(frames, ENVELOPE_SAMPLES) ** 2
    ).mean(axis=1)
    if frames == 0 or power.max() < 1e-8:
        return 0, 0
    loud = np.flatnonzero(power > power.max() * 10 ** (SILENCE_DB / 10))
    first = int(loud[0]) * ENVELOPE_SAMPLES - round(LEAD_S * SAMPLE_RATE_HZ)
    end = int(loud[-1] + 1) * ENVELOPE_SAMPLES + round(TAIL_S * SAMPLE_RATE_HZ)
    return max(0, first), min(len(wave), end)


def code_labels(
    ids: np.ndarray, phonemes: str, durations: np.ndarray, shift_s: float, num_samples: int
) -> np.ndarray:
    """-> uint8 [codes]: the id of the phoneme in the middle of every code, SILENCE at spaces and
    marks.

    ids, durations: [1 + phonemes + 1]; `shift_s` is where the kept sound begins. A mark of stress
    counts to its vowel.
    """
    kinds = ids.astype(np.uint8)
    for place in range(len(phonemes) - 1, -1, -1):
        if phonemes[place] in STRESS_MARKS:
            kinds[place + 1] = kinds[place + 2]
        elif phonemes[place] in PUNCTUATION:
            kinds[place + 1] = SILENCE
    ends_s = np.cumsum(durations) * DURATION_UNIT_SAMPLES / SAMPLE_RATE_HZ - shift_s
    middles_s = (np.arange(-(-num_samples // round(CODE_S * SAMPLE_RATE_HZ))) + 0.5) * CODE_S
    return kinds[np.searchsorted(ends_s, middles_s).clip(0, len(kinds) - 1)]
