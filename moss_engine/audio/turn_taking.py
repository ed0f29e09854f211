"""Turn taking: from speech probabilities of frames to where utterances begin and end, and what
their words say about it.

    turn = follow(turn, probability, answering=...)     for every frame of FRAME_S
    turn.change                                          what this frame brought about

Pure: the probabilities come from a detector, time is counted in frames.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import Enum

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_S = FRAME_SAMPLES / RATE_HZ

LIKELY = 0.5
"""Speech probability from which on a frame counts as speech while nobody is talking."""
STILL_LIKELY = 0.35
"""The same while somebody is talking, so that a soft syllable is no pause."""
SURE = 0.7
"""The same while an answer is heard, so that its echo does not interrupt it."""

BEGIN_S = 0.096
"""Speech that begins a turn. An answer falls silent for it; its words then decide whether it is an
interruption."""
END_S = 0.64
"""Silence that ends a turn of which no words are known: longer than the pauses inside a sentence,
0.2 to 0.5 s."""
LEAST_SPEECH_S = 0.25
"""Less speech in a whole turn is a cough or a click, and is dropped."""
LOOK_S = 0.03
"""Silence after which a turn is understood as far as it goes, and its end is judged: one frame,
which the detector takes for silence 0.09 s behind the last sound and rarely inside a word."""
COUGH_END_S = 0.288
"""Silence behind so little speech over an answer that it was a cough: the answer goes on."""
GOES_ON_S = 1.2
"""Who goes on so soon behind the judged end of a turn had not finished it."""
LEAD_S = 0.32
"""Sound kept from before the first frame that counted, where soft consonants are."""


class Change(Enum):
    NONE = "none"
    BEGAN = "began"
    ENDED = "ended"
    DROPPED = "dropped"
    PAUSED = "paused"
    WENT_ON = "went on"


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
    turn: TurnState,
    probability: float,
    *,
    answering: bool,
    max_s: float,
    end_s: float = END_S,
    likely: float = LIKELY,
) -> TurnState:
    """The turn after one more frame. `end_s` of silence end it, and so does its reaching `max_s`.
    From `likely` on a frame is speech while nobody talks."""
    if not turn.talking:
        level = max(SURE, likely) if answering else likely
        return _wait(turn, probability, level)
    heard = probability >= min(STILL_LIKELY, likely)
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


def _wait(turn: TurnState, probability: float, level: float) -> TurnState:
    run_s = turn.run_s + FRAME_S if probability >= level else 0.0
    if run_s < BEGIN_S:
        return TurnState(run_s=run_s)
    return TurnState(talking=True, spoken_s=run_s, length_s=run_s + LEAD_S, change=Change.BEGAN)


PAUSE_MURMUR_S = 0.288
"""Silence after a murmur ("mhm") over an answer, after which the answer goes on."""
_MURMURS = frozenset(
    "mhm mm mmm hm hmm hmmm mmhmm mm-hmm mhmm uh-huh uh huh uhhuh ah oh eh um er aha ha".split()
)


MEANT_S = 0.6
"""Speech over an answer that lasts so long is no murmur."""
MEANT_WORDS = 3
"""Nor are so many words, however quickly they are said."""
_NODS = frozenset("yeah yes yep yup ok okay right sure good great nice wow".split())
"""Words of somebody who is listening; a sentence never goes on with them."""
_STOPS = frozenset("stop wait hold quiet silence enough nano pause cancel shut".split())


def interrupts(text: str, spoken_s: float, *, goes_on: bool = False) -> bool:
    """Whether words over an answer, which are not its echo, are meant to interrupt it: more words
    than a murmur has, or one that says so. `goes_on`: the turn before seemed unfinished, so that
    one word is enough."""
    if is_murmur(text):
        return False
    said = re.findall(r"[a-z']+|\d+", text.lower())
    meant = spoken_s >= MEANT_S or len(said) >= MEANT_WORDS
    return meant or not _STOPS.isdisjoint(said) or (goes_on and not _NODS.issuperset(said))


def asks_for_silence(text: str) -> bool:
    """Whether words over an answer ask it to stop, and nothing else."""
    said = re.findall(r"[a-z']+", text.lower())
    return len(said) <= MEANT_WORDS and not _STOPS.isdisjoint(said[:1])


ECHO_SHARE, SENTENCE_SHARE, SENTENCE_WORDS = 0.6, 0.8, 4
"""Words over an answer are its echo if so many of them are the answer's own: ECHO_SHARE of a few,
as the recogniser often mishears them, SENTENCE_SHARE from SENTENCE_WORDS on, as whoever quotes an
answer adds words."""
NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand".split()
)


def is_echo(text: str, saying: str, *, loud: bool = False) -> bool:
    """Whether words over an answer are the answer's own, in its order and adjacent; all of them
    must be if they are too `loud` for an echo. Numbers, which may be written as figures or words,
    do not count."""
    heard, said = _words(text), _words(saying)
    matcher = SequenceMatcher(None, said, heard, autojunk=False)
    found = [block for block in matcher.get_matching_blocks() if block.size]
    share = ECHO_SHARE if len(heard) < SENTENCE_WORDS else SENTENCE_SHARE
    share = 1.0 if loud else share
    for first, last in itertools.combinations_with_replacement(range(len(found)), 2):
        run = found[first : last + 1]
        length = max(len(heard), run[-1].a + run[-1].size - run[0].a)
        if sum(block.size for block in run) >= share * length:
            return True
    return False


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z']+", text.lower()) if word not in NUMBERS]


def is_murmur(text: str) -> bool:
    """Whether somebody only shows that they listen: "mhm" and the like, or no words at all."""
    return all(word in _MURMURS for word in re.findall(r"[a-z]+(?:-[a-z]+)?|\d+", text.lower()))
