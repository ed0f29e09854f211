"""One microphone of a session: its turns, and what is understood of them while they are spoken.

At each pause the turn so far is transcribed or encoded as if it were over. So its words can decide
how long a silence ends it, its answer can be begun early, and at its end nothing is left to do.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.request import Speech
from moss_engine.api.service import Words
from moss_engine.api.transcript import Transcript
from moss_engine.audio.follower import Follower, Heard
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import (
    GOES_ON_S,
    MEANT_S,
    PAUSE_MURMUR_S,
    RATE_HZ,
    Change,
    interrupts,
    is_echo,
    is_murmur,
)
from moss_engine.audio.turn_taking import LOOK_S as PAUSED_S
from moss_engine.audio.voice_activity import Detector

Hear = Callable[[np.ndarray, int, Words | None], Awaitable[Speech]]
TranscribePartial = Callable[[np.ndarray, int], Awaitable[Transcript | None]]
Paused = Callable[[Speech | None], None]

MOST_S = 15.0
"""A longer turn is understood only when it is over, unless looks are made in pauses alone:
understanding it again and again would cost too much."""

AT_ONCE_S = 0.1
"""So much sound, with nothing played meanwhile, takes about a millisecond and is handled on the
event loop: where many talk, the way to a thread and back takes longer."""


@dataclass(frozen=True)
class Pause:
    """A pause, after so many samples of speech; `melody`: the judge's log-odds of how they
    sounded."""

    num_spoken: int
    melody: asyncio.Task[float | None]


class Hearing:
    """`hear` is `api.service.hear` of the service; `transcribe_partial` is the service's where it
    has a recogniser. `by_words`: understanding means the transcript alone. `paused` is called with
    what was said so far once a pause is understood, and with None when the speaker goes on.
    `look_s`: seconds of new speech after which a partial transcript is made; None: they are made in
    pauses only. `goes_on`: the current turn follows soon after one that seemed unfinished. Used on
    one event loop."""

    def __init__(
        self,
        hear: Hear,
        transcribe_partial: TranscribePartial | None,
        paused: Paused,
        *,
        by_words: bool,
        max_s: float,
        rate_hz: int = RATE_HZ,
        look_s: float | None = None,
    ):
        self.hear = hear
        self.transcribe_partial = transcribe_partial
        self.paused = paused
        self.by_words = by_words
        self.max_s = max_s
        self.rate_hz = rate_hz
        self.look_s = look_s
        self.turn = Understanding(self)
        self.use(None)

    def use(self, detector: Detector | None, judge: Judge | None = None, **levels: float) -> None:
        """Start anew: find turns, or with None hold all sound until it is taken. A `judge` decides
        how long a pause may be and whether speech over an answer is meant; without one, the usual
        silence ends a turn, and `levels` are passed to the follower."""
        self.follower = Follower(
            detector.open() if detector else None, self.max_s, rate_hz=self.rate_hz,
            guarded=judge is not None, **levels,
        )  # fmt: skip
        self._judge = judge
        self._pause: Pause | None = None
        self.goes_on = False
        self.finds = detector is not None
        self.forget()

    def forget(self) -> None:
        """Drop what was understood so far; `paused` is told, too."""
        self._kept: Heard | None = None  # the last turn that is a question
        self.turn.go_on()
        self.turn = Understanding(self)
        self.paused(None)

    async def take(
        self, pcm: np.ndarray, *, answering: bool, played: np.ndarray | None = None
    ) -> list[tuple[Heard, Understanding]]:
        """Take more sound, as `Follower.take`; returns what it changed, each with what is
        understood of its turn."""
        follower, judge = self.follower, self._judge
        follower.end_s = self._end_s()
        if played is None and len(pcm) <= AT_ONCE_S * self.rate_hz:
            found = follower.take(pcm, answering)
        else:
            found = await asyncio.to_thread(follower.take, pcm, answering, played)
        for heard in found:
            if judge is not None and heard.change is Change.PAUSED and heard.pcm is not None:
                melody = asyncio.ensure_future(judge.melody(heard.pcm, follower.rate_hz))
                self._pause = Pause(heard.num_spoken, melody)
        return self._noted(found)

    def finish(self) -> list[tuple[Heard, Understanding]]:
        """No more sound comes: the current turn ends here."""
        return self._noted(self.follower.finish())

    def look(self) -> None:
        """Make a partial transcript of the current turn, if it is worth it."""
        if self.follower.talking or not self.finds:
            self.turn.look(self.follower, self.look_s)

    def keep(self, turn: Heard) -> None:
        """Remember a turn that has just ended as a question: whoever speaks soon may continue
        it."""
        self._kept = turn
        if self._wanted_more:
            self.follower.wants_more()

    def is_soon(self, heard: Heard) -> bool:
        """Whether what begins follows soon after the turn that was kept last."""
        kept, at_s = self._kept, heard.at / self.rate_hz + self.follower.lead_s
        return kept is not None and at_s - kept.at / self.rate_hz <= GOES_ON_S

    @property
    def _wanted_more(self) -> bool:
        """Whether the judge took the turn that was kept last for unfinished."""
        kept, judge = self._kept, self._judge
        return kept is not None and judge is not None and kept.silent_s >= judge.longest_s

    def means_it(self, saying: str) -> bool:
        """Whether speech over an answer, whose last words are `saying`, is meant to interrupt it,
        by what is known of it now."""
        follower = self.follower
        return self.meant(self.turn.text, follower.spoken_s, saying, loud=follower.is_loud)

    def meant(self, text: str | None, spoken_s: float, saying: str, *, loud: bool) -> bool:
        """The same for speech that is over; where its words are unknown, its length decides.
        `loud`: it is too loud for an echo, as far as is known."""
        if text is None:
            return spoken_s >= MEANT_S
        if is_echo(text, saying, loud=loud):
            self.follower.was_echo()
            return False
        return interrupts(text, spoken_s, goes_on=self.goes_on)

    def _end_s(self) -> float:
        """The silence that ends the current turn: the usual one until its words are known and its
        melody was judged."""
        follower, pause, judge = self.follower, self._pause, self._judge
        if judge is None or pause is None or pause.num_spoken != follower.num_spoken:
            return follower.usual_end_s
        by_words = self.transcribe_partial is not None
        known = not by_words or self.turn.covers(pause.num_spoken)
        if not known or not pause.melody.done():
            return follower.usual_end_s
        text = self.turn.text if by_words else None
        if text is not None and follower.interrupts and is_murmur(text):
            return PAUSE_MURMUR_S
        return judge.wait_s(text, pause.melody.result())

    def _noted(self, found: list[Heard]) -> list[tuple[Heard, Understanding]]:
        noted = []
        for heard in found:
            if heard.change is Change.BEGAN:
                self.turn = Understanding(self)
                self.goes_on = self._wanted_more and self.is_soon(heard)
            elif heard.change is Change.PAUSED:
                self.turn.pause(heard)
            elif heard.change in (Change.WENT_ON, Change.DROPPED):
                self.turn.go_on()
                self.paused(None)
            noted.append((heard, self.turn))
            if heard.change in (Change.ENDED, Change.DROPPED):
                self.turn = Understanding(self)
        return noted


class Understanding:
    """What is understood of one turn. `text`: its words, as far as they were transcribed; None
    where the recogniser was busy."""

    def __init__(self, hearing: Hearing):
        self.text: str | None = ""
        self._transcript: Transcript | None = None
        self._hearing = hearing
        self._covers = self._looks_at = 0  # samples of speech
        self._looking: asyncio.Future[Transcript | None] | None = None
        self._pause: Heard | None = None  # that is to be told once it is understood
        self._whole: tuple[int, asyncio.Future[Speech]] | None = None  # up to a pause

    def covers(self, num_spoken: int) -> bool:
        """Whether the words of the first so many samples of speech are known."""
        return self._covers >= num_spoken > 0

    def look(self, follower: Follower, look_s: float | None) -> None:
        """Make a partial transcript, where it is worth it and none is being made."""
        hearing, num_spoken = self._hearing, follower.num_spoken
        if hearing.transcribe_partial is None or self._looking is not None:
            return
        too_long = look_s is not None and num_spoken > MOST_S * hearing.rate_hz
        if too_long or self.covers(num_spoken):
            return
        grown_s = (num_spoken - self._covers) / hearing.rate_hz
        if follower.silent_s < PAUSED_S and (look_s is None or grown_s < look_s):
            return
        wave = follower.sound.astype(np.float32) / 32768
        self._looks_at = num_spoken
        self._looking = asyncio.ensure_future(hearing.transcribe_partial(wave, hearing.rate_hz))
        self._looking.add_done_callback(self._seen)

    def pause(self, heard: Heard) -> None:
        """The speaker may have finished: understand the turn as it is."""
        assert heard.pcm is not None, "a turn that pauses has its sound"
        self._pause = heard
        if not self._hearing.by_words:
            hearing, wave = self._hearing, heard.pcm.astype(np.float32) / 32768
            self.look(hearing.follower, hearing.look_s)
            words = functools.partial(self.words, heard.num_spoken)
            whole = asyncio.ensure_future(hearing.hear(wave, hearing.rate_hz, words))
            self._whole = heard.num_spoken, whole
            whole.add_done_callback(self._tell)
        self._tell()

    def go_on(self) -> None:
        """The speaker had not finished."""
        if self._whole is not None:
            self._whole[1].cancel()
        self._pause = self._whole = None

    async def words(self, num_spoken: int) -> Transcript | None:
        """The transcript of the first so many samples of speech, if it is known or being made."""
        if self._looking is not None and self._looks_at >= num_spoken:
            await asyncio.wait({self._looking})
        return self._transcript if self.covers(num_spoken) else None

    async def speech(self, num_spoken: int) -> Speech | None:
        """What was understood in the last pause, as a request takes it, if no speech followed; None
        where nothing was, or the recogniser was unsure."""
        if self._hearing.by_words:
            words = await self.words(num_spoken)
            return Speech((), words) if words is not None and words.sure and words.text else None
        if self._whole is None or self._whole[0] != num_spoken:
            return None
        try:
            return await self._whole[1]
        except MossError:
            return None

    def _seen(self, task: asyncio.Future[Transcript | None]) -> None:
        self._looking = None
        failed = task.cancelled() or task.exception() is not None
        if not failed and (found := task.result()) is not None:
            self.text, self._transcript, self._covers = found.text, found, self._looks_at
            self._tell()
        elif self._transcript is None:
            self.text = None

    def _tell(self, task: asyncio.Future[Speech] | None = None) -> None:
        """Call `paused` for a pause of the current turn that is understood."""
        failed = task is not None and (task.cancelled() or task.exception() is not None)
        pause, whole = self._pause, self._whole
        if failed or pause is None or self._hearing.turn is not self:
            return
        said = None
        if not self._hearing.by_words:
            said = whole[1].result() if whole is not None and whole[1] is task else None
        elif self.covers(pause.num_spoken) and self._transcript is not None:
            self._pause, words = None, self._transcript
            if words.sure and not is_murmur(words.text):
                said = Speech((), words)
        if said is not None:
            self._pause = None
            self._hearing.paused(said)
