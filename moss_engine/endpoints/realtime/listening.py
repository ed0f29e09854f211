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
from moss_engine.api.request import Speech
from moss_engine.api.service import hear
from moss_engine.api.transcript import Transcript
from moss_engine.audio.g711 import Decoder, Law
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import (
    END_S,
    FRAME_SAMPLES,
    LEAD_S,
    LIKELY,
    LOOK_S,
    Change,
    TurnState,
    follow,
)
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.endpoints.errors import of_moss
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.session import warning
from moss_engine.endpoints.server import Server

MAX_NAME_CHARS = 512


def bytes_of(data: str) -> bytes:
    """Raises AudioFormatError for what is no base64."""
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise AudioFormatError(
            "The audio is no base64; send the bytes of its samples in base64."
        ) from None


def whole_samples(data: str, law: Law | None) -> np.ndarray:
    """base64 of a whole recording -> int16 [n] at `RATE_HZ`; raises AudioFormatError."""
    if law is None:
        return samples_of(data)
    decoder = Decoder(law, RATE_HZ)
    return np.concatenate([decoder.push(bytes_of(data)), decoder.flush()])


def samples_of(data: str) -> np.ndarray:
    """base64 of 16-bit little-endian PCM -> int16 [n]; raises AudioFormatError."""
    raw = bytes_of(data)
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
    """A turn began, paused, went on, ended or was dropped at `ms` of the session's sound; `pcm` is
    what there is of it, int16 [n] at `RATE_HZ`, when it paused or ended."""

    change: Change
    ms: int
    pcm: np.ndarray | None = None
    spoken_s: float = 0.0


class Microphone:
    """int16 PCM at `RATE_HZ`, at most `max_s` of it. Without `detector` it is kept until it is
    taken. `end_s` of silence end the turn that is being said; the next one waits for the usual."""

    def __init__(
        self,
        max_s: float,
        detector: Detector | None = None,
        *,
        likely: float = LIKELY,
        lead_s: float = LEAD_S,
        end_s: float = END_S,
    ):
        self.max_s = self._max_s = max_s
        self.end_s = self._usual_end_s = end_s
        self._likely = likely
        self._lead_s = lead_s
        self._continued = False
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
    def talking(self) -> bool:
        return self._turn.talking

    @property
    def now_ms(self) -> int:
        """Sound that came so far, as far as the detector judged it."""
        return self._num_seen * 1000 // RATE_HZ

    @property
    def spoken_s(self) -> float:
        """Speech in the turn that is being said."""
        return self._turn.spoken_s

    @property
    def sound(self) -> np.ndarray:
        """What is held, int16 [n]."""
        return np.frombuffer(bytes(self._held), np.int16)

    def continues(self, before: np.ndarray) -> None:
        """The turn that has just begun goes on with an earlier one, int16 [n]."""
        self._held[:0] = before.tobytes()
        self._continued = True

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
            self._keep(self._lead_s + END_S)
        return heard

    def take(self) -> np.ndarray:
        """Everything that is held, int16 [n]; the buffer is empty then."""
        pcm = self.sound
        self.clear()
        return pcm

    def clear(self) -> None:
        self._held.clear()
        self._turn = TurnState()
        self._continued = False
        self.end_s = self._usual_end_s

    def _judge(self, probability: float, answering: bool) -> list[Heard]:
        self._num_seen += FRAME
        silent_s, spoken_s = self._turn.silent_s, self._turn.spoken_s
        self._turn = follow(
            self._turn, probability, answering=answering, max_s=self._max_s, end_s=self.end_s,
            likely=self._likely,
        )  # fmt: skip
        change, now_ms = self._turn.change, self.now_ms
        if change is Change.NONE:
            if silent_s < LOOK_S <= self._turn.silent_s:
                return [Heard(Change.PAUSED, now_ms, self.sound)]
            if silent_s >= LOOK_S and self._turn.talking and not self._turn.silent_s:
                self.end_s = self._usual_end_s
                return [Heard(Change.WENT_ON, now_ms)]
            return []
        if change is Change.BEGAN:
            begun_s = self._turn.length_s - LEAD_S + self._lead_s
            self._keep(begun_s)
            self._began = max(0, now_ms - round(1000 * begun_s))
            return [Heard(change, self._began)]
        if self._continued:  # a cough behind a turn does not undo it
            change = Change.ENDED
        pcm = self.take()
        return [Heard(change, now_ms, pcm if change is Change.ENDED else None, spoken_s)]

    def _keep(self, seconds: float) -> None:
        """Forget all but the last seconds."""
        surplus = self._num_held - round(seconds * RATE_HZ)
        if surplus > 0:
            del self._held[: 2 * surplus]


@dataclass(frozen=True)
class Look:
    """What is being understood of a turn that pauses."""

    item: Item
    task: asyncio.Task[None]


MIN_MS = 100
MAX_WAITING = 16
"""Recordings of a session that are understood or wait for it; each holds its sound."""
Emit = Callable[..., Awaitable[None]]


