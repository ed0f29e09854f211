"""What a recogniser understood of a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A word with the marks behind it, and when it is said, from the recording's beginning."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Transcript:
    """`text` is empty where no words were found; `recogniser` names the recogniser, `seconds` is
    the length of the recording. `sure` is False where the recording seems to be in another
    language, or is too unclear. `words` are there if they were asked for and the recogniser knows
    their times."""

    text: str
    recogniser: str
    seconds: float
    sure: bool = True
    words: tuple[Word, ...] = ()
