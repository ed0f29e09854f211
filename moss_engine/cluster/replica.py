"""A replica: the service of one process behind methods whose arguments and results are values, and
what must agree between replicas that continue each other's replies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moss_engine.api.errors import EngineFaultError, MossError, ReplyFaultError
from moss_engine.api.events import AudioChunk, Event, Sampled
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.cluster.fleet import Answer, Card, Load, Refusal
from moss_engine.models.manifest import folders_digest

FORMAT = 4
"""Of the values that pages and replicas exchange; a change that the other side would not understand
counts it up."""


def fingerprint(info: ServiceInfo, folders: list[Path]) -> str:
    """Hexadecimal; of the format, the runtime's numbers, and the files of checkpoint and codec."""
    runtime = info.runtime
    known = (FORMAT, runtime.name, runtime.dtype, info.sample_rate_hz, info.samples_per_code)
    return folders_digest(folders, repr(known))[:16]


log = logging.getLogger(__name__)

PUSH_S = 0.1
WATCH_S = 60.0
VOICE_KEPT_S = 300.0
"""A visitor's own voice that no reply has used for so long is forgotten; its page teaches it again
when one does."""
SIGN_OF_LIFE_S = 0.5
ROWS_WAIT_S = 0.3
"""Nobody hears or reads a row by itself, and a message costs more than making it."""
CALLS = frozenset(
    {"describe", "encode", "transcribe", "transcribe_partial", "add_voice", "remove_voice"}
)
NOT_BEGUN = "The reply could not be begun; ask for something else."
NOT_DONE = "The recording could not be used; record it again."


@dataclass(frozen=True)
class _Open:
    page: str
    stream: ReplyStream


class ReplicaServer:
    """`service` is started already. All methods belong to one event loop."""

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
        self._open: dict[str, _Open] = {}
        self._heard_s: dict[str, float] = {}  # when a page was last heard from
        self._used_s: dict[str, float] = {}  # by session that has an own voice here
        self._forgetting: set[asyncio.Task[None]] = set()
        self._checking = False

    async def reply(
        self, page: str, request: Request
    ) -> AsyncGenerator[list[Event] | Refusal, None]:
        """See `Remote`."""
        self._hear(page)
        if request.session_id in self._used_s:
            self._used_s[request.session_id] = self._clock()
        try:
            stream = await self._service.submit(request)
        except MossError as error:
            yield Refusal(error)
            return
        except Exception:  # or the page would take this replica, and the next ones, for dead
            log.exception("a request could not be accepted")
            yield Refusal(ReplyFaultError(NOT_BEGUN))
            return
        self._open[request.request_id] = _Open(page, stream)
        try:
            async with aclosing(_batches(stream)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            del self._open[request.request_id]

    async def watch(self, page: str) -> AsyncGenerator[Load, None]:
        """See `Remote`; it ends after a while, for those who listen to ask again, as nobody tells
        a replica that a page has died."""
        self._hear(page)
        before, said_s = None, self._clock()
        end_s = said_s + WATCH_S
        while self._clock() < end_s:
            load = Load(await self.stats(), self._info.max_sessions, self._info.max_waiting)
            told = _without_age(load)
            if told != before or self._clock() - said_s >= SIGN_OF_LIFE_S:
                before, said_s = told, self._clock()
                yield load
            await asyncio.sleep(PUSH_S)

    def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """See `Remote`."""
        self._hear(page)
        for request_id, samples in taken.items():
            if request_id in self._open:
                self._open[request_id].stream.acknowledge(samples)
        for request_id in stopped:
            if request_id in self._open:
                self._open[request_id].stream.cancel()

    async def call(self, page: str, method: str, *arguments: Any) -> Answer:
        """See `Remote`."""
        assert method in CALLS, f"{method} cannot be called from afar"
        if method == "add_voice":  # it may be made although nobody waits for it any more
            self._used_s[arguments[0]] = self._clock()
        self._hear(page)
        try:
            return Answer(await getattr(self._service, method)(*arguments))
        except MossError as error:
            return Answer(error=error)
        except Exception:
            log.exception("%s could not be done", method)
            return Answer(error=EngineFaultError(NOT_DONE))

    async def stats(self) -> ServiceStats:
        return await self._service.stats()

    def _hear(self, page: str) -> None:
        self._heard_s[page] = self._clock()
        if not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_later(PUSH_S, self._end_leases)

    def _end_leases(self) -> None:
        """Stop the replies of pages that are gone, and forget voices that nobody uses; comes again
        while there are pages or voices."""
        now_s = self._clock()
        for page, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > self._info.lease_s:
                del self._heard_s[page]
                for reply in self._open.values():
                    if reply.page == page:
                        reply.stream.cancel()
        for session_id, used_s in list(self._used_s.items()):
            if now_s - used_s > VOICE_KEPT_S:
                del self._used_s[session_id]
                task = asyncio.ensure_future(self._service.remove_voice(session_id))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)
        self._checking = bool(self._heard_s or self._used_s)
        if self._checking:
            asyncio.get_running_loop().call_later(PUSH_S, self._end_leases)


async def _batches(stream: ReplyStream) -> AsyncGenerator[list[Event], None]:
    """The events of a reply, all those at a time that are there, with one chunk of sound at most,
    so that a message stays small. Rows alone wait for ROWS_WAIT_S for company."""
    batch: list[Event] = []
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def gather() -> None:
        sending: asyncio.TimerHandle | None = None
        async with aclosing(stream.events(acknowledge=False)) as events:
            async for event in events:
                batch.append(event)
                if not isinstance(event, Sampled):
                    ready.set()
                elif len(batch) == 1:
                    if sending is not None:
                        sending.cancel()
                    sending = loop.call_later(ROWS_WAIT_S, ready.set)

    gathering = asyncio.ensure_future(gather())
    gathering.add_done_callback(lambda _: ready.set())
    try:
        while True:
            await ready.wait()
            if not batch and gathering.done():
                gathering.result()  # raises what went wrong
                return
            if not batch:  # they went with others meanwhile
                ready.clear()
                continue
            chunk = next((i for i, e in enumerate(batch) if isinstance(e, AudioChunk)), len(batch))
            part = batch[: chunk + 1]
            del batch[: chunk + 1]
            if not batch and not gathering.done():
                ready.clear()
            yield part
    finally:
        gathering.cancel()
        await asyncio.wait({gathering})


def _without_age(load: Load) -> Load:
    return replace(load, stats=replace(load.stats, progress_age_s=0.0, outcomes={}))
