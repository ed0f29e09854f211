"""Turns of a realtime session that the service finds: what follows when somebody begins, pauses,
goes on or ends, and whether speech over an answer is meant to stop it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from moss_engine.audio.follower import Heard
from moss_engine.audio.hearing import Understanding
from moss_engine.audio.playback import heard_chars
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import LEAST_SPEECH_S, Change
from moss_engine.audio.voice_activity import Detector
from moss_engine.endpoints.realtime.answer import Emit
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.listening import Listening
from moss_engine.endpoints.realtime.responding import Responses
from moss_engine.endpoints.realtime.wire import RATE_HZ
from moss_engine.endpoints.server import Server

UNHEARD_S = 0.6
"""Who goes on over so much of the beginning of an answer had not finished the turn before it."""
WEIGH_EVERY_S = 0.16
"""Of speech over an answer, between two looks at its words."""
SAYING_CHARS, SAID_AHEAD_S = 200, 1.0
"""Of the words that an echo may have: so many, up to those that are said so soon."""
BLOCK = RATE_HZ // 10
"""Samples that are heard at a time, however many a client sends: what a turn brings about comes
before the next one."""


@dataclass(frozen=True)
class Judged:
    """A turn that ended, int16 [n]."""

    item: Item
    pcm: np.ndarray


class Turns:
    """`listening` is the session's microphone and recordings, whose answers are `responses`."""

    def __init__(self, server: Server, talk: Conversation, emit: Emit, responses: Responses):
        self._server = server
        self._talk = talk
        self._emit = emit
        self._responses = responses
        self._judged: Judged | None = None  # the last turn, which may go on yet
        self._doubted: Heard | None = None  # speech over an answer that may be a murmur
        self.listening = Listening(server, talk, emit, responses.turn_over, self._pausing)

    def find(self, detector: Detector | None) -> None:
        """As the session says how."""
        session = self._responses.session
        judge = Judge(session.eagerness) if session.judges else None
        self.listening.use(
            detector, judge, likely=session.threshold, lead_s=session.lead_s, end_s=session.end_s
        )
        self.forget()

    def forget(self) -> None:
        """What is being said is no turn that the service finds any more."""
        self._judged = None
        self._doubt(None)
        self._responses.ahead.drop()

    async def hear(self, pcm: np.ndarray) -> None:
        """More sound, int16 [n] at `RATE_HZ`."""
        for start in range(0, len(pcm), BLOCK):
            block, answering = pcm[start : start + BLOCK], self._responses.playing
            for heard, understood in await self.listening.push(block, answering=answering):
                self._responses.spoken()
                await self._turn(heard, understood)
            if self.listening.hearing.finds:
                self.listening.hearing.look()
            if self._doubted and self.listening.hearing.means_it(self._saying()):
                before = await self._stop(self._doubted)
                if before is not None:
                    self.listening.follower.continues(before)

    async def _turn(self, heard: Heard, understood: Understanding) -> None:
        """Somebody began, paused or stopped to talk."""
        if heard.change is Change.BEGAN:
            await self._began(heard)
        elif heard.change in (Change.ENDED, Change.DROPPED):
            turn = heard if self._doubted is None else await self._meant(heard, understood)
            if turn is not None:
                await self._ended(turn, understood)

    def _doubt(self, heard: Heard | None) -> None:
        """Whether speech over an answer is meant to stop it, its words say, or its length; until
        then nothing is told of it."""
        self._doubted = heard
        self.listening.hearing.look_s = None if heard is None else WEIGH_EVERY_S

    def _pausing(self, item: Item | None) -> None:
        if item is None:
            self._responses.ahead.drop()
        elif not self._doubted:
            self._responses.begin_ahead(item)

    async def _ended(self, heard: Heard, understood: Understanding) -> None:
        await self.listening.tell(heard, understood)
        if heard.pcm is not None:
            self._judged = Judged(self.listening.item, heard.pcm)
            self.listening.hearing.keep(heard)

    async def _began(self, heard: Heard) -> None:
        session = self._responses.session
        judges = session.judges and session.interrupts and self._server.info.recogniser
        if self._goes_on(heard) and not heard.soft:
            self.listening.follower.continues(await self._mend(heard))
        elif judges and self._responses.playing:
            self._doubt(heard)
        else:
            await self._interrupt(heard)

    async def _interrupt(self, heard: Heard) -> None:
        """No sound follows what tells of an interruption."""
        self._doubt(None)
        if self._responses.session.interrupts:
            await self._responses.interrupt()
        await self.listening.tell(heard)

    def _saying(self) -> str:
        """The words of the answer that are heard now, at the speed of speech, and those before."""
        saying, rate_hz = self._responses.saying, self._server.info.sample_rate_hz
        if saying is None or saying.first_sound_s is None:
            return ""
        heard_s = time.monotonic() - saying.first_sound_s + SAID_AHEAD_S
        num_chars = heard_chars(saying.item.words, round(heard_s * rate_hz), rate_hz)
        return "".join(text for _, text in saying.item.words)[:num_chars][-SAYING_CHARS:]

    async def _stop(self, doubted: Heard) -> np.ndarray | None:
        """Speech over an answer is meant to stop it. Returns what was said before it, int16 [n],
        where it goes on with that."""
        if doubted.soft and self._goes_on(doubted):
            return await self._mend(doubted)
        await self._interrupt(doubted)
        return None

    async def _meant(self, heard: Heard, understood: Understanding) -> Heard | None:
        """A turn over an answer that is over, with what it goes on with, if it was meant to stop
        it, which it does then."""
        doubted, hearing = self._doubted, self.listening.hearing
        self._doubt(None)
        if doubted is None or heard.pcm is None or heard.spoken_s < LEAST_SPEECH_S:
            return None
        words = await understood.words(heard.num_spoken)
        text = words.text if words else understood.text
        if not hearing.meant(text, heard.spoken_s, self._saying()):
            return None
        if (before := await self._stop(doubted)) is None:
            return heard
        pcm = np.concatenate([before, heard.pcm])
        return replace(heard, pcm=pcm, num_spoken=len(before) + heard.num_spoken)

    def _goes_on(self, heard: Heard) -> bool:
        """Whether the last turn was not over when it was judged to be."""
        judged, answer = self._judged, self._responses.answer
        session = self._responses.session
        if judged is None or not session.judges or not session.interrupts:
            return False
        if judged.item in self._responses.asked or judged.item is not self._talk.last_of_user():
            return False
        if len(judged.pcm) > self.listening.follower.max_s * RATE_HZ / 2:
            return False
        soon = self.listening.hearing.is_soon(heard)
        first_s = answer.first_sound_s if answer else None
        unheard = answer is not None and first_s is None
        return soon or unheard or (first_s is not None and time.monotonic() - first_s <= UNHEARD_S)

    async def _mend(self, heard: Heard) -> np.ndarray:
        """Both parts become one turn, as if the first one, int16 [n], had not been answered."""
        judged, answer = self._judged, self._responses.answer
        assert judged is not None
        self._judged = None
        self._server.figures.mended.inc()
        self._responses.forget_turns()
        self.listening.forget(judged.item)
        self._responses.ahead.drop()
        answered = answer or self._responses.saying
        await self._interrupt(heard)
        if answer is not None:
            await self._responses.over()
        behind = self._talk.items[self._talk.items.index(judged.item) :]
        for item in behind:
            if item is judged.item or (answered is not None and item in answered.items):
                self._talk.delete(item.id)
                await self._emit("conversation.item.deleted", item_id=item.id)
        return judged.pcm
