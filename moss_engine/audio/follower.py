"""Turns in a microphone's blocks: where they begin, pause and end, and whether they are too loud to
be the echo of an answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from moss_engine.audio.echo import BLOCK, EchoCanceller
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.turn_taking import (
    COUGH_END_S,
    END_S,
    FRAME_S,
    FRAME_SAMPLES,
    GOES_ON_S,
    LEAD_S,
    LEAST_SPEECH_S,
    LIKELY,
    LOOK_S,
    MEANT_S,
    RATE_HZ,
    Change,
    TurnState,
    follow,
)
from moss_engine.audio.voice_activity import Listener

TAIL_S = 0.2  # silence kept after the last word of a turn
LEVEL_FRAMES = 4
"""Frames over which the level of a voice is taken: words have gaps, and single frames of an echo
are loud."""
VOICE_PERCENTILE = 90
"""The level of a turn is this percentile of its frames: its loud syllables, as an echo is compared
with these."""
SOFTER_DB = 5.5
"""A voice over an answer that is softer by this than the visitor spoke before is taken for the
answer's own echo."""
ECHO_DB = 3.0
"""How much louder than the answer's own words, once these were found, a voice must be to
interrupt."""
UNKNOWN_DB = -34.0
"""Level from which a visitor who has not spoken yet interrupts, in dB against full scale."""
LEAST_DB, MOST_DB = -50.0, -24.0
OVER_ECHO, NO_ECHO = 8.0, 100.0
"""Where it is known what is played: a voice interrupts at OVER_ECHO times the power that may be
left of the echo. At NO_ECHO times it is as loud as the whole echo, and hardly part of it."""


class Levels:
    """The levels of the visitor's voice, and of answers as the microphone hears them."""

    def __init__(self) -> None:
        self._powers: deque[float] = deque(maxlen=LEVEL_FRAMES)
        self._left: deque[float] = deque(maxlen=LEVEL_FRAMES)
        self._now_db = LEAST_DB
        self._is_known = False
        self._turn: list[float] = []
        self._loud_s = 0.0  # of the turn, above any echo
        self._voice_db: float | None = None
        self._echo_db = LEAST_DB

    def take(self, frame: np.ndarray, left: float | None) -> None:
        """The next frame; `left`: power in it that may be echo, None where that is not known."""
        self._is_known = left is not None
        self._left.append(left or 0.0)
        self._powers.append(float(np.mean((frame / 32768.0) ** 2)) + 1e-10)
        self._now_db = 10 * float(np.log10(sum(self._powers) / LEVEL_FRAMES))

    def speaks(self) -> None:
        """Count the last frame to the turn that goes on, or may begin."""
        self._turn.append(self._now_db)
        self._loud_s += FRAME_S * self._is_over(NO_ECHO)

    def forget(self) -> None:
        """That was no turn."""
        self._turn.clear()
        self._loud_s = 0.0

    def is_loud(self) -> bool:
        """Whether the turn is too loud for an answer's echo, as far as that is known."""
        return self._is_known and self._loud_s >= LEAST_SPEECH_S

    def was_echo(self) -> None:
        """The turn was the answer's own words: sounds of that level are echo from now on."""
        if self._turn:
            self._echo_db = max(self._echo_db, self._turn_db() + ECHO_DB)

    def was_voice(self) -> None:
        """The turn was the visitor's: from now on its level is that of the visitor's voice."""
        if self._turn:
            self._voice_db = self._turn_db()

    def is_soft(self) -> bool:
        """Whether the last frames are too soft to interrupt an answer, or may be its echo."""
        if not self._is_over(OVER_ECHO):
            return True
        least_db = UNKNOWN_DB if self._voice_db is None else self._voice_db - SOFTER_DB
        return self._now_db < min(MOST_DB, max(self._echo_db, least_db))

    def _is_over(self, times: float) -> bool:
        return sum(self._powers) >= times * sum(self._left)

    def _turn_db(self) -> float:
        return float(np.percentile(self._turn, VOICE_PERCENTILE))


@dataclass(frozen=True)
class Heard:
    """A turn began, paused, went on, ended or was dropped, at sample `at` of all sound. At a pause
    or end `pcm` is the turn so far, int16 [n] with its lead-in, of which `num_spoken` samples
    precede the silence; it holds `spoken_s` of speech, and its last word ended `silent_s` ago.
    `interrupts`: it began over an answer, and is not its echo if it is `loud`. `soft`: it is too
    soft or short for that, but follows a turn that wanted another word."""

    change: Change
    at: int
    pcm: np.ndarray | None = None
    num_spoken: int = 0
    spoken_s: float = 0.0
    silent_s: float = 0.0
    interrupts: bool = False
    loud: bool = False
    soft: bool = False


