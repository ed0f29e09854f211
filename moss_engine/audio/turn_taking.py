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
"""From here on a frame is taken for speech while nobody is talking."""
STILL_LIKELY = 0.35
"""While somebody is talking, so that a soft syllable does not count as a pause."""
SURE = 0.7
"""While the page is answering: what the microphone hears of the answer must not interrupt it."""

BEGIN_S = 0.096
"""Speech with which a turn begins. An answer falls silent for it; whether that is interrupted, its
words say."""
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
"""After a murmur over an answer, which goes on then."""
_MURMURS = frozenset(
    "mhm mm mmm hm hmm hmmm mmhmm mm-hmm mhmm uh-huh uh huh uhhuh ah oh eh um er aha ha".split()
)


MEANT_S = 0.6
"""Speech over an answer that is no murmur any more."""
MEANT_WORDS = 3
"""Words that are none, however quickly they are said."""
_NODS = frozenset("yeah yes yep yup ok okay right sure good great nice wow".split())
"""Words that somebody says who listens, and never where a sentence goes on."""
_STOPS = frozenset("stop wait hold quiet silence enough nano pause cancel shut".split())


def interrupts(text: str, spoken_s: float, *, goes_on: bool = False) -> bool:
    """Whether words over an answer, which are no echo of it, mean to interrupt it: more of them
    than a murmur has, or one that says so. `goes_on`: what was said before wanted more, of which a
    word is enough."""
    if is_murmur(text):
        return False
    said = re.findall(r"[a-z']+|\d+", text.lower())
    meant = spoken_s >= MEANT_S or len(said) >= MEANT_WORDS
    return meant or not _STOPS.isdisjoint(said) or (goes_on and not _NODS.issuperset(said))


def asks_for_silence(text: str) -> bool:
    """Whether words over an answer want it to stop, and nothing else."""
    said = re.findall(r"[a-z']+", text.lower())
    return len(said) <= MEANT_WORDS and not _STOPS.isdisjoint(said[:1])


ECHO_SHARE, SENTENCE_SHARE, SENTENCE_WORDS = 0.6, 0.8, 4
"""Of the words that were understood, so many are the answer's own in an echo: of a scrap, which the
recogniser often mistakes; and from four words on, as who takes up an answer's words adds some."""
NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand".split()
)


def is_echo(text: str, saying: str, *, loud: bool = False) -> bool:
    """Whether words over an answer are those that it says, in its order and one behind the other;
    all of them, where they are too `loud` for an echo. Numbers, which are heard as figures or
    words, do not count."""
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
    """Whether somebody only listens: nothing but "mhm" and the like, or no words at all."""
    return all(word in _MURMURS for word in re.findall(r"[a-z]+(?:-[a-z]+)?|\d+", text.lower()))
