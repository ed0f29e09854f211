"""What a recogniser understood of a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transcript:
    """`text` is empty where no words were found; `recogniser` names who listened, `seconds` is the
    length of the recording and `took_s` what the recogniser needed for it. `sure` is False where
    it was another language, or too unclear."""

    text: str
    recogniser: str
    seconds: float
    took_s: float = 0.0
    sure: bool = True
