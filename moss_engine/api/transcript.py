"""What a recogniser understood of a recording."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transcript:
    """`text` is empty where no words were found; `recogniser` names the recogniser, `seconds` is
    the length of the recording and `took_s` the time that the recogniser took. `sure` is False
    where the recording seems to be in another language, or is too unclear."""

    text: str
    recogniser: str
    seconds: float
    took_s: float = 0.0
    sure: bool = True
