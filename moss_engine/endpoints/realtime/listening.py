"""What a realtime session hears: a buffer, the turns in it, and recordings that become items and
are understood beside everything else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
from starlette.websockets import WebSocketDisconnect

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioLongError,
    BusyError,
    MissingPackageError,
    MossError,
    UnsupportedModeError,
)
from moss_engine.api.request import Speech
from moss_engine.api.service import hear
from moss_engine.audio.floor import Answerer, Floor, Taken
from moss_engine.audio.follower import Follower
from moss_engine.audio.hearing import Hearing, Understanding
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import Change
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.endpoints.errors import of_moss
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.responding import Responses
from moss_engine.endpoints.realtime.session import warning
from moss_engine.endpoints.realtime.wire import RATE_HZ
from moss_engine.endpoints.server import Server

MIN_MS = 100
MAX_WAITING = 16
"""Recordings of a session that are understood or wait for it; each holds its sound."""
Emit = Callable[..., Awaitable[None]]


class Listening:
    """`responses` is told of every turn that the service found and understood, and of what was
    understood of one so far. `transcribes`: whether the client is told what was understood."""

    def __init__(
        self,
        server: Server,
        talk: Conversation,
        emit: Emit,
        answerer: Answerer,
        responses: Responses,
    ):
        self.transcribes = False
        self.item = Item("", "user", True)
        self._server = server
        self._talk = talk
        self._emit = emit
        self._responses = responses
        self._tasks: dict[Item, asyncio.Task[None]] = {}  # an id may be that of a deleted item, too
        self._num_before = 0  # samples that came before the follower's
        info, service = server.info, server.service
        hearing = Hearing(
            functools.partial(hear, service),
            service.transcribe_partial if info.recogniser is not None else None,
            self._paused,
            by_words=not info.encodes,
            max_s=info.max_speech_s,
            rate_hz=RATE_HZ,
        )
        self.floor = Floor(hearing, answerer, waits=False)

    @property
    def follower(self) -> Follower:
        return self.floor.follower

    async def detector(self, *, needed: bool = False) -> Detector | None:
        """What finds turns, or None; if it is `needed`, the reason is raised instead."""
        try:
            if not self._server.info.hears:
                raise UnsupportedModeError(
                    f"The model {self._server.model!r} takes no speech; set turn_detection to null."
                )
            return await asyncio.to_thread(load_detector)
        except (UnsupportedModeError, MissingPackageError):
            if needed:
                raise
            return None

    def use(self, detector: Detector | None, judge: Judge | None = None, **levels: float) -> None:
        """As `Floor.use`; None lets the client commit turns."""
        self._num_before += self.follower.num_taken
        self.floor.use(detector, judge, **levels)

    async def push(self, pcm: np.ndarray) -> AsyncIterator[Taken]:
        """As `Floor.take`; raises AudioLongError where nobody takes what is held."""
        async for taken in self.floor.take(pcm):
            yield taken
        follower, max_s = self.follower, self._server.info.max_speech_s
        if not self.floor.hearing.finds and follower.held_s > max_s:
            follower.clear()
            raise AudioLongError(
                f"The buffer holds more than {max_s:g} s and was emptied; commit sooner."
            )

    def _paused(self, said: Speech | None) -> None:
        if said is None:
            self._responses.ahead.drop()
        else:
            self._responses.begin_ahead(Item(self.item.id, "user", True, speech=said))

    def ms_of(self, at: int) -> int:
        """Of the session's sound, for a sample of the follower's."""
        return (self._num_before + at) * 1000 // RATE_HZ

    def clear(self) -> None:
        """Nothing of what is held is a turn."""
        self.floor.hearing.forget()
        self.follower.clear()

    def forget(self, item: Item) -> None:
        """A recording that becomes part of another one need not be understood."""
        if (task := self._tasks.get(item)) is not None:
            task.cancel()

    def close(self) -> None:
        self.floor.hearing.forget()
        for task in self._tasks.values():
            task.cancel()

    async def tell(self, taken: Taken) -> None:
        """A turn began, or it ended and becomes an item."""
        heard, kind = taken.heard, "input_audio_buffer"
        ms = self.ms_of(heard.at)
        if heard.change is Change.BEGAN:
            self.item = Item(f"item_{secrets.token_hex(12)}", "user", True)
            await self._emit(f"{kind}.speech_started", audio_start_ms=ms, item_id=self.item.id)
            return
        await self._emit(f"{kind}.speech_stopped", audio_end_ms=ms, item_id=self.item.id)
        if heard.pcm is None:
            await self._emit("input_audio_buffer.cleared")
        else:
            await self._commit(heard.pcm, self.item, taken.understood, heard.num_spoken)
            self.floor.ended(taken, self.item)

    async def commit(self) -> None:
        """What the buffer holds becomes an item; raises AudioEmptyError for too little."""
        held_ms = round(1000 * self.follower.held_s)
        if held_ms < MIN_MS:
            raise AudioEmptyError(
                f"The buffer holds {held_ms} ms; append {MIN_MS} ms or more before the commit."
            )
        pcm = self.follower.take_all()
        await self._commit(pcm, Item(f"item_{secrets.token_hex(12)}", "user", True))

    async def add(self, pcm: np.ndarray, item: Item, after: str | None = None) -> None:
        """A recording as an item, behind another one; it is understood meanwhile."""
        self._require_room()
        await self.show(item, after)
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

    async def understood(self, item: Item) -> None:
        """Wait until a recording was understood, or could not be."""
        task = self._tasks.get(item)
        if task is not None:
            await asyncio.wait({task})

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
        """A recording, or a turn that the service found, with what is `known` of it."""
        place: dict[str, Any] = {"item_id": item.id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        try:
            item.speech = known and await known.speech(num_spoken)
            if item.speech is None:
                wave = pcm.astype(np.float32) / 32768
                item.speech = await self.floor.hearing.hear(wave, RATE_HZ, None)
        except MossError as error:
            item.not_understood = str(error)
            await self._tell_later(f"{kind}.failed", **place, error=of_moss(error).value())
            return
        transcript = item.speech.transcript
        if self.transcribes and transcript is not None:
            usage = {"type": "duration", "seconds": len(pcm) / RATE_HZ}
            words = transcript.text
            await self._tell_later(f"{kind}.delta", **place, delta=words)
            await self._tell_later(f"{kind}.completed", **place, transcript=words, usage=usage)
        if known is not None:
            self._responses.turn_over(item)

    async def _tell_later(self, kind: str, **fields: Any) -> None:
        """`serve` is about to notice, too, if the client takes nothing any more."""
        with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
            await self._emit(kind, **fields)
