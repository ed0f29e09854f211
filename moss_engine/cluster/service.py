"""The service in front of several replicas: `SpeechService` over a `Fleet`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from moss_engine.api.errors import CLOSED, ReplicasLostError, ShuttingDownError
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice, ReplyStream
from moss_engine.api.transcript import Transcript
from moss_engine.cluster.fleet import Card, Fleet, ReplicaLostError
from moss_engine.cluster.members import HANGS_S, NO_REPLICA, Member, Members, unless_gone
from moss_engine.cluster.replies import Replies, scaled_info, total_stats
from moss_engine.cluster.voices import OwnVoices

if TYPE_CHECKING:
    import numpy as np

Result = TypeVar("Result")

START_S = 600.0


class ClusterService:
    """Used on any number of event loops. `start` it before use and `close` it afterwards.

    Everything happens on the event loop of a thread of its own, to which `fleet` belongs. A replica
    that is silent for `hangs_s` is given up; a reply without a replica waits for one for
    `patience_s`.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        hangs_s: float = HANGS_S,
        patience_s: float = 30.0,
        start_s: float = START_S,
        drain_s: float = 10.0,
    ):
        self._fleet = fleet
        self._hangs_s = hangs_s
        self._patience_s = patience_s
        self._start_s = start_s
        self._drain_s = drain_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._voices = OwnVoices()
        self._running: list[asyncio.Task[None]] = []
        self._opened: Replies | None = None

    def start(self) -> None:
        """Wait for the first replica and accept requests from now on; raises ReplicasLostError
        where none comes in time. Does nothing the second time."""
        if self._thread.is_alive():
            return
        self._thread.start()
        self._call(self._open()).result()

    def close(self) -> None:
        """Stop every reply now and give up the connection; blocks."""
        if self._thread.is_alive():
            self._call(self._shut()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._fleet.close()

    async def describe(self) -> ServiceInfo:
        return self._info

    async def submit(self, request: Request) -> ReplyStream:
        """As `SpeechService.submit`."""
        try:
            return await self._do(self._replies.submit(request))
        except asyncio.CancelledError:  # it may be accepted already
            self._replies.cancel(request.request_id)
            raise

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        return await self._do(self._ask("encode", wave, sample_rate_hz))

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        return await self._do(self._ask("transcribe", wave, sample_rate_hz, timed))

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        return await self._do(self._ask("transcribe_partial", wave, sample_rate_hz))

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        async def add(member: Member) -> ClonedVoice:
            return await self._voices.add(member, session_id, wave, sample_rate_hz, codes)

        return await self._do(self._at_one(session_id, add))

    async def remove_voice(self, session_id: str) -> None:
        await self._do(self._remove_voice(session_id))

    async def cancel_session(self, session_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed: no reply is open
            self._loop.call_soon_threadsafe(self._replies.cancel_session, session_id)

    async def stats(self) -> ServiceStats:
        return await self._do(self._stats())

    async def replicas(self) -> list[Card]:
        """Who serves now."""
        return [member.card for member in self._members.all]

    async def drain(self, timeout_s: float | None = None) -> None:
        """As `SpeechService.drain`, for the replies of this page; replicas go on."""
        await self._do(self._replies.drain(self._drain_s if timeout_s is None else timeout_s))

    @property
    def _replies(self) -> Replies:
        assert self._opened is not None, "the service was not started"
        return self._opened

    def _call(self, work: Coroutine[Any, Any, Result]) -> Any:
        if self._loop.is_closed():
            work.close()
            raise ShuttingDownError(CLOSED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(self._call(work))

    async def _open(self) -> None:
        self._members = Members(self._fleet, secrets.token_hex(8), hangs_s=self._hangs_s)
        self._running.append(asyncio.ensure_future(self._members.run()))
        end_s = time.monotonic() + self._start_s
        while not self._members.has_ready:
            if time.monotonic() > end_s:
                raise ReplicasLostError(
                    f"No replica became ready within {self._start_s:g} s; look at their logs, in "
                    "Ray's folder or by `ray logs`, and start again."
                )
            await self._members.change(end_s - time.monotonic())
        info: ServiceInfo = await self._ask("describe")
        self._info = scaled_info(info, await self._size())
        self._opened = Replies(self._members, self._voices.prepare, info, self._patience_s)
        self._running.append(asyncio.ensure_future(self._opened.run()))

    async def _size(self) -> int:
        """How many replicas are there or starting: the page lets in as many visitors as they may
        have."""
        try:
            return max(len(self._members.all), await self._fleet.size())
        except ReplicaLostError as error:
            raise ReplicasLostError(
                f"The cluster does not say how many replicas it has ({error}); start again."
            ) from None

    async def _shut(self) -> None:
        if self._opened is not None:
            await self._opened.drain(0.0)
        await _cancel_others()
        await self._loop.shutdown_asyncgens()
        await _cancel_others()  # what began as generators were closed
        await self._loop.shutdown_default_executor()

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """A call that any replica can answer."""
        return await self._at_one(
            secrets.token_hex(4), lambda member: member.call(method, *arguments)
        )

    async def _at_one(self, session_id: str, work: Callable[[Member], Awaitable[Result]]) -> Result:
        """The result of `work` at one replica, or at another if that one is lost."""
        tried: set[str] = set()
        while order := self._members.in_order(session_id, tried, full_too=True):
            tried.add(order[0].name)
            try:
                return await unless_gone(order[0], work(order[0]))
            except ReplicaLostError as error:
                self._members.lost(order[0], error)
        raise ReplicasLostError(NO_REPLICA)

    async def _remove_voice(self, session_id: str) -> None:
        names = self._voices.remove(session_id)
        for member in self._members.all:
            if member.name in names:
                try:
                    await unless_gone(member, member.call("remove_voice", session_id))
                except ReplicaLostError as error:
                    self._members.lost(member, error)

    async def _stats(self) -> ServiceStats:
        return total_stats(self._members, self._replies)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
