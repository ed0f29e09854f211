"""Hands-free: the turns in a microphone's blocks, and what may interrupt an answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from moss_engine.audio.turn_taking import (
    COUGH_END_S,
    END_S,
    FRAME_S,
    FRAME_SAMPLES,
    LEAD_S,
    LEAST_SPEECH_S,
    RATE_HZ,
    Change,
    TurnState,
    follow,
)
from moss_engine.audio.voice_activity import Listener

TAIL_S = 0.2  # silence kept after the last word of a turn
LEVEL_FRAMES = 4
"""The level of a voice is that of so many frames together: there are gaps inside words, and single
frames of an echo are loud, too."""
VOICE_PERCENTILE = 90
"""How loud a visitor speaks: of the levels of a turn, one that the loud syllables reach, as these
are what an echo is compared with."""
SOFTER_DB = 5.5
"""So much softer than the visitor spoke before, a voice that is heard while the page answers is
taken for the page's own echo."""
ECHO_DB = 3.0
"""So much louder than what was found to be the page's own words, a voice may interrupt again."""
UNKNOWN_DB = -34.0
"""The least level of a visitor who has not spoken yet, against full scale."""
LEAST_DB, MOST_DB = -50.0, -24.0


@dataclass(frozen=True)
class SpokenTurn:
    """A turn that is over: int16 [n] with its lead, of which `num_spoken` samples lie before the
    silence that ended it. It holds `spoken_s` of speech, and may have begun over an answer; its
    last word ended `silent_s` before the newest sample."""

    pcm: np.ndarray
    num_spoken: int
    spoken_s: float
    interrupts: bool
    silent_s: float


class Follower:
    """Of one microphone; `take` may run in a thread. `end_s` of silence end a turn. `frames` are
    those of the turn that goes on, or of the moment before one may begin; `interrupts` says that
    this turn began while the page was answering."""

    def __init__(self, listener: Listener, max_s: float):
        self.end_s = END_S
        self.frames: list[np.ndarray] = []
        self.interrupts = False
        self._listener = listener
        self._max_s = max_s
        self._rest = np.zeros(0, np.int16)
        self._turn = TurnState()
        self._powers: deque[float] = deque(maxlen=LEVEL_FRAMES)
        self._turn_levels: list[float] = []
        self._answered = False  # while this turn goes on
        self._voice_db: float | None = None
        self._echo_db = LEAST_DB

    @property
    def talking(self) -> bool:
        return self._turn.talking

    @property
    def length_s(self) -> float:
        return self._turn.length_s

    @property
    def spoken_s(self) -> float:
        return self._turn.spoken_s

    @property
    def silent_s(self) -> float:
        return self._turn.silent_s

    @property
    def num_spoken(self) -> int:
        """Samples of the turn that goes on, up to its last speech; 0 where there is none."""
        silent = round(self._turn.silent_s / FRAME_S)
        return (len(self.frames) - silent) * FRAME_SAMPLES if self._turn.talking else 0

    def was_echo(self) -> None:
        """The turn that goes on is made of the page's own words: what is no louder, is too."""
        if self._turn_levels:
            level_db = float(np.percentile(self._turn_levels, VOICE_PERCENTILE))
            self._echo_db = max(self._echo_db, level_db + ECHO_DB)

    def take(self, pcm: np.ndarray, answering: bool) -> list[SpokenTurn]:
        """The next int16 samples; the turns that they complete."""
        samples = np.concatenate([self._rest, pcm])
        count = len(samples) // FRAME_SAMPLES
        self._rest = samples[count * FRAME_SAMPLES :]
        complete = []
        for i, frame in enumerate(samples[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES)):
            found = self._frame(frame, answering)
            if found is not None:
                behind_s = (count - 1 - i) * FRAME_S + len(self._rest) / RATE_HZ
                complete.append(replace(found, silent_s=found.silent_s + behind_s))
        return complete

    def finish(self) -> list[SpokenTurn]:
        """The turn that goes on ends here, as no more sound will come; none where it was no more
        than a cough."""
        turn, self._turn = self._turn, TurnState()
        if not turn.talking or turn.spoken_s < LEAST_SPEECH_S:
            return []
        silent = round(turn.silent_s / FRAME_S)
        kept = len(self.frames) - max(0, silent - round(TAIL_S / FRAME_S))
        spoken = (len(self.frames) - silent) * FRAME_SAMPLES
        pcm = np.concatenate(self.frames[:kept])
        return [SpokenTurn(pcm, spoken, turn.spoken_s, self.interrupts, turn.silent_s)]

    def _frame(self, frame: np.ndarray, answering: bool) -> SpokenTurn | None:
        before, probability = self._turn, self._listener.probability(frame)
        power = float(np.mean((frame / 32768.0) ** 2)) + 1e-10
        self._powers.append(power)
        level_db = 10 * float(np.log10(sum(self._powers) / LEVEL_FRAMES))
        if answering and not before.talking and level_db < self._least_db():
            probability = 0.0
        cough = self.interrupts and before.spoken_s < LEAST_SPEECH_S
        end_s = min(self.end_s, COUGH_END_S) if cough else self.end_s
        self._turn = follow(
            before, probability, answering=answering, max_s=self._max_s, end_s=end_s
        )
        self.frames.append(frame)
        if probability >= 0.5:
            self._turn_levels.append(level_db)
        done = None
        self._answered = answering or (before.talking and self._answered)
        if self._turn.change is Change.BEGAN:
            self.interrupts = answering
            self.end_s = END_S
        elif self._turn.change is Change.ENDED:
            silent = max(0.0, before.silent_s)
            kept = len(self.frames) - round(max(0.0, silent - TAIL_S) / FRAME_S)
            spoken = (len(self.frames) - 1 - round(silent / FRAME_S)) * FRAME_SAMPLES
            pcm = np.concatenate(self.frames[:kept])
            done = SpokenTurn(pcm, spoken, before.spoken_s, self.interrupts, silent + FRAME_S)
            if self._turn_levels and not self._answered:  # or it may be the page's own voice
                self._voice_db = float(np.percentile(self._turn_levels, VOICE_PERCENTILE))
        if not self._turn.talking:
            self.frames = self.frames[-round((LEAD_S + self._turn.run_s) / FRAME_S) :]
            if self._turn.run_s == 0.0:
                self._turn_levels = []
        return done

    def _least_db(self) -> float:
        """The least level of a voice that may interrupt an answer."""
        if self._voice_db is None:
            return max(UNKNOWN_DB, min(MOST_DB, self._echo_db))
        return min(MOST_DB, max(self._echo_db, self._voice_db - SOFTER_DB))


assert round(FRAME_S * RATE_HZ) == FRAME_SAMPLES
