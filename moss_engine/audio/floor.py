"""Who has the floor in a talk of two, by what one microphone hears: when somebody begins and ends,
whether speech over an answer is meant to stop it, and whether who speaks again had not finished."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from moss_engine.api.request import Speech
from moss_engine.audio.follower import Follower, Heard
from moss_engine.audio.hearing import Hearing, Understanding
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import LEAST_SPEECH_S, Change, asks_for_silence
from moss_engine.audio.voice_activity import Detector

UNHEARD_S = 0.6
"""Who goes on over so much of the beginning of an answer had not finished the turn before it."""
WEIGH_EVERY_S = 0.16
"""Of speech over an answer, between two looks at its words, where they are not looked at anyway."""


class Answerer(Protocol):
    """The other side of the talk."""

    @property
    def answering(self) -> bool:
        """Whether an answer can be heard, or is about to be."""
        ...

    @property
    def unheard(self) -> bool:
        """Whether there is an answer of which no more than UNHEARD_S was heard."""
        ...

    def saying(self) -> str:
        """The words of the answer that are heard now, and those before."""
        ...

    def may_go_on(self, turn: Any) -> bool:
        """Whether a turn, by what its owner calls it, is the last thing that was said."""
        ...


@dataclass(frozen=True)
class Turn:
    """A turn that ended, int16 [n]; `called` so by its owner."""

    called: Any
    pcm: np.ndarray


@dataclass(frozen=True)
class Taken:
    """The floor was taken, or given back, at a change that the microphone `heard`, with what is
    `understood` of that turn. It `mends` an earlier turn: both are one, and that one was never
    answered."""

    heard: Heard
    understood: Understanding
    mends: Turn | None = None


class Floor:
    """Of a talk between who is heard by `hearing`, whose `paused` is told only of speech that is
    meant, and an `answerer`. While an answer `waits`, it is silent until it is sure that speech
    over it is meant; where none does, who goes on stops it at once. `interrupts`: speech may stop
    an answer at all. Used on one event loop."""

    def __init__(self, hearing: Hearing, answerer: Answerer, *, waits: bool):
        self.hearing = hearing
        self.interrupts = True
        self._answerer = answerer
        self._waits = waits
        self._paused, hearing.paused = hearing.paused, self._pause
        self._look_s = hearing.look_s
        self._judges = False
        self._last: Turn | None = None  # it may go on yet
        self._doubted: Taken | None = None  # speech over an answer that may be a murmur

    @property
    def follower(self) -> Follower:
        return self.hearing.follower

    @property
    def is_sure(self) -> bool:
        """Whether whoever talks means it, as far as is known."""
        return self._doubted is None

    def use(self, detector: Detector | None, judge: Judge | None = None, **levels: float) -> None:
        """As `Hearing.use`."""
        self._judges = judge is not None
        self.hearing.use(detector, judge, **levels)
        self.forget()

    def forget(self) -> None:
        """What is being said is no turn that is found any more, and the last one does not go on."""
        self._last = None
        self._doubt(None)
        self._paused(None)

    async def take(self, pcm: np.ndarray, played: np.ndarray | None = None) -> AsyncIterator[Taken]:
        """More sound, as `Hearing.take` has it, and what comes of it. Behind a turn that ended
        `ended` is to be called before more is asked for."""
        hearing, answerer = self.hearing, self._answerer
        for found in await hearing.take(pcm, answering=answerer.answering, played=played):
            async for taken in self._follow(*found):
                yield taken
        hearing.look()
        if self._doubted is not None and hearing.means_it(answerer.saying()):
            yield self._believed(self._doubted)

    async def finish(self) -> AsyncIterator[Taken]:
        """As no more sound will come, the turn that goes on ends here."""
        for found in self.hearing.finish():
            async for taken in self._follow(*found):
                yield taken

    def ended(self, taken: Taken, called: Any) -> None:
        """A turn has a name now."""
        assert taken.heard.pcm is not None, "a turn that ended has its sound"
        self._last = Turn(called, taken.heard.pcm)
        self.hearing.keep(taken.heard)

    async def _follow(self, heard: Heard, understood: Understanding) -> AsyncIterator[Taken]:
        if heard.change is Change.BEGAN:
            begun = Taken(heard, understood, self._unfinished(heard))
            at_once = begun.mends is not None and not (self._waits or heard.soft)
            weighs = self._judges and self.interrupts and self.hearing.transcribe_partial
            if weighs and self._answerer.answering and not at_once:
                self._doubt(begun)
            else:
                yield self._believed(begun)
        elif heard.change in (Change.ENDED, Change.DROPPED):
            if (doubted := self._doubted) is not None:
                self._doubt(None)
                if not await self._is_meant(heard, understood):
                    return
                self._last = None
                doubted = self._as_said(doubted, understood.text)
                yield doubted
                heard = _joined(doubted.mends, heard)
            yield Taken(heard, understood)

    def _unfinished(self, heard: Heard) -> Turn | None:
        """The last turn, if it was not over when it was judged to be."""
        last = self._last
        if last is None or not self._judges or not self.interrupts:
            return None
        too_long = len(last.pcm) > self.follower.max_s * self.follower.rate_hz / 2
        if too_long or not self._answerer.may_go_on(last.called):
            return None
        return last if self.hearing.is_soon(heard) or self._answerer.unheard else None

    def _believed(self, begun: Taken) -> Taken:
        """Somebody has begun to talk and means it."""
        self._doubt(None)
        begun = self._as_said(begun, self.hearing.turn.text)
        if begun.mends is not None:
            self._last = None
            self._paused(None)
            self.follower.continues(begun.mends.pcm)
        return begun

    def _as_said(self, begun: Taken, text: str | None) -> Taken:
        """By these words: who asks for silence had finished, unless that was all but a sentence."""
        silences = text is not None and asks_for_silence(text) and not self.hearing.goes_on
        return replace(begun, mends=None) if silences else begun

    async def _is_meant(self, heard: Heard, understood: Understanding) -> bool:
        """Whether a turn over an answer was meant to stop it. A recogniser that is not sure may
        have heard another language, which a checkpoint that hears by itself understands."""
        if heard.pcm is None or heard.spoken_s < LEAST_SPEECH_S:
            return False
        words = await understood.words(heard.num_spoken)
        if words is not None and not (words.sure or self.hearing.by_words):
            return True
        text = words.text if words else understood.text
        saying = self._answerer.saying()
        return self.hearing.meant(text, heard.spoken_s, saying, loud=heard.loud)

    def _doubt(self, begun: Taken | None) -> None:
        self._doubted = begun
        if self._look_s is None:
            self.hearing.look_s = None if begun is None else WEIGH_EVERY_S

    def _pause(self, said: Speech | None) -> None:
        if said is None or self.is_sure:
            self._paused(said)


def _joined(before: Turn | None, heard: Heard) -> Heard:
    """A turn that is over, with what it goes on with."""
    if before is None or heard.pcm is None:
        return heard
    pcm = np.concatenate([before.pcm, heard.pcm])
    return replace(heard, pcm=pcm, num_spoken=len(before.pcm) + heard.num_spoken)
