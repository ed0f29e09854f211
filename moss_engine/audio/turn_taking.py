"""Turn taking: from speech probabilities of frames to where utterances begin and end.

    turn = follow(turn, probability, answering=...)     for every frame of FRAME_S
    turn.change                                          what this frame brought about

Pure: the probabilities come from a detector, time is counted in frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_S = FRAME_SAMPLES / RATE_HZ

LIKELY = 0.5
"""From here on a frame is taken for speech while nobody is talking."""
STILL_LIKELY = 0.35
"""While somebody is talking, so that a soft syllable does not count as a pause."""
SURE = 0.7
"""While the page is answering: what the microphone hears of the answer must not interrupt it."""

BEGIN_S = 0.096
INTERRUPT_S = 0.128
"""Speech over an answer that makes it fall silent; whether it is interrupted, its words say."""
END_S = 0.64
"""Silence that ends a turn of which no words are known: longer than the pauses inside a sentence,
0.2 to 0.5 s."""
LEAST_SPEECH_S = 0.25
"""Less speech in a whole turn is a cough or a click, and is dropped."""
COUGH_END_S = 0.288
"""Silence behind so little speech over an answer that it was a cough: the answer goes on."""
LEAD_S = 0.32
"""Sound kept from before the first frame that counted, where soft consonants are."""


class Change(Enum):
    NONE = "none"
    BEGAN = "began"
    ENDED = "ended"
    DROPPED = "dropped"


@dataclass(frozen=True)
class TurnState:
    """State of one turn, in seconds.

    `run_s` is unbroken speech before a turn has begun; `silent_s` what has passed since the last
    speech in one, `spoken_s` the speech in it and `length_s` its whole length.
    """

    talking: bool = False
    run_s: float = 0.0
    silent_s: float = 0.0
    spoken_s: float = 0.0
    length_s: float = 0.0
    change: Change = Change.NONE


def follow(
    turn: TurnState, probability: float, *, answering: bool, max_s: float, end_s: float = END_S
) -> TurnState:
    """The turn after one more frame. `end_s` of silence end it, and so does its reaching
    `max_s`."""
    if not turn.talking:
        return _wait(
            turn, probability, SURE if answering else LIKELY, INTERRUPT_S if answering else BEGIN_S
        )
    heard = probability >= STILL_LIKELY
    turn = replace(
        turn,
        change=Change.NONE,
        length_s=turn.length_s + FRAME_S,
        silent_s=0.0 if heard else turn.silent_s + FRAME_S,
        spoken_s=turn.spoken_s + FRAME_S * heard,
    )
    if turn.silent_s < end_s and turn.length_s < max_s:
        return turn
    return TurnState(change=Change.ENDED if turn.spoken_s >= LEAST_SPEECH_S else Change.DROPPED)


def _wait(turn: TurnState, probability: float, level: float, needed_s: float) -> TurnState:
    run_s = turn.run_s + FRAME_S if probability >= level else 0.0
    if run_s < needed_s:
        return TurnState(run_s=run_s)
    return TurnState(talking=True, spoken_s=run_s, length_s=run_s + LEAD_S, change=Change.BEGAN)
