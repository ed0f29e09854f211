"""A `SpeechService` that notes the figures of every reply on its way through."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice, ReplyStream, SpeechService
from moss_engine.api.transcript import Transcript
from moss_engine.endpoints.figures import Figures, Watch

if TYPE_CHECKING:
    import numpy as np


class WatchedReply:
    """A `ReplyStream` whose events are folded when its listener takes them."""

    def __init__(self, reply: ReplyStream, figures: Figures):
        self.request_id = reply.request_id
        self._reply = reply
        self._figures = figures

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        watch = Watch(self._figures)
        try:
            async with aclosing(self._reply.events(acknowledge=acknowledge)) as events:
                async for event in events:
                    watch.take(event)
                    yield event
        finally:
            watch.close()

    def cancel(self) -> None:
        self._reply.cancel()

    def acknowledge(self, samples: int) -> None:
        self._reply.acknowledge(samples)


class WatchedService:
    """Another service, and the figures of what it does; everything else is passed on.

    `counts_refusals`: of `submit`, for callers that do not count what they refuse themselves.
    """

    def __init__(self, service: SpeechService, figures: Figures, *, counts_refusals: bool = True):
        self._service = service
        self._figures = figures
        self._counts_refusals = counts_refusals

    async def submit(self, request: Request) -> ReplyStream:
        try:
            return WatchedReply(await self._service.submit(request), self._figures)
        except MossError as error:
            if self._counts_refusals:
                self._figures.refused(error.code)
            raise

    async def describe(self) -> ServiceInfo:
        return await self._service.describe()

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        return await self._service.encode(wave, sample_rate_hz)

    async def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
        return await self._service.transcribe(wave, sample_rate_hz)

    async def glimpse(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        return await self._service.glimpse(wave, sample_rate_hz)

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        return await self._service.add_voice(session_id, wave, sample_rate_hz, codes)

    async def remove_voice(self, session_id: str) -> None:
        await self._service.remove_voice(session_id)

    async def cancel_session(self, session_id: str) -> None:
        await self._service.cancel_session(session_id)

    async def stats(self) -> ServiceStats:
        return await self._service.stats()

    async def drain(self, timeout_s: float | None = None) -> None:
        await self._service.drain(timeout_s)
