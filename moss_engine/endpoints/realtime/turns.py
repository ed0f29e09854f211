"""Turns of a realtime session: what follows when somebody takes the floor or gives it back, and
what the session answers meanwhile."""

from __future__ import annotations

import time

import numpy as np

from moss_engine.audio import floor
from moss_engine.audio.floor import UNHEARD_S, Taken
from moss_engine.audio.playback import heard_chars
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import Change
from moss_engine.audio.voice_activity import Detector
from moss_engine.endpoints.realtime.conversation import Item
from moss_engine.endpoints.realtime.listening import Listening
from moss_engine.endpoints.realtime.responding import Responses
from moss_engine.endpoints.realtime.wire import RATE_HZ

SAYING_CHARS, SAID_AHEAD_S = 200, 1.0
"""Of the words that an echo may have: so many, up to those that are said so soon."""
BLOCK = RATE_HZ // 10
"""Samples that are heard at a time, however many a client sends: what a turn brings about comes
before the next one."""


class Turns:
    """`listening` is the session's microphone and recordings, whose answers are `responses`; to
    its floor this is who answers."""

    def __init__(self, responses: Responses):
        self._responses = responses
        self._server, self._talk, self._emit = responses.server, responses.talk, responses.emit
        self.listening = Listening(self._server, self._talk, self._emit, self, responses)

    def find(self, detector: Detector | None) -> None:
        """As the session says how."""
        session = self._responses.session
        judge = Judge(session.eagerness) if session.judges else None
        self.listening.use(
            detector, judge, likely=session.threshold, lead_s=session.lead_s, end_s=session.end_s
        )

    async def hear(self, pcm: np.ndarray) -> None:
        """More sound, int16 [n] at `RATE_HZ`."""
        self.listening.floor.interrupts = self._responses.session.interrupts
        for start in range(0, len(pcm), BLOCK):
            async for taken in self.listening.push(pcm[start : start + BLOCK]):
                self._responses.spoken()
                if taken.heard.change is Change.BEGAN:
                    await self._began(taken)
                else:
                    await self.listening.tell(taken)

    async def _began(self, taken: Taken) -> None:
        """No sound follows what tells of an interruption."""
        answer, saying = self._responses.answer, self._responses.saying
        if taken.mends is not None:
            self._server.figures.mended.inc()
            self._responses.forget_turns()
            self.listening.forget(taken.mends.called)
        if self._responses.session.interrupts:
            await self._responses.interrupt()
        await self.listening.tell(taken)
        if taken.mends is not None:
            if answer is not None:
                await self._responses.over()
            answered = answer or saying
            await self._undo(taken.mends, answered.items if answered else [])

    async def _undo(self, turn: floor.Turn, answer: list[Item]) -> None:
        """As if an earlier turn had not been answered: it is part of the one that goes on."""
        for item in self._talk.items[self._talk.items.index(turn.called) :]:
            if item is turn.called or item in answer:
                self._talk.delete(item.id)
                await self._emit("conversation.item.deleted", item_id=item.id)

    # Who answers.

    @property
    def answering(self) -> bool:
        return self._responses.playing

    @property
    def unheard(self) -> bool:
        answer = self._responses.answer
        if answer is None:
            return False
        first_s = answer.first_sound_s
        return first_s is None or time.monotonic() - first_s <= UNHEARD_S

    def saying(self) -> str:
        """At the speed of speech."""
        saying, rate_hz = self._responses.saying, self._server.info.sample_rate_hz
        if saying is None or saying.first_sound_s is None:
            return ""
        heard_s = time.monotonic() - saying.first_sound_s + SAID_AHEAD_S
        num_chars = heard_chars(saying.item.words, round(heard_s * rate_hz), rate_hz)
        return "".join(text for _, text in saying.item.words)[:num_chars][-SAYING_CHARS:]

    def may_go_on(self, turn: Item) -> bool:
        return turn not in self._responses.asked and turn is self._talk.last_of_user()
