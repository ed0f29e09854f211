"""What a realtime session hears: recordings become items, and are understood beside everything
else."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from starlette.websockets import WebSocketDisconnect

from moss_engine.api.errors import (
    AudioEmptyError,
    BusyError,
    MissingPackageError,
    MossError,
    UnsupportedModeError,
)
from moss_engine.api.service import hear
from moss_engine.audio.turn_taking import Change
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.endpoints.errors import of_moss
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.microphone import RATE_HZ, Heard, Microphone
from moss_engine.endpoints.server import Server

MIN_MS = 100
MAX_WAITING = 16
"""Recordings of a session that are understood or wait for it; each holds its sound."""
Emit = Callable[..., Awaitable[None]]


class Listening:
    """`turn_over` is told of every turn that the service found and understood; `transcribes`:
    whether the client is told what was understood."""

    def __init__(
        self, server: Server, talk: Conversation, emit: Emit, turn_over: Callable[[Item], None]
    ):
        self.transcribes = False
        self._server = server
        self._talk = talk
        self._emit = emit
        self._turn_over = turn_over
        self._microphone = Microphone(server.info.max_speech_s)
        self._item_id = ""
        self._tasks: dict[Item, asyncio.Task[None]] = {}  # an id may be that of a deleted item, too

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

    def use(self, detector: Detector | None) -> None:
        """Find turns from now on, or (None) let the client commit them."""
        self._microphone = Microphone(self._server.info.max_speech_s, detector)

    async def push(self, pcm: np.ndarray, *, answering: bool) -> list[Heard]:
        return await asyncio.to_thread(self._microphone.push, pcm, answering=answering)

    def clear(self) -> None:
        self._microphone.clear()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def tell(self, heard: Heard) -> None:
        """A turn began, or it ended and becomes an item."""
        if heard.change is Change.BEGAN:
            self._item_id = f"item_{secrets.token_hex(12)}"
            await self._emit(
                "input_audio_buffer.speech_started", audio_start_ms=heard.ms, item_id=self._item_id
            )
            return
        await self._emit(
            "input_audio_buffer.speech_stopped", audio_end_ms=heard.ms, item_id=self._item_id
        )
        if heard.pcm is None:
            await self._emit("input_audio_buffer.cleared")
        else:
            await self._commit(heard.pcm, Item(self._item_id, "user", True), found=True)

    async def commit(self) -> None:
        """What the buffer holds becomes an item; raises AudioEmptyError for too little."""
        held_ms = self._microphone.held_ms
        if held_ms < MIN_MS:
            raise AudioEmptyError(
                f"The buffer holds {held_ms} ms; append {MIN_MS} ms or more before the commit."
            )
        pcm = self._microphone.take()
        await self._commit(pcm, Item(f"item_{secrets.token_hex(12)}", "user", True))

    async def add(self, pcm: np.ndarray, item: Item, after: str | None = None) -> None:
        """A recording as an item, behind another one; it is understood meanwhile."""
        self._require_room()
        await self.show(item, after)
        self._understand(pcm, item)

    async def show(self, item: Item, after: str | None = None) -> None:
        before = self._talk.add(item, after)
        for kind in ("added", "done"):
            value = item.value()
            await self._emit(f"conversation.item.{kind}", previous_item_id=before, item=value)

    async def understood(self, item: Item) -> None:
        """Wait until a recording was understood, or could not be."""
        task = self._tasks.get(item)
        if task is not None:
            await asyncio.wait({task})

    async def _commit(self, pcm: np.ndarray, item: Item, *, found: bool = False) -> None:
        self._require_room()
        last = self._talk.items[-1].id if self._talk.items else None
        await self._emit("input_audio_buffer.committed", previous_item_id=last, item_id=item.id)
        await self.show(item)
        self._understand(pcm, item, found=found)

    def _require_room(self) -> None:
        if len(self._tasks) >= MAX_WAITING:
            raise BusyError(
                "Many recordings are waiting to be understood; say it again in a moment."
            )

    def _understand(self, pcm: np.ndarray, item: Item, *, found: bool = False) -> None:
        task = asyncio.create_task(self._hear(pcm, item, found))
        self._tasks[item] = task
        task.add_done_callback(lambda _: self._tasks.pop(item, None))

    async def _hear(self, pcm: np.ndarray, item: Item, found: bool) -> None:
        place: dict[str, Any] = {"item_id": item.id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        try:
            item.speech = await hear(
                self._server.service, pcm.astype(np.float32) / 32768.0, RATE_HZ
            )
        except MossError as error:
            item.deaf = str(error)
            await self._tell_later(f"{kind}.failed", **place, error=of_moss(error).value())
            return
        transcript = item.speech.transcript
        if self.transcribes and transcript is not None:
            usage = {"type": "duration", "seconds": len(pcm) / RATE_HZ}
            words = transcript.text
            await self._tell_later(f"{kind}.completed", **place, transcript=words, usage=usage)
        if found:
            self._turn_over(item)

    async def _tell_later(self, kind: str, **fields: Any) -> None:
        """`serve` is about to notice, too, if the client takes nothing any more."""
        with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
            await self._emit(kind, **fields)
