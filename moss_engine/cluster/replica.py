"""A replica: the service of one process behind methods that take and return values, and what must
be equal in replicas that continue each other's replies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moss_engine.api.errors import EngineFaultError, MossError, ReplyFaultError
from moss_engine.api.events import AudioChunk, Event, Sampled
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.cluster.fleet import Card, Load, Parcel, Refusal
from moss_engine.models.manifest import folders_digest

FORMAT = 7
"""Version of the values that pages and replicas exchange; a change that the other side would not
understand increments it."""


def fingerprint(info: ServiceInfo, folders: list[Path]) -> str:
    """Hexadecimal digest of format, number format of the runtime, and files of checkpoint and
    codec."""
    runtime = info.runtime
    known = (FORMAT, runtime.name, runtime.dtype, info.sample_rate_hz, info.samples_per_code)
    return folders_digest(folders, repr(known))[:16]


log = logging.getLogger(__name__)

PUSH_S = 0.1
NEWS_S = 60.0
PAUSE_S = 0.004
"""Between two parcels, so that news of many replies travel together: a message costs Ray as much
with one reply as with a hundred."""
PARCEL_BYTES = 800_000
VOICE_KEPT_S = 300.0
"""A visitor's own voice that no reply used for so long is forgotten; the page sends it again when
one does."""
SIGN_OF_LIFE_S = 0.5
ROWS_WAIT_S = 0.3
"""How long rows alone wait: nobody hears or reads them, and a message costs more than they do."""
CALLS = frozenset(
    {"describe", "encode", "transcribe", "transcribe_partial", "add_voice", "remove_voice"}
)
NOT_BEGUN = "The reply could not be begun; ask for something else."
NOT_DONE = "The recording could not be used; record it again."


@dataclass
class _Page:
    """What a page asked for, and its waiting events; rows alone wait ROWS_WAIT_S for others."""

    heard_s: float = 0.0
    listening: object = None  # the latest of its streams of news, while that is open
    asked: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    streams: dict[str, ReplyStream] = field(default_factory=dict)
    waiting: Parcel = field(default_factory=list)
    since_s: float = 0.0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, news: Event | Refusal) -> None:
        if not self.waiting:
            self.since_s = time.monotonic()
        self.waiting.append(news)
        if not isinstance(news, Sampled):
            self.ready.set()

    def take(self) -> Parcel:
        """Up to PARCEL_BYTES of the waiting events, at least one; none if they may still wait."""
        if not self.ready.is_set() and time.monotonic() - self.since_s < ROWS_WAIT_S:
            return []
        size = count = 0
        for news in self.waiting:
            size += _num_bytes(news) if isinstance(news, AudioChunk) else 0
            if count and size > PARCEL_BYTES:
                break
            count += 1
        parcel, self.waiting = self.waiting[:count], self.waiting[count:]
        if not self.waiting:
            self.ready.clear()
        return parcel

    def stop(self, request_id: str) -> None:
        """Nobody wants the rest of a reply."""
        if request_id in self.streams:
            self.streams[request_id].cancel()
        elif request_id in self.asked:
            self.asked[request_id].cancel()

    def stop_all(self) -> None:
        for task in self.asked.values():
            task.cancel()


def _num_bytes(chunk: AudioChunk) -> int:
    return chunk.samples.nbytes + (chunk.state.num_bytes if chunk.state else 0)


class ReplicaServer:
    """The methods of a replica over a started `service`, for one event loop. `page` names the
    caller, whose replies are stopped after `ServiceInfo.lease_s` without a word from it."""

    def __init__(
        self,
        service: SpeechService,
        info: ServiceInfo,
        card: Card,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.card = card
        self._service = service
        self._info = info
        self._clock = clock
        self._pages: dict[str, _Page] = {}
        self._used_s: dict[str, float] = {}  # by session that has an own voice here
        self._forgetting: set[asyncio.Task[None]] = set()
        self._checking = False

    def ask(self, page: str, request: Request) -> None:
        """Begin a reply; a `Refusal` or all its events come with the news."""
        asker, name = self._hear(page), request.request_id
        if request.session_id in self._used_s:
            self._used_s[request.session_id] = self._clock()
        task = asker.asked[name] = asyncio.ensure_future(self._answer(asker, request))
        task.add_done_callback(lambda _: asker.asked.pop(name))

    async def _answer(self, page: _Page, request: Request) -> None:
        name = request.request_id
        try:
            stream = page.streams[name] = await self._service.submit(request)
            async with aclosing(stream.events()) as events:
                async for event in events:
                    page.put(event)
        except MossError as error:
            page.put(Refusal(name, error))
        except Exception:  # or the page would take this replica, and the next ones, for dead
            log.exception("a request could not be answered")
            page.put(Refusal(name, ReplyFaultError(NOT_BEGUN)))
        finally:
            page.streams.pop(name, None)

    async def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """See `Remote.news`. It ends after a while and is to be opened again, as nothing tells a
        replica that a page has died."""
        listener, before = self._hear(page), None
        this = listener.listening = object()
        looked_s = said_s = 0.0
        end_s = time.monotonic() + NEWS_S
        try:
            while (now_s := time.monotonic()) < end_s:
                if now_s - looked_s >= PUSH_S:
                    looked_s = now_s
                    load = Load(await self.stats(), self._info.max_sessions, self._info.max_waiting)
                    told = _without_age(load)
                    if told != before or now_s - said_s >= SIGN_OF_LIFE_S:
                        before, said_s = told, now_s
                        yield load
                if parcel := listener.take():
                    yield parcel
                    await asyncio.sleep(PAUSE_S)
                else:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(listener.ready.wait(), PUSH_S)
        except BaseException:  # it is left
            if listener.listening is this:
                listener.stop_all()
            raise
        finally:
            if listener.listening is this:
                listener.listening = None

    def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """The page is alive; its listeners have taken so many samples of these replies in all, and
        the `stopped` ones are not wanted any more."""
        asker = self._hear(page)
        for request_id, samples in taken.items():
            if request_id in asker.streams:
                asker.streams[request_id].acknowledge(samples)
        for request_id in stopped:
            asker.stop(request_id)

    async def call(self, page: str, method: str, *arguments: Any) -> Any:
        """The result of a method of `SpeechService` that returns one value, or the MossError that
        it raised."""
        assert method in CALLS, f"{method} cannot be called from afar"
        if method == "add_voice":  # it may be made although nobody waits for it any more
            self._used_s[arguments[0]] = self._clock()
        self._hear(page)
        try:
            return await getattr(self._service, method)(*arguments)
        except MossError as error:
            return error
        except Exception:
            log.exception("%s could not be done", method)
            return EngineFaultError(NOT_DONE)

    async def stats(self) -> ServiceStats:
        return await self._service.stats()

    def _hear(self, page: str) -> _Page:
        found = self._pages.setdefault(page, _Page())
        found.heard_s = self._clock()
        if not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_later(PUSH_S, self._end_leases)
        return found

    def _end_leases(self) -> None:
        """Stop the replies of pages that are gone and forget unused voices; schedules itself again
        while there are pages or voices."""
        now_s = self._clock()
        for name, page in list(self._pages.items()):
            if now_s - page.heard_s > self._info.lease_s:
                page.stop_all()
                if page.listening is None:
                    del self._pages[name]
        for session_id, used_s in list(self._used_s.items()):
            if now_s - used_s > VOICE_KEPT_S:
                del self._used_s[session_id]
                task = asyncio.ensure_future(self._service.remove_voice(session_id))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)
        self._checking = bool(self._pages or self._used_s)
        if self._checking:
            asyncio.get_running_loop().call_later(PUSH_S, self._end_leases)


def _without_age(load: Load) -> Load:
    return replace(load, stats=replace(load.stats, progress_age_s=0.0))
