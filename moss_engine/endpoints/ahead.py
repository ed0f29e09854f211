"""An answer that is begun before it is certain that its question is over: nothing of it is sent
before the same question is really asked, and otherwise it leaves no trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from moss_engine.api.errors import MossError
from moss_engine.api.events import Accepted, Event, Failed, Finished, FinishReason
from moss_engine.api.metrics import Timeline, fold
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, ReplyWrapper, SpeechService
from moss_engine.endpoints.figures import Figures


class Begun(ReplyWrapper):
    """A reply whose events are kept until somebody listens. It was asked for at `begun_s` and
    accepted at `accepted_s` of the monotonic clock."""

    def __init__(self, reply: ReplyStream, begun_s: float):
        super().__init__(reply)
        self.begun_s = self.accepted_s = begun_s
        self.spoiled = False  # it failed, or somebody else stopped it
        self._timeline = Timeline()
        self._kept: asyncio.Queue[Event | None] = asyncio.Queue()
        self._taking = asyncio.ensure_future(self._take_all())

    @property
    def worked_s(self) -> float:
        """Seconds of work up to its latest samples, or until now where there are none."""
        timeline = self._timeline
        if timeline.last_pcm_s is None:
            return time.monotonic() - self.begun_s
        return timeline.last_pcm_s - timeline.pcm_held_s

    async def ended(self) -> None:
        await asyncio.wait({self._taking})

    async def events(self) -> AsyncGenerator[Event, None]:
        """As `ReplyStream.events`."""
        try:
            while (event := await self._kept.get()) is not None:
                yield event
            await self._taking
        finally:
            self._taking.cancel()
            await self.ended()

    async def _take_all(self) -> None:
        try:
            async with aclosing(self._reply.events()) as events:
                async for event in events:
                    self._take(event)
        except MossError:
            self.spoiled = True
            raise
        finally:
            self._kept.put_nowait(None)

    def _take(self, event: Event) -> None:
        if isinstance(event, Accepted):
            self.accepted_s = time.monotonic()
        stopped = isinstance(event, Finished) and event.reason is FinishReason.CANCELLED
        self.spoiled = self.spoiled or stopped or isinstance(event, Failed)
        self._timeline = fold(self._timeline, event)
        self._kept.put_nowait(event)


class Ahead:
    """The answer that is begun early, of one conversation; used on one event loop."""

    def __init__(self, service: SpeechService, figures: Figures):
        self._service = service
        self._figures = figures
        self._request: Request | None = None
        self._begun: asyncio.Task[Begun | None] | None = None
        self._thrown: set[asyncio.Task[None]] = set()

    @property
    def seed(self) -> int | None:
        """The seed of the answer that was begun."""
        return None if self._request is None else self._request.sampling.seed

    def begin(self, request: Request) -> None:
        """Begin the answer, unless somebody waits for a place or is short of sound."""
        self.drop()
        self._request, self._begun = request, asyncio.ensure_future(self._begin(request))

    async def take(self, request: Request) -> Begun | None:
        """The answer that was begun to this question. None where there is none; an answer to
        another question is stopped first, so that its place is free."""
        begun, asked = self._begun, self._request
        if begun is not None and asked is not None and _is_same(request, asked):
            try:
                reply = await asyncio.shield(begun)
            except asyncio.CancelledError:  # of who asked, which is not that of the next to ask
                self.drop()
                raise
            if reply is not None and not reply.spoiled:
                self._request = self._begun = None
                self._figures.ahead.labels("released").inc()
                return reply
        self.drop()
        if self._thrown:
            await asyncio.wait(set(self._thrown))
        return None

    def drop(self) -> None:
        """Stop the answer that was begun, if any."""
        begun, self._request, self._begun = self._begun, None, None
        if begun is not None:
            thrown = asyncio.ensure_future(self._throw(begun))
            self._thrown.add(thrown)
            thrown.add_done_callback(self._thrown.discard)

    async def close(self) -> None:
        """Stop what was begun; nothing more is asked for."""
        self.drop()
        await asyncio.gather(*self._thrown)

    async def _begin(self, request: Request) -> Begun | None:
        begun_s = time.monotonic()
        engine = (await self._service.stats()).engine
        info = await self._service.describe()
        busy = engine.waiting or engine.running >= info.max_sessions
        if busy or not self._figures.all_in_store():
            return None
        try:
            return Begun(await self._service.submit(request), begun_s)
        except MossError:  # which is told to who asks for it
            return None

    async def _throw(self, begun: asyncio.Task[Begun | None]) -> None:
        begun.cancel()
        await asyncio.wait({begun})
        reply = None if begun.cancelled() else begun.result()
        if reply is not None:
            self._figures.ahead.labels("thrown_away").inc()
            self._figures.ahead_wasted.inc(reply.worked_s)
            reply.cancel()
            await reply.ended()


def _is_same(one: Request, other: Request) -> bool:
    """Apart from their ids."""
    return replace(one, request_id="", session_id="") == replace(
        other, request_id="", session_id=""
    )
