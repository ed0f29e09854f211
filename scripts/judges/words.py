"""How intelligible speech is: a recogniser, and the words that it mistakes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from moss_engine.api.errors import MissingPackageError
from moss_engine.text.spoken.text import spoken_text

RECOGNISER_RATE_HZ = 16_000


class Recogniser:
    """Moonshine tiny-en, whole utterances at once."""

    def __init__(self) -> None:
        try:
            import moonshine_voice
        except ImportError as error:
            raise MissingPackageError(
                "The recogniser is not installed: pip install moonshine-voice==0.0.65 (later "
                "wheels hold no weights)"
            ) from error
        model = Path(moonshine_voice.__file__).parent / "assets" / "tiny-en"
        if not model.is_dir():
            raise MissingPackageError(
                f"{model} is missing; only moonshine-voice==0.0.65 holds the recogniser's "
                f"weights: install it."
            )
        self._transcriber = moonshine_voice.Transcriber(str(model), moonshine_voice.ModelArch.TINY)

    def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> str:
        """float32 [samples] mono in [-1, 1] -> what was understood"""
        wave = resample(wave, sample_rate_hz, RECOGNISER_RATE_HZ)
        transcript = self._transcriber.transcribe_without_streaming(
            wave.tolist(), RECOGNISER_RATE_HZ
        )
        return " ".join(line.text.strip() for line in transcript.lines).strip()


def resample(wave: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """float32 [samples] at one rate -> float32 at another, by a polyphase filter: with the steeper
    one of soxr the recogniser invents words in the silence at a reply's end."""
    if from_hz == to_hz:
        return np.asarray(wave, np.float32)
    from scipy.signal import resample_poly

    ratio = Fraction(to_hz, from_hz)
    return resample_poly(np.asarray(wave, np.float64), ratio.numerator, ratio.denominator).astype(
        np.float32
    )


def spoken_words(text: str) -> list[str]:
    """Text as the words that are heard: numbers and symbols written out, no case, no punctuation,
    hyphens split."""
    text = spoken_text(text).lower().replace("’", "'").replace("'", "")
    return re.findall(r"[^\W_]+", text)


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions from one list to the other."""
    previous = list(range(len(hypothesis) + 1))
    for i, item in enumerate(reference, 1):
        current = [i]
        for j, other in enumerate(hypothesis, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (item != other)))
        previous = current
    return previous[-1]


def count_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """How many words were inserted, left out or replaced, and how many the reference has; both
    texts are compared as they are spoken."""
    expected, heard = spoken_words(reference), spoken_words(hypothesis)
    return edit_distance(expected, heard), len(expected)
