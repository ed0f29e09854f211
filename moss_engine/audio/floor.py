"""Whose turn it is in a talk of two, from one microphone: when somebody begins and ends, whether
speech over an answer is meant to stop it, and whether somebody goes on with a turn that was judged
to be over."""

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
"""Whoever speaks before more than this was heard of an answer had not finished the turn before."""
WEIGH_EVERY_S = 0.16
"""New speech over an answer after which its words are looked at, unless that is done anyway."""


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
        """Whether a turn, by its owner's name for it, is the last thing that was said."""
        ...


@dataclass(frozen=True)
class Turn:
    """A turn that is over, int16 [n]; `called` is its owner's name for it."""

    called: Any
    pcm: np.ndarray


@dataclass(frozen=True)
class Taken:
    """Somebody took the floor or gave it back: what the microphone `heard`, and what is
    `understood` of that turn. `mends` is the earlier turn that this one continues: the two are one
    turn, and the first part counts as not answered."""

    heard: Heard
    understood: Understanding
    mends: Turn | None = None


class Floor:
    """The floor between the person that `hearing` hears and an `answerer`. While it is in doubt
    whether speech is meant, the `paused` callback of `hearing` is not told of it. `waits`: an
    answer can fall silent until that is known; otherwise somebody who goes on with an unfinished
    turn stops it at once. `interrupts`: whether speech may stop an answer at all. Used on one event
    loop."""

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
        """Whether nobody speaks, or whoever speaks is known to mean it."""
        return self._doubted is None

    def use(self, detector: Detector | None, judge: Judge | None = None, **levels: float) -> None:
        """As `Hearing.use`."""
        self._judges = judge is not None
        self.hearing.use(detector, judge, **levels)
        self.forget()

    def forget(self) -> None:
        """What is being said becomes no turn, and the last turn is not continued."""
        self._last = None
        self._doubt(None)
        self._paused(None)

    async def take(self, pcm: np.ndarray, played: np.ndarray | None = None) -> AsyncIterator[Taken]:
        """Take more sound, as `Hearing.take`; yields what follows from it. After a turn that ended,
        call `ended` before asking for more."""
        hearing, answerer = self.hearing, self._answerer
        for found in await hearing.take(pcm, answering=answerer.answering, played=played):
            async for taken in self._follow(*found):
                yield taken
        hearing.look()
        if self._doubted is not None and hearing.means_it(answerer.saying()):
            yield self._believed(self._doubted)

    async def finish(self) -> AsyncIterator[Taken]:
        """No more sound comes: the turn that is being said ends here."""
        for found in self.hearing.finish():
            async for taken in self._follow(*found):
                yield taken

    def ended(self, taken: Taken, called: Any) -> None:
        """Give the turn that has just ended its name."""
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
        """The last turn, if it was judged to be over too early."""
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
        """The floor as taken by these words: somebody who asks for silence does not go on with the
        turn before, unless that seemed unfinished."""
        silences = text is not None and asks_for_silence(text) and not self.hearing.goes_on
        return replace(begun, mends=None) if silences else begun

    async def _is_meant(self, heard: Heard, understood: Understanding) -> bool:
        """Whether a turn over an answer was meant to stop it. Where a recogniser is unsure, it may
        have been another language, which a checkpoint that hears by itself may understand."""
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
    """A turn that is over, with the earlier turn that it continues."""
    if before is None or heard.pcm is None:
        return heard
    pcm = np.concatenate([before.pcm, heard.pcm])
    return replace(heard, pcm=pcm, num_spoken=len(before.pcm) + heard.num_spoken)
