"""The boundary of the service: what pages, commands, endpoints and replicas are written against.

Everything that crosses it is a value, so that either side may live in another process:

    info = await service.describe()
    async for event in stream(service, request): ...

`moss_engine.service.local.LocalService` is the implementation inside one process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from moss_engine.api.errors import AudioEmptyError, BusyError
from moss_engine.api.events import AudioChunk, Event
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Message, Request, Speech, Text
from moss_engine.api.transcript import Transcript

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ClonedVoice:
    """A voice made of a recording: its name in requests, and a sentence where another length of
    recording would be better."""

    name: str
    advice: str | None = None


class ReplyStream(Protocol):
    """A reply, as its one listener sees it."""

    request_id: str

    def events(self) -> AsyncGenerator[Event, None]:
        """Every event to the terminal one; leaving early stops the reply."""
        ...

    def cancel(self) -> None:
        """Stop the reply; it ends with `Finished(CANCELLED)`. Does nothing when it is over."""
        ...

    def acknowledge(self, samples: int) -> None:
        """The listener has taken so many samples of this reply in all. The service makes at most
        `ServiceInfo.run_ahead_s` more."""
        ...


class SpeechService(Protocol):
    """Answers requests, many at a time."""

    async def describe(self) -> ServiceInfo:
        """What may be asked for; the same value as long as the service runs."""
        ...

    async def submit(self, request: Request) -> ReplyStream:
        """Accept a request.

        Raises a MossError, with nothing begun, if it cannot be served: an InputError for what is
        wrong with it, BusyError, ShuttingDownError or EngineFaultError.
        """
        ...

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        """Speech, float32 [samples] mono, as codes for `request.Speech`.

        Raises UnsupportedModeError where `ServiceInfo.encodes` is False, BusyError while many
        recordings wait, ShuttingDownError and EngineFaultError.
        """
        ...

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        """What a recogniser understands of float32 [samples] mono; `timed`: with the times of its
        words, which takes longer.

        Raises UnsupportedModeError where `ServiceInfo.recogniser` is None, AudioEmptyError where
        there are no words, BusyError while many recordings wait, ShuttingDownError and
        EngineFaultError.
        """
        ...

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        """As `transcribe`, for what somebody who is still talking has said so far: without words
        the text is empty and nothing is raised. None while the recogniser has other work, so that
        nobody waits for this."""
        ...

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        """Make a voice of a recording and its codes; it replaces the session's one.

        Raises UnsupportedModeError where `clones_voices` is False, AudioEmptyError and
        AudioLongError for its length, BusyError while many sessions have a voice.
        """
        ...

    async def remove_voice(self, session_id: str) -> None:
        """Forget the voice of a session, if it has one; replies in it go on."""
        ...

    async def cancel_session(self, session_id: str) -> None:
        """Stop every reply of a session."""
        ...

    async def stats(self) -> ServiceStats:
        """How the service is doing at this moment."""
        ...

    async def drain(self, timeout_s: float | None = None) -> None:
        """Refuse new requests, give the open ones `timeout_s` (None: the service's own limit) to
        finish, then stop the rest; on return every stream has its terminal event."""
        ...


class ReplyWrapper:
    """A `ReplyStream` that forwards to another one; subclasses override what differs."""

    def __init__(self, reply: ReplyStream):
        self.request_id = reply.request_id
        self._reply = reply

    def cancel(self) -> None:
        self._reply.cancel()

    def acknowledge(self, samples: int) -> None:
        self._reply.acknowledge(samples)


class ServiceWrapper:
    """A `SpeechService` that forwards to the one `below`; subclasses override what differs."""

    def __init__(self, below: SpeechService):
        self._below = below

    async def describe(self) -> ServiceInfo:
        return await self._below.describe()

    async def submit(self, request: Request) -> ReplyStream:
        return await self._below.submit(request)

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        return await self._below.encode(wave, sample_rate_hz)

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        return await self._below.transcribe(wave, sample_rate_hz, timed)

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        return await self._below.transcribe_partial(wave, sample_rate_hz)

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        return await self._below.add_voice(session_id, wave, sample_rate_hz, codes)

    async def remove_voice(self, session_id: str) -> None:
        await self._below.remove_voice(session_id)

    async def cancel_session(self, session_id: str) -> None:
        await self._below.cancel_session(session_id)

    async def stats(self) -> ServiceStats:
        return await self._below.stats()

    async def drain(self, timeout_s: float | None = None) -> None:
        await self._below.drain(timeout_s)


class StartableService(SpeechService, Protocol):
    """A service that is started and closed."""

    def start(self) -> None:
        """Accept requests from now on; does nothing if it does already."""
        ...

    def close(self) -> None:
        """Stop everything now and give back what it holds; blocks."""
        ...


def request_of(
    info: ServiceInfo,
    said: Text | Speech | tuple[Message, ...],
    session_id: str,
    *,
    mode: str | None = None,
    system: str | None = None,
    voice: str | None = None,
    speed: float = 1.0,
    seed: int = 0,
) -> Request:
    """A request for a message, or a conversation, with the checkpoint's own sampling, and in its
    default mode unless another is named; `system` is a system turn of one's own."""
    before = () if system is None else (Message("system", Text(system)),)
    messages = said if isinstance(said, tuple) else (Message("user", said),)
    return Request(
        secrets.token_hex(16),
        session_id,
        (*before, *messages),
        mode or info.default_mode.name,
        replace(info.sampling, seed=seed),
        voice,
        speed=speed,
    )


Words = Callable[[], Awaitable[Transcript | None]]
"""Waits for a transcript that is being made elsewhere; its result is None where none is made."""


async def hear(
    service: SpeechService, wave: np.ndarray, sample_rate_hz: int, words: Words | None = None
) -> Speech:
    """A recording as a request takes it: its codes where the checkpoint understands speech, and its
    transcript where there is a recogniser, which is not run where `words` bring a transcript.
    Raises what `encode` and `transcribe` do. Where there are codes, a recogniser that finds no
    words, as in a language that it does not know, is no error."""
    info = await service.describe()
    if info.recogniser is None:
        return Speech(await service.encode(wave, sample_rate_hz))
    if not info.encodes:
        return Speech((), await service.transcribe(wave, sample_rate_hz))
    codes = asyncio.ensure_future(service.encode(wave, sample_rate_hz))
    noted = asyncio.ensure_future(_noted(service, wave, sample_rate_hz, words))
    try:
        return Speech(*await asyncio.gather(codes, noted))
    finally:  # one of them may be refused while the other one is still at work
        codes.cancel()
        noted.cancel()


async def _noted(
    service: SpeechService, wave: np.ndarray, sample_rate_hz: int, words: Words | None
) -> Transcript | None:
    """The transcript to go with codes; None without an error where there is none."""
    found = None if words is None else await words()
    if found is not None:
        return found if found.sure and found.text else None
    try:
        return await service.transcribe(wave, sample_rate_hz)
    except (AudioEmptyError, BusyError):
        return None


async def taken(reply: ReplyStream) -> AsyncGenerator[Event, None]:
    """The events of a reply for a listener who is never behind: each chunk of sound is acknowledged
    as soon as it is yielded."""
    async with aclosing(reply.events()) as events:
        async for event in events:
            if isinstance(event, AudioChunk):
                reply.acknowledge(event.start_sample + len(event.samples))
            yield event


async def stream(service: SpeechService, request: Request) -> AsyncGenerator[Event, None]:
    """`submit`, then every event to the terminal one, as `taken`. Leaving early stops the reply."""
    async with aclosing(taken(await service.submit(request))) as events:
        async for event in events:
            yield event
