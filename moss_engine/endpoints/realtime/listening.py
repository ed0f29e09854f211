"""What a realtime session hears: the input buffer, the turns found in it and what follows when
somebody begins or ends one, and recordings, which become items and are understood in the
background."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any

import numpy as np

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioLongError,
    BusyError,
    MossError,
    UnsupportedModeError,
)
from moss_engine.api.request import Speech
from moss_engine.api.service import hear
from moss_engine.audio.floor import UNHEARD_S, Floor, Taken, Turn
from moss_engine.audio.follower import Follower
from moss_engine.audio.hearing import Hearing, Understanding
from moss_engine.audio.playback import heard_chars
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import Change
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.endpoints.errors import of_moss
from moss_engine.endpoints.realtime.conversation import Item, new_item_id
from moss_engine.endpoints.realtime.fields import ServerVad
from moss_engine.endpoints.realtime.responding import Responses
from moss_engine.endpoints.realtime.session import warning
from moss_engine.endpoints.realtime.wire import GONE, RATE_HZ

MIN_MS = 100
MAX_WAITING = 16
"""Recordings of a session that are being understood or wait for it; each holds its sound."""
SAYING_CHARS, SAID_AHEAD_S = 200, 1.0
"""The words that an echo may have: the last of the answer, up to those spoken SAID_AHEAD_S from
now."""
BLOCK = RATE_HZ // 10
"""Samples that are handled at a time, so that everything that follows from one turn happens before
the next, however much a client sends at once."""


def _new_item() -> Item:
    """The item of what is about to be said."""
    return Item(new_item_id(), "user", True)


class Listening:
    """The hearing side of a session. It tells `responses` of turns that were found and understood,
    and of what is understood of the current one; for its floor it is the answerer."""

    def __init__(self, responses: Responses):
        self._item = _new_item()  # what is said now, or next, becomes this one
        self._responses = responses
        self._server, self._talk, self._emit = responses.server, responses.talk, responses.emit
        self._tasks: dict[Item, asyncio.Task[None]] = {}  # an id may be that of a deleted item, too
        self._num_before = 0  # samples that came before the follower's
        info, service = self._server.info, self._server.service
        hearing = Hearing(
            functools.partial(hear, service),
            service.transcribe_partial if info.recogniser is not None else None,
            self._paused,
            by_words=not info.encodes,
            max_s=info.max_speech_s,
            rate_hz=RATE_HZ,
        )
        self.floor = Floor(hearing, self, waits=False)

    @property
    def follower(self) -> Follower:
        return self.floor.follower

    async def detector(self) -> Detector:
        """What finds turns; raises UnsupportedModeError or MissingPackageError where none can."""
        if not self._server.info.hears:
            raise UnsupportedModeError(
                f"The model {self._server.model!r} takes no speech; set turn_detection to null."
            )
        return await asyncio.to_thread(load_detector)

    async def find(self, detector: Detector | None) -> None:
        """Find turns as the session's settings say; None: the client commits them. Sound that is
        held is processed again."""
        held = self.follower.take_all()
        self._num_before += self.follower.num_taken - len(held)
        how = self._responses.session.detection
        if isinstance(how, ServerVad):
            lead_s, end_s = how.prefix_padding_ms / 1000, how.silence_duration_ms / 1000
            self.floor.use(detector, likely=how.threshold, lead_s=lead_s, end_s=end_s)
        else:
            self.floor.use(detector, Judge(how.eagerness) if how else None)
        await self.hear(held)

    async def hear(self, pcm: np.ndarray) -> None:
        """Take more sound, int16 [n] at `RATE_HZ`; raises AudioLongError where too much is held
        that nobody commits."""
        self.floor.interrupts = self._responses.session.interrupts
        max_s = self._server.info.max_speech_s
        for start in range(0, len(pcm), BLOCK):
            async for taken in self.floor.take(pcm[start : start + BLOCK]):
                self._responses.spoken()
                if taken.heard.change is Change.BEGAN:
                    await self._began(taken)
                else:
                    await self._ended(taken)
            if not self.floor.hearing.finds and self.follower.held_s > max_s:
                self.follower.clear()
                raise AudioLongError(
                    f"The buffer holds more than {max_s:g} s and was emptied; commit sooner."
                )

    def _paused(self, said: Speech | None) -> None:
        if said is None:
            self._responses.ahead.drop()
        else:
            self._responses.begin_ahead(Item(self._item.id, "user", True, speech=said))

    def ms_of(self, at: int) -> int:
        """Milliseconds of the session's sound at a sample of the follower."""
        return (self._num_before + at) * 1000 // RATE_HZ

    def clear(self) -> None:
        """Drop what is held; it becomes no turn."""
        self._item = _new_item()
        self.floor.hearing.forget()
        self.follower.clear()

    def close(self) -> None:
        self.floor.hearing.forget()
        for task in self._tasks.values():
            task.cancel()

    async def _began(self, taken: Taken) -> None:
        """Somebody began to speak. No sound of an answer follows the event that says so."""
        answer, saying = self._responses.answer, self._responses.saying
        if taken.mends is not None:
            self._server.figures.mended.inc()
            self._responses.forget_turns()
            if (task := self._tasks.get(taken.mends.called)) is not None:
                task.cancel()  # it is part of another recording
        if self._responses.session.interrupts:
            await self._responses.interrupt()
        begun = {"audio_start_ms": self.ms_of(taken.heard.at), "item_id": self._item.id}
        await self._emit("input_audio_buffer.speech_started", **begun)
        if taken.mends is not None:
            if answer is not None:
                await self._responses.over()
            answered = answer or saying
            await self._undo(taken.mends, answered.items if answered else [])

    async def _undo(self, turn: Turn, answer: list[Item]) -> None:
        """Delete a turn and its answer, as it is part of the turn that goes on."""
        for item in self._talk.items[self._talk.items.index(turn.called) :]:
            if item is turn.called or item in answer:
                self._talk.delete(item.id)
                await self._emit("conversation.item.deleted", item_id=item.id)

    async def _ended(self, taken: Taken) -> None:
        """A turn is over, and becomes an item unless it was a false start."""
        heard, item = taken.heard, self._said()
        over = {"audio_end_ms": self.ms_of(heard.at), "item_id": item.id}
        await self._emit("input_audio_buffer.speech_stopped", **over)
        if heard.pcm is None:
            await self._emit("input_audio_buffer.cleared")
        else:
            await self._commit(heard.pcm, item, taken.understood, heard.num_spoken)
            self.floor.ended(taken, item)

    def _said(self) -> Item:
        """The item of what was said; what comes next gets a new one."""
        item, self._item = self._item, _new_item()
        return item

    async def commit(self) -> None:
        """The buffer becomes an item; raises AudioEmptyError if it holds too little."""
        held_ms = round(1000 * self.follower.held_s)
        if held_ms < MIN_MS:
            raise AudioEmptyError(
                f"The buffer holds {held_ms} ms; append {MIN_MS} ms or more before the commit."
            )
        pcm = self.follower.take_all()
        await self._commit(pcm, self._said())

    async def add(self, pcm: np.ndarray, item: Item, after: str | None = None) -> None:
        """A recording becomes an item, behind another one, and is understood in the background."""
        self._require_room()
        await self.show(item, after)
        self._understand(pcm, item)

    def add_apart(self, pcm: np.ndarray, item: Item) -> None:
        """The same for an item that is not part of the conversation."""
        self._require_room()
        self._understand(pcm, item)

    async def show(
        self, item: Item, after: str | None = None, ignored: list[str] | None = None
    ) -> None:
        before, told = self._talk.add(item, after), warning(ignored)
        for kind in ("added", "done"):
            value = item.value()
            await self._emit(
                f"conversation.item.{kind}", previous_item_id=before, item=value, **told
            )

    async def understood(self, items: list[Item]) -> None:
        """Wait until every recording among them was understood, or could not be."""
        tasks = [task for item, task in self._tasks.items() if item in items]
        if tasks:
            await asyncio.wait(tasks)

    async def _commit(
        self, pcm: np.ndarray, item: Item, known: Understanding | None = None, num_spoken: int = 0
    ) -> None:
        self._require_room()
        last = self._talk.items[-1].id if self._talk.items else None
        await self._emit("input_audio_buffer.committed", previous_item_id=last, item_id=item.id)
        await self.show(item)
        self._understand(pcm, item, known, num_spoken)

    def _require_room(self) -> None:
        if len(self._tasks) >= MAX_WAITING:
            raise BusyError(
                "Many recordings are waiting to be understood; say it again in a moment."
            )

    def _understand(
        self, pcm: np.ndarray, item: Item, known: Understanding | None = None, num_spoken: int = 0
    ) -> None:
        task = asyncio.create_task(self._hear(pcm, item, known, num_spoken))
        self._tasks[item] = task
        task.add_done_callback(lambda _: self._tasks.pop(item, None))

    async def _hear(
        self, pcm: np.ndarray, item: Item, known: Understanding | None, num_spoken: int
    ) -> None:
        """Understand a recording, or a turn that was found, with what is `known` of it."""
        place: dict[str, Any] = {"item_id": item.id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        try:
            item.speech = known and await known.speech(num_spoken)
            if item.speech is None:
                wave = pcm.astype(np.float32) / 32768
                item.speech = await self.floor.hearing.hear(wave, RATE_HZ, None)
        except MossError as error:
            item.not_understood = str(error)
            if item in self._talk.items:
                await self._tell_later(f"{kind}.failed", **place, error=of_moss(error).value())
            return
        if item not in self._talk.items:
            return
        transcript = item.speech.transcript
        if self._responses.session.transcribes and transcript is not None:
            usage = {"type": "duration", "seconds": len(pcm) / RATE_HZ}
            words = transcript.text
            await self._tell_later(f"{kind}.delta", **place, delta=words)
            await self._tell_later(f"{kind}.completed", **place, transcript=words, usage=usage)
        if known is not None:
            self._responses.turn_over(item)

    async def _tell_later(self, kind: str, **fields: Any) -> None:
        """Send an event from a background task; `serve` notices if the client is gone."""
        with contextlib.suppress(*GONE):
            await self._emit(kind, **fields)

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
        """Estimated from how long the answer is being played."""
        saying, rate_hz = self._responses.saying, self._server.info.sample_rate_hz
        if saying is None or saying.first_sound_s is None:
            return ""
        heard_s = time.monotonic() - saying.first_sound_s + SAID_AHEAD_S
        num_chars = heard_chars(saying.item.words, round(heard_s * rate_hz), rate_hz)
        return "".join(text for _, text in saying.item.words)[:num_chars][-SAYING_CHARS:]

    def may_go_on(self, turn: Item) -> bool:
        return turn not in self._responses.asked and turn is self._talk.last_of_user()