class Listening:
    """`turn_over` is told of every turn that the service found and understood, `pausing` of one
    that was understood as far as it goes while nobody speaks. `transcribes`: whether the client is
    told what was understood; `judge` decides how long a pause may be, None: the session says it."""

    def __init__(
        self,
        server: Server,
        talk: Conversation,
        emit: Emit,
        turn_over: Callable[[Item], None],
        pausing: Callable[[Item], Awaitable[None]],
    ):
        self.transcribes = False
        self.judge: Judge | None = None
        self._pausing = pausing
        self._look: Look | None = None
        self.item = Item("", "user", True)
        self._server = server
        self._talk = talk
        self._emit = emit
        self._turn_over = turn_over
        self._microphone = Microphone(server.info.max_speech_s)
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

    @property
    def microphone(self) -> Microphone:
        return self._microphone

    def use(self, detector: Detector | None, **levels: float) -> None:
        """Find turns from now on, or (None) let the client commit them; `levels` as `Microphone`
        has them."""
        self.stop_looking()
        self._microphone = Microphone(self._server.info.max_speech_s, detector, **levels)

    async def push(self, pcm: np.ndarray, *, answering: bool) -> list[Heard]:
        return await asyncio.to_thread(self._microphone.push, pcm, answering=answering)

    def clear(self) -> None:
        self.stop_looking()
        self._microphone.clear()

    def forget(self, item: Item) -> None:
        """A recording that becomes part of another one need not be understood."""
        if (task := self._tasks.get(item)) is not None:
            task.cancel()

    def look(self, pcm: np.ndarray) -> None:
        """Somebody pauses: understand the turn as it would be if nothing followed."""
        self.stop_looking()
        item = Item(self.item.id, "user", True)
        self.item = item
        self._look = Look(item, asyncio.create_task(self._look_at(item, pcm)))

    def stop_looking(self) -> None:
        if self._look is not None:
            self._look.task.cancel()
            self._look = None

    async def heard_so_far(self, pcm: np.ndarray) -> Transcript | None:
        """The words in int16 [n]; None while the recogniser has other work, or fails."""
        wave = pcm.astype(np.float32) / 32768.0
        try:
            return await self._server.service.transcribe_partial(wave, RATE_HZ)
        except MossError:
            return None

    async def _heard(self, pcm: np.ndarray) -> Speech:
        return await hear(self._server.service, pcm.astype(np.float32) / 32768.0, RATE_HZ)

    async def _look_at(self, item: Item, pcm: np.ndarray) -> None:
        judge, microphone = self.judge, self._microphone
        melody = asyncio.ensure_future(judge.melody(pcm, RATE_HZ)) if judge is not None else None
        try:
            text = await self._understand_early(item, pcm)
            if item.speech is not None:
                await self._pausing(item)
            if judge is not None and melody is not None:
                microphone.end_s = judge.wait_s(text, await melody)
        finally:
            if melody is not None:
                melody.cancel()

    async def _understand_early(self, item: Item, pcm: np.ndarray) -> str | None:
        """The words, if they are known; what is refused is refused once the turn is over."""
        info = self._server.info
        if info.encodes:
            with contextlib.suppress(MossError):
                item.speech = await self._heard(pcm)
            words = item.speech.transcript if item.speech else None
            return words.text if words else None
        found = await self.heard_so_far(pcm)
        if found is not None and found.text:
            item.speech = Speech((), found)
        return found.text if found else None

    def close(self) -> None:
        self.stop_looking()
        for task in self._tasks.values():
            task.cancel()

    async def tell(self, heard: Heard) -> None:
        """A turn began, or it ended and becomes an item."""
        if heard.change is Change.BEGAN:
            self.item = Item(f"item_{secrets.token_hex(12)}", "user", True)
            await self._emit(
                "input_audio_buffer.speech_started", audio_start_ms=heard.ms, item_id=self.item.id
            )
            return
        await self._emit(
            "input_audio_buffer.speech_stopped", audio_end_ms=heard.ms, item_id=self.item.id
        )
        if heard.pcm is None:
            await self._emit("input_audio_buffer.cleared")
        else:
            await self._commit(heard.pcm, self.item, found=True)

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
        look = self._look if self._look is not None and self._look.item is item else None
        self._look = None if found else self._look
        task = asyncio.create_task(self._hear(pcm, item, found, look))
        self._tasks[item] = task
        task.add_done_callback(lambda _: self._tasks.pop(item, None))

    async def _hear(self, pcm: np.ndarray, item: Item, found: bool, look: Look | None) -> None:
        place: dict[str, Any] = {"item_id": item.id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        try:
            if look is not None and item.speech is None:
                await asyncio.wait({look.task})
            if item.speech is None:
                item.speech = await self._heard(pcm)
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
        if found:
            self._turn_over(item)

    async def _tell_later(self, kind: str, **fields: Any) -> None:
        """`serve` is about to notice, too, if the client takes nothing any more."""
        with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
            await self._emit(kind, **fields)
