"""One reply and the replicas that make it, one after another where one is lost."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from moss_engine.api.errors import (
    BusyError,
    EngineFaultError,
    MossError,
    ReplicasLostError,
    ReplyFaultError,
    ShuttingDownError,
    UnknownVoiceError,
)
from moss_engine.api.events import Event, Failed, Finished, FinishReason, Placed
from moss_engine.api.request import Request
from moss_engine.api.tokens import SpecialIds
from moss_engine.cluster.course import Course
from moss_engine.cluster.fleet import ReplicaLostError
from moss_engine.cluster.members import Member, Members, unless_gone
from moss_engine.cluster.values import Refusal
from moss_engine.service.reply_stream import LocalReplyStream

log = logging.getLogger(__name__)

MAX_DEATHS = 3
"""A reply whose replicas die one after another may be what kills them."""
BETWEEN_TRIES_S = 0.5

Prepare = Callable[[Request, Member, bool], Awaitable[Request]]
Batches = AsyncGenerator[list[Event] | Refusal, None]


class ClusterReply:
    """A reply on its way from replicas to `stream`, its listener's end. `start` begins it, `run`
    is the rest of its life, both on the cluster's event loop.

    `prepare` writes a request as a replica knows it, which is to learn its own voice again where
    the last argument says so. `patience_s` is how long a reply that lost its
    replica waits for another. `member` is where it is made now, under the name `sent_id`, and
    `noted_samples` what it knows the listener to have taken. `cancelled` is set by others,
    `outcome` is a FinishReason's value or "failed" when it is over.
    """

    def __init__(
        self,
        request: Request,
        stream: LocalReplyStream,
        members: Members,
        page: str,
        prepare: Prepare,
        patience_s: float,
        ids: SpecialIds,
    ):
        self.request = request
        self.stream = stream
        self.member: Member | None = None
        self.sent_id = request.request_id
        self.noted_samples = 0
        self.num_resumes = 0
        self.cancelled = self.is_preferred = False
        self.outcome: str | None = None
        self._members = members
        self._page = page
        self._prepare = prepare
        self._patience_s = patience_s
        self._course = Course(request.request_id, ids)
        self._batches: Batches | None = None
        self._first: list[Event] = []
        self._num_asked = self._num_deaths = 0

    async def start(self) -> None:
        """Raises a MossError, with nothing begun, if no replica accepts the request."""
        await self._place()

    async def run(self) -> None:
        """Deliver every event; returns behind the terminal one."""
        try:
            while not self.cancelled and not await self._follow():
                if not self.cancelled:
                    await self._resume()
        except MossError as error:
            self._fail(error)
        except Exception:
            log.exception("a reply is given up")
            self._fail(ReplyFaultError("The reply could not be put together; ask again."))
        finally:
            await _close(self._batches)
            self._leave()
            self.end()

    def _fail(self, error: MossError) -> None:
        num_rows, elapsed_s = self._course.num_rows, self._now_s()
        name = self.request.request_id
        self._put(Failed(name, elapsed_s, num_rows, error.code, str(error)))

    def end(self) -> None:
        """The last word for a reply that has none: it was stopped."""
        rows, elapsed_s = self._course.rows, self._now_s()
        reason = FinishReason.CANCELLED
        self._put(Finished(self.request.request_id, elapsed_s, len(rows), reason, rows))

    async def _place(self) -> None:
        """Have a replica accept the request, or what is left of it."""
        tried: set[str] = set()
        refusal: MossError | None = None
        while order := self._members.in_order(self.request.session_id, tried):
            member = order[0]
            tried.add(member.name)
            try:
                refused = await self._ask(member)
                if isinstance(refused, UnknownVoiceError):  # the replica forgot it
                    refused = await self._ask(member, teaches=True)
            except ReplicaLostError as error:
                self._members.lost(member, error)
                continue
            if refused is None:
                return
            if not isinstance(refused, BusyError | ShuttingDownError | EngineFaultError):
                raise refused
            refusal = refused
        if refusal is None and not self._members.has_ready:
            raise self._members.none_left
        raise refusal or BusyError("All replicas are full; try again in a moment.")

    async def _ask(self, member: Member, *, teaches: bool = False) -> MossError | None:
        """Send the request to a replica; returns its refusal."""
        progress = self._course.progress(self.stream.taken_samples) if self.num_resumes else None
        self._num_asked += 1  # a replica may still be busy with what it was asked before
        self.sent_id = f"{self.request.request_id}~{self._num_asked}{member.name}"
        request = replace(self.request, request_id=self.sent_id, progress=progress)
        member.num_sent += 1
        batches = None
        try:
            request = await unless_gone(member, self._prepare(request, member, teaches))
            batches = member.remote.reply(self._page, request)
            first = await unless_gone(member, anext(batches))
        except MossError as error:  # its own voice was refused
            member.num_sent -= 1
            await _close(batches)
            return error
        except BaseException:
            member.num_sent -= 1
            await _close(batches)
            raise
        if isinstance(first, Refusal):
            member.num_sent -= 1
            await _close(batches)
            return first.error
        self.member, self._batches = member, batches
        self.noted_samples = self.stream.taken_samples if progress else 0
        self._begin(member, first)
        return None

    def _begin(self, member: Member, first: list[Event]) -> None:
        """Tell the listener where the reply is made; what came with that waits for `run`."""
        elapsed_s = self._now_s()
        self._course.begin(elapsed_s, resumes=self.num_resumes > 0)
        self.is_preferred = self._members.is_preferred(self.request.session_id, member)
        placed = Placed(
            self.request.request_id,
            elapsed_s,
            self._course.num_rows,
            member.name,
            self.is_preferred,
            self.num_resumes,
        )
        self._deliver(first[0])  # that it is accepted
        self._put(placed)
        self._first = first[1:]

    async def _follow(self) -> bool:
        """Deliver what the replica sends; whether the reply is over."""
        member, batches = self.member, self._batches
        assert member is not None and batches is not None
        try:
            await unless_gone(member, self._deliver_all(batches))
            return True
        except ReplicaLostError as error:
            if not member.gone.done():
                self._members.lost(member, error)
            self._num_deaths += member.gone.done() and not member.retired
            return False
        finally:
            await _close(batches)
            self._leave()

    async def _deliver_all(self, batches: Batches) -> None:
        """The rest of the first batch and all others; returns behind the terminal event."""
        if self._ends_with(self._first):
            return
        async for batch in batches:
            assert isinstance(batch, list), "a refusal in the middle of a reply"
            if self._ends_with(batch):
                return
        raise ReplicaLostError("it ended a reply without its last word")

    def _ends_with(self, batch: list[Event]) -> bool:
        """Deliver the events; whether the terminal one was among them."""
        for event in batch:
            if isinstance(event, Failed) and event.code == EngineFaultError.code:
                raise ReplicaLostError(event.message)
            self._deliver(event)
            if isinstance(event, Finished | Failed):
                return True
        return False

    async def _resume(self) -> None:
        """Place what is left of the reply, as soon as a replica takes it; or it was stopped."""
        self.num_resumes += 1
        if self._num_deaths > MAX_DEATHS:
            raise ReplicasLostError(
                f"{self._num_deaths} replicas were lost while they made this reply; ask again."
            )
        log.warning("a reply goes on at another replica behind %d rows", self._course.num_rows)
        end_s = self.stream.elapsed_s() + self._patience_s
        while not self.cancelled:
            try:
                await self._place()
                return
            except (BusyError, ShuttingDownError, ReplicasLostError):
                if self._members.cut_off or self.stream.elapsed_s() > end_s:
                    raise
                await self._members.change(BETWEEN_TRIES_S)

    def _now_s(self) -> float:
        return self._course.not_before(self.stream.elapsed_s())

    def _deliver(self, event: Event) -> None:
        told = self._course.take(event)
        if told is not None:
            self._put(told)

    def _put(self, event: Event) -> None:
        if self.stream.put(event) and isinstance(event, Finished | Failed):
            self.outcome = event.reason.value if isinstance(event, Finished) else "failed"

    def _leave(self) -> None:
        if self.member is not None:
            self.member.num_sent -= 1
            self.member = None


async def _close(batches: Batches | None) -> None:
    if batches is not None:
        await batches.aclose()
