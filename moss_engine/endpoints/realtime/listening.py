"""What a realtime session hears: a buffer, the turns in it, and recordings that become items and
are understood beside everything else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.websockets import WebSocketDisconnect

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioFormatError,
    AudioLongError,
    BusyError,
    MissingPackageError,
    MossError,
    UnsupportedModeError,
)
from moss_engine.api.service import hear
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.turn_taking import END_S, FRAME_SAMPLES, LEAD_S, Change, TurnState, follow
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.endpoints.errors import of_moss
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.server import Server

MAX_NAME_CHARS = 512


def samples_of(data: str) -> np.ndarray:
    """base64 of 16-bit little-endian PCM -> int16 [n]; raises AudioFormatError."""
    try:
        raw = b64decode(data, validate=True)
    except ValueError:
        raw = b"\0"
    if len(raw) % 2:
        raise AudioFormatError("The audio is no base64 of 16-bit samples; send pcm16 at 24 kHz.")
    return np.frombuffer(raw, "<i2").astype(np.int16)


def event_id_of(said: str | bytes) -> str | None:
    """The name that a client gave an event which cannot be read, if that can be."""
    try:
        found = json.loads(said).get("event_id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return found[:MAX_NAME_CHARS] if isinstance(found, str) and found.isascii() else None


RATE_HZ = FROM_HZ
FRAME = FRAME_SAMPLES * 3 // 2  # of the client's samples


@dataclass(frozen=True)
class Heard:
    """A turn began, ended or was dropped at `ms` of the session's sound; `pcm` is all of it, int16
    [n] at `RATE_HZ`, when it ended."""

    change: Change
    ms: int
    pcm: np.ndarray | None = None


class Microphone:
    """int16 PCM at `RATE_HZ`, at most `max_s` of it. Without `detector` it is kept until it is
    taken."""

    def __init__(self, max_s: float, detector: Detector | None = None):
        self._max_s = max_s
        self._held = bytearray()  # int16; not a list of blocks, which may be as many as samples
        self._num_seen = 0  # samples that the detector judged
        self._turn = TurnState()
        self._frames = np.empty(0, np.int16)
        self._listener = detector.open() if detector else None
        self._downsampler = Downsampler()
        self._began = 0

    @property
    def held_ms(self) -> int:
        return self._num_held * 1000 // RATE_HZ

    @property
    def _num_held(self) -> int:
        return len(self._held) // 2

    def push(self, pcm: np.ndarray, *, answering: bool) -> list[Heard]:
        """More sound, and what it brought about. Raises AudioLongError where nobody takes it."""
        self._held += pcm.tobytes()
        if self._listener is None:
            if self._num_held > self._max_s * RATE_HZ:
                self.clear()
                raise AudioLongError(
                    f"The buffer holds more than {self._max_s:g} s and was emptied; commit sooner."
                )
            return []
        self._frames = np.concatenate([self._frames, self._downsampler.push(pcm)])
        heard = []
        while len(self._frames) >= FRAME_SAMPLES:
            frame, self._frames = self._frames[:FRAME_SAMPLES], self._frames[FRAME_SAMPLES:]
            heard += self._judge(self._listener.probability(frame), answering)
        if not self._turn.talking:
            self._keep(LEAD_S + END_S)
        return heard

    def take(self) -> np.ndarray:
        """Everything that is held, int16 [n]; the buffer is empty then."""
        pcm = np.frombuffer(bytes(self._held), np.int16)
        self.clear()
        return pcm

    def clear(self) -> None:
        self._held.clear()
        self._turn = TurnState()

    def _judge(self, probability: float, answering: bool) -> list[Heard]:
        self._num_seen += FRAME
        self._turn = follow(self._turn, probability, answering=answering, max_s=self._max_s)
        change, now_ms = self._turn.change, self._num_seen * 1000 // RATE_HZ
        if change is Change.NONE:
            return []
        if change is Change.BEGAN:
            self._keep(self._turn.length_s)
            self._began = max(0, now_ms - round(1000 * self._turn.length_s))
            return [Heard(change, self._began)]
        pcm = self.take()
        return [Heard(change, now_ms, pcm if change is Change.ENDED else None)]

    def _keep(self, seconds: float) -> None:
        """Forget all but the last seconds."""
        surplus = self._num_held - round(seconds * RATE_HZ)
        if surplus > 0:
            del self._held[: 2 * surplus]


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
            item.not_understood = str(error)
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
