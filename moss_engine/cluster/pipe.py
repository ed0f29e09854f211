"""All replies that a page hears from one replica in one stream: a message costs Ray as much with
news of one reply as with those of a hundred."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from moss_engine.api.events import AudioChunk, Event, Failed, Finished
from moss_engine.api.request import Request
from moss_engine.cluster.fleet import Refusal, ReplicaLostError
from moss_engine.cluster.replica import ReplicaServer

log = logging.getLogger(__name__)

Batch = list[Event] | Refusal
Parcel = list[tuple[str, Batch | None]]
"""Batches by request id, in order; None behind the last one."""
PAUSE_S = 0.004
"""Between two parcels, so that those of many listeners travel together."""
PARCEL_BYTES = 800_000
UNHEARD_S = 10.0


class Outboxes:
    """A replica's ends of the streams of all pages, by the names that pages gave them. Calls may
    come in another order than they were made in, so each of them may be the first of its stream.
    """

    def __init__(self, server: ReplicaServer):
        self._server = server
        self._open: dict[str, Outbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, page: str, stream: str, request: Request) -> None:
        """Begin a reply, which comes by `stream`."""
        self._of(page, stream).ask(request)

    def leave(self, stream: str, request_id: str) -> None:
        """Nobody wants the rest of a reply."""
        if stream in self._open:
            self._open[stream].leave(request_id)

    async def parcels(self, page: str, stream: str) -> AsyncGenerator[Parcel, None]:
        """What comes by `stream`; see `Outbox`."""
        async with aclosing(self._of(page, stream).parcels()) as parcels:
            async for parcel in parcels:
                yield parcel

    def _of(self, page: str, stream: str) -> Outbox:
        if stream not in self._open:
            self._open[stream] = Outbox(self._server, page, lambda: self._open.pop(stream))
        return self._open[stream]


class Outbox:
    """The replica's end. `parcels` is the stream; without one for UNHEARD_S nothing is begun.

    Without a reply for UNHEARD_S it is over, and the stream with it: a page that lives has left it
    by then, and nobody tells a replica that a page has died. `forget` is called once, at the end.
    """

    def __init__(self, server: ReplicaServer, page: str, forget: Callable[[], object]):
        self._server = server
        self._page = page
        self._forget = forget
        self._waiting: Parcel = []
        self._ready = asyncio.Event()
        self._heard = asyncio.Event()
        self._replies: dict[str, asyncio.Task[None]] = {}
        self._over = False
        self._resting: asyncio.TimerHandle
        self._rest()

    def ask(self, request: Request) -> None:
        self._resting.cancel()
        task = asyncio.ensure_future(self._follow(request))
        self._replies[request.request_id] = task
        task.add_done_callback(lambda _: self._followed(request.request_id))

    def leave(self, request_id: str) -> None:
        """Nobody wants the rest of a reply."""
        if request_id in self._replies:
            self._replies[request_id].cancel()

    async def parcels(self) -> AsyncGenerator[Parcel, None]:
        """Until it is left, which stops its replies, or over."""
        self._heard.set()
        try:
            while True:
                await self._ready.wait()
                if not self._waiting:  # it is over
                    return
                parcel = self._take()
                if not self._waiting and not self._over:
                    self._ready.clear()
                yield parcel
                await asyncio.sleep(PAUSE_S)
        finally:
            self._end()

    def _rest(self) -> None:
        self._resting = asyncio.get_running_loop().call_later(UNHEARD_S, self._end)

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._forget()
        self._ready.set()
        self._resting.cancel()
        for task in self._replies.values():
            task.cancel()

    def _take(self) -> Parcel:
        size = count = 0
        for _, batch in self._waiting:
            events = batch if isinstance(batch, list) else []
            size += sum(_num_bytes(e) for e in events if isinstance(e, AudioChunk))
            if count and size > PARCEL_BYTES:
                break
            count += 1
        parcel, self._waiting = self._waiting[:count], self._waiting[count:]
        return parcel

    async def _follow(self, request: Request) -> None:
        try:
            await asyncio.wait_for(self._heard.wait(), UNHEARD_S)
            async with aclosing(self._server.reply(self._page, request)) as batches:
                async for batch in batches:
                    self._put(request.request_id, batch)
        except asyncio.TimeoutError:
            log.warning("a page asked for a reply and does not listen")

    def _followed(self, request_id: str) -> None:
        """Also where the reply was left before its task had begun."""
        del self._replies[request_id]
        self._put(request_id, None)
        if not self._replies and not self._over:
            self._rest()

    def _put(self, request_id: str, batch: Batch | None) -> None:
        self._waiting.append((request_id, batch))
        self._ready.set()


def _num_bytes(chunk: AudioChunk) -> int:
    return chunk.samples.nbytes + (chunk.state.num_bytes if chunk.state else 0)


class Inbox:
    """The page's end, for as long as some reply is heard; `is_open` for another one.

    `parcels` opens the stream, `ask` and `leave` tell the replica.
    """

    def __init__(
        self,
        parcels: Callable[[], AsyncGenerator[Parcel, None]],
        ask: Callable[[Request], Awaitable[None]],
        leave: Callable[[str], Awaitable[None]],
    ):
        self._parcels = parcels
        self._ask = ask
        self._leave = leave
        self._heard: dict[str, asyncio.Queue[Batch | ReplicaLostError | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self.is_open = True

    async def reply(self, request: Request) -> AsyncGenerator[Batch, None]:
        """See `Remote`."""
        name, over = request.request_id, False
        queue = self._heard[name] = asyncio.Queue()
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        asked = self._begin(self._asked(request))
        try:
            while True:
                batch = await queue.get()
                if batch is None or isinstance(batch, ReplicaLostError):
                    over = True
                    if batch is not None:
                        raise batch
                    return
                over = isinstance(batch, Refusal) or isinstance(batch[-1], Finished | Failed)
                yield batch
        finally:
            self._heard.pop(name, None)
            if not over:
                self._begin(self._left(name, asked))
            if not self._heard:
                self.is_open = False
                self._reading.cancel()

    async def _read(self) -> None:
        error = ReplicaLostError("it ended its stream")
        try:
            async with aclosing(self._parcels()) as parcels:
                async for parcel in parcels:
                    for name, batch in parcel:
                        if name in self._heard:
                            self._heard[name].put_nowait(batch)
        except ReplicaLostError as lost:
            error = lost
        finally:
            self.is_open = False
            for queue in self._heard.values():
                queue.put_nowait(error)

    async def _asked(self, request: Request) -> None:
        try:
            await self._ask(request)
        except ReplicaLostError as error:
            if request.request_id in self._heard:
                self._heard[request.request_id].put_nowait(error)

    async def _left(self, name: str, asked: asyncio.Task[None]) -> None:
        try:
            await asked  # a call may overtake the one before it
            await self._leave(name)
        except ReplicaLostError:
            return  # then nothing is left to be stopped

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