class Follower:
    """Finds turns in the int16 PCM of one microphone; `take` may run in a thread. Without a
    `listener` it finds none, and holds all sound until it is taken. `end_s` of silence end the
    current turn; for the next one the usual value holds again. `guarded`: what is heard over an
    answer may be a cough, or the answer's own echo. `num_taken` samples came so far."""

    def __init__(
        self,
        listener: Listener | None,
        max_s: float,
        *,
        rate_hz: int = RATE_HZ,
        likely: float = LIKELY,
        lead_s: float = LEAD_S,
        end_s: float = END_S,
        guarded: bool = True,
    ):
        assert rate_hz in (RATE_HZ, FROM_HZ)
        self.rate_hz = rate_hz
        self.max_s = max_s
        self.end_s = self.usual_end_s = end_s
        self.interrupts = False
        self.num_taken = 0
        self._listener = listener
        self._likely = likely
        self.lead_s = lead_s
        self._guarded = guarded
        self._downsampler = Downsampler() if rate_hz == FROM_HZ else None
        self._frame_size = FRAME_SAMPLES * rate_hz // RATE_HZ
        self._held = bytearray()  # int16; not a list of blocks, which may be as many as samples
        self._num_seen = 0  # samples that the listener judged
        self._num_unseen = 0  # at the end of what is held
        self._rest = np.empty(0, np.int16)  # at RATE_HZ, less than a frame
        self._canceller = EchoCanceller()
        self._with_echo = np.empty((2, 0), np.int16)  # heard and played, less than a block
        self._turn = TurnState()
        self._levels = Levels()
        self._answered = self._continued = False  # while this turn goes on
        self._more_until = 0  # sample up to which more may be said of a turn that wanted it
        self._more = TurnState()  # such words, beside what interrupts an answer

    @property
    def talking(self) -> bool:
        return self._turn.talking

    @property
    def may_begin(self) -> bool:
        """Whether the last frame was speech, but not yet enough to begin a turn."""
        return not self.talking and self._turn.run_s > 0.0

    @property
    def spoken_s(self) -> float:
        return self._turn.spoken_s

    @property
    def silent_s(self) -> float:
        return self._turn.silent_s

    @property
    def length_s(self) -> float:
        """Seconds of the current turn, or of all that is held where no turns are found."""
        return self._turn.length_s if self._listener else self.held_s

    @property
    def held_s(self) -> float:
        return len(self._held) / 2 / self.rate_hz

    @property
    def num_spoken(self) -> int:
        """Samples of the current turn up to its last speech; 0 where there is no turn."""
        if self._listener is None:
            return len(self._held) // 2
        return self._num_judged - self._samples(self.silent_s) if self.talking else 0

    @property
    def sound(self) -> np.ndarray:
        """What is held, int16 [n]: the current turn, or the moment before one may begin."""
        return np.frombuffer(bytes(self._held), np.int16)

    def take(
        self, pcm: np.ndarray, answering: bool, played: np.ndarray | None = None
    ) -> list[Heard]:
        """Take more sound and return what it changed. `answering`: an answer is being heard.
        `played`, of the same length, is what the loudspeaker was given meanwhile; None where that
        is not known."""
        self.num_taken += len(pcm)
        left = None if played is None else 0.0
        if self._listener is not None and not (played is None and self._canceller.idle):
            pcm, left = self._without_echo(pcm, played)
        self._held += pcm.tobytes()
        if self._listener is None:
            return []
        self._num_unseen += len(pcm)
        more = self._downsampler.push(pcm) if self._downsampler else pcm
        samples = np.concatenate([self._rest, more])
        size = len(samples) // FRAME_SAMPLES * FRAME_SAMPLES
        self._rest = samples[size:]
        heard: list[Heard] = []
        for frame in samples[:size].reshape(-1, FRAME_SAMPLES):
            probability = self._listener.probability(frame)
            self._levels.take(frame, left)
            guarded = answering and not self.talking and self._guarded
            soft = guarded and self._levels.is_soft()
            heard += self._frame(0.0 if soft else probability, answering)
            if guarded and not self.talking:
                heard += self._said_more(probability)
        return heard

    def _without_echo(self, pcm: np.ndarray, played: np.ndarray | None) -> tuple[np.ndarray, float]:
        """As many whole blocks as there are: what remains without the echo of what was played,
        int16 [n], and the power in it that may still be echo."""
        out = np.zeros_like(pcm) if played is None else played
        both = np.concatenate([self._with_echo, np.stack([pcm, out])], axis=1)
        size = both.shape[1] // BLOCK * BLOCK
        self._with_echo = both[:, size:]
        cleaned, left = self._canceller.push(*(both[:, :size] / np.float32(32768)))
        return np.clip(np.rint(cleaned * 32768), -32768, 32767).astype(np.int16), left

    def take_all(self) -> np.ndarray:
        """Everything that is held, int16 [n]; afterwards nothing is."""
        pcm = self.sound
        self.clear()
        return pcm

    def clear(self) -> None:
        self._held.clear()
        self._num_unseen = 0
        self._forget_turn()

    def finish(self) -> list[Heard]:
        """No more sound comes: the current turn ends here, unless it was no more than a cough."""
        turn, whole = self._turn, self._whole(Change.ENDED, self.silent_s)
        self._forget_turn()
        return [whole] if turn.talking and turn.spoken_s >= LEAST_SPEECH_S else []

    def continues(self, before: np.ndarray) -> None:
        """The turn that has just begun continues an earlier one, int16 [n]."""
        self._held[:0] = before.tobytes()
        self._continued = True

    def wants_more(self) -> None:
        """The turn that has just ended seems unfinished: a soft, short word may still come."""
        self._more_until = self._num_seen + self._samples(GOES_ON_S)

    @property
    def is_loud(self) -> bool:
        """Whether the current turn is too loud for an answer's echo, as far as is known."""
        return self._levels.is_loud()

    def was_echo(self) -> None:
        """The current turn turned out to be the answer's own words."""
        self._levels.was_echo()

    @property
    def _num_judged(self) -> int:
        """How many of the held samples were judged."""
        return len(self._held) // 2 - self._num_unseen

    def _samples(self, seconds: float) -> int:
        """Seconds as samples, in whole frames."""
        return round(seconds / FRAME_S) * self._frame_size

    def _frame(self, probability: float, answering: bool) -> list[Heard]:
        before, levels = self._turn, self._levels
        self._num_seen += self._frame_size
        self._num_unseen = max(0, self._num_unseen - self._frame_size)
        cough = self._guarded and self.interrupts and before.spoken_s < LEAST_SPEECH_S
        end_s = min(self.end_s, COUGH_END_S) if cough and not self._continued else self.end_s
        self._turn = turn = follow(
            before, probability, answering=answering, max_s=self.max_s, end_s=end_s,
            likely=self._likely,
        )  # fmt: skip
        if probability >= self._likely:
            levels.speaks()
        self._answered = answering or (before.talking and self._answered)
        heard = self._changed(before, answering)
        if not turn.talking:
            self._keep(self.lead_s + max(turn.run_s, self._more.run_s + self._more.length_s))
            if turn.run_s == 0.0:
                levels.forget()
        return heard

    def _changed(self, before: TurnState, answering: bool) -> list[Heard]:
        turn, change = self._turn, self._turn.change
        if change is Change.BEGAN:
            self.interrupts, self.end_s = answering, self.usual_end_s
            return [Heard(change, max(0, self._num_seen - self._num_judged), interrupts=answering)]
        if change is Change.NONE:
            if before.silent_s < LOOK_S <= turn.silent_s:
                return [self._whole(Change.PAUSED, turn.silent_s)]
            if before.silent_s >= LOOK_S and turn.talking and not turn.silent_s:
                self.end_s = self.usual_end_s
                return [Heard(Change.WENT_ON, self._num_seen)]
            return []
        if self._continued:  # a cough behind a turn does not undo it
            change = Change.ENDED
        ended = change is Change.ENDED
        silent_s = before.silent_s + FRAME_S if before.silent_s else 0.0
        heard = self._whole(change, silent_s, before) if ended else Heard(change, self._num_seen)
        if ended:
            if not self._answered:  # or it may be the answer's own voice
                self._levels.was_voice()
            self._keep(silent_s)
        self._forget_turn()
        return [heard]

    def _said_more(self, probability: float) -> list[Heard]:
        """A word after a turn that seemed unfinished: it becomes a turn of its own, which pauses.
        What lasts longer is an echo."""
        before = self._more
        if self._num_seen > self._more_until and not before.talking:
            self._more = TurnState()
            return []
        self._more = follow(
            before, probability, answering=False, max_s=self.max_s, end_s=COUGH_END_S,
            likely=self._likely,
        )  # fmt: skip
        if self._more.change is not Change.ENDED or before.spoken_s >= MEANT_S:
            return []
        self._turn = replace(before, silent_s=before.silent_s + FRAME_S, change=Change.BEGAN)
        self._answered = self.interrupts = True
        self.end_s = self.usual_end_s
        at = max(0, self._num_seen - self._num_judged)
        began = Heard(Change.BEGAN, at, interrupts=True, soft=True)
        return [began, self._whole(Change.PAUSED, self._turn.silent_s)]

    def _whole(self, change: Change, silent_s: float, turn: TurnState | None = None) -> Heard:
        """The turn as far as it was said, without most of its last silence."""
        spoken = self._num_judged - self._samples(silent_s)
        size = min(self._num_judged, spoken + self._samples(TAIL_S))
        pcm = np.frombuffer(bytes(self._held[: 2 * size]), np.int16)
        spoken_s = (turn or self._turn).spoken_s
        return Heard(
            change, self._num_seen, pcm, max(0, spoken), spoken_s, silent_s,
            interrupts=self.interrupts, loud=self.is_loud,
        )  # fmt: skip

    def _forget_turn(self) -> None:
        self._turn = self._more = TurnState()
        self._continued = False
        self.end_s = self.usual_end_s

    def _keep(self, seconds: float) -> None:
        """Forget all but the last seconds of what was judged."""
        surplus = self._num_judged - self._samples(seconds)
        if surplus > 0:
            del self._held[: 2 * surplus]
