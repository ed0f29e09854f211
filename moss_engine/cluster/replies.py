"""The replies of a page: what each listener has received, the replicas that make a reply one after
another, and the work that is done for all open replies together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from moss_engine.api.errors import (
    BusyError,
    EngineFaultError,
    MossError,
    ReplicasLostError,
    ReplyFaultError,
    ShuttingDownError,
    UnknownVoiceError,
)
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Failed,
    Finished,
    Placed,
    Sampled,
    Started,
    TextDelta,
    Waiting,
)
from moss_engine.api.info import ClusterStats, EngineStats, ReplicaStats, ServiceInfo, ServiceStats
from moss_engine.api.request import Progress, Request, SpeechState
from moss_engine.api.tokens import Row, SpecialIds, code_of
from moss_engine.cluster.fleet import Refusal, ReplicaLostError
from moss_engine.cluster.members import NO_REPLICA, Member, Members, unless_gone
from moss_engine.service.replies import OpenReplies, OpenReply
from moss_engine.service.reply_stream import LocalReplyStream


class ReplyProgress:
    """Joins the events of a reply's successive replicas into those of one reply. Times are counted
    from its first acceptance."""

    def __init__(self, request_id: str, ids: SpecialIds) -> None:
        self._request_id = request_id
        self._ids = ids
        self._codes: list[int] = []
        self._rows: list[Row] = []
        self._num_samples = self._num_chars = 0
        self._state: SpeechState | None = None
        self._began_s = 0.0
        self._latest_s = {True: 0.0, False: 0.0}  # of sound, of all else
        self._held_s = self._held_before_s = 0.0
        self._resumes = False

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows)

    def begin(self, elapsed_s: float, *, resumes: bool) -> None:
        """The next events count their time from now; `resumes`: a reply that began elsewhere is
        continued."""
        self._began_s, self._held_before_s, self._resumes = elapsed_s, self._held_s, resumes

    def not_before(self, elapsed_s: float, *, sound: bool = False) -> float:
        """A time for the next event that is not before the last one: messages of replicas may take
        longer or shorter. Sound comes from another thread and has its own order."""
        self._latest_s[sound] = max(elapsed_s, self._latest_s[sound])
        return self._latest_s[sound]

    def progress(self, num_taken: int) -> Progress:
        codes, sent = tuple(self._codes), self._num_samples
        return Progress(self.rows, codes, sent, self._num_chars, num_taken, self._state)

    def take(self, event: Event) -> Event | None:
        """The event as the listener gets it; None where that knows it already."""
        if isinstance(event, Accepted):
            return None if self._resumes else replace(event, request_id=self._request_id)
        if isinstance(event, Started) and self._resumes:
            return None
        is_sound = isinstance(event, AudioChunk)
        time_s = self.not_before(self._began_s + event.time_s, sound=is_sound)
        known: dict[str, Any] = {"request_id": self._request_id, "time_s": time_s}
        if isinstance(event, Sampled | AudioChunk):
            self._held_s = self._held_before_s + event.held_s
            known["held_s"] = self._held_s
        if isinstance(event, Sampled):
            self._rows.append(event.row)
            code = code_of(event.row, self._ids)
            self._codes += event.silence if code is None else (code, *event.silence)
            assert event.num_rows == self.num_rows, "a row is lost or came twice"
        elif isinstance(event, AudioChunk):
            assert event.start_sample == self._num_samples, "sound is lost or came twice"
            self._num_samples += len(event.samples)
            self._state, known["state"] = event.state, None
        elif isinstance(event, TextDelta):
            self._num_chars += len(event.text)
        elif isinstance(event, Finished):
            known["rows"] = self.rows
        return replace(event, num_rows=self.num_rows, **known)


log = logging.getLogger(__name__)

MAX_DEATHS = 3
"""After so many deaths of replicas a reply is given up: it may be what kills them."""
BETWEEN_TRIES_S = 0.5

Prepare = Callable[[Request, Member, bool], Awaitable[Request]]
News = AsyncGenerator[Event | Refusal, None]


class ClusterReply(OpenReply):
    """A reply on its way from replicas to its listener. `place` finds its first replica, `run` does
    the rest; both run on the cluster's event loop.

    `member` makes it now, under the name `sent_id`, and knows that the listener has taken
    `noted_samples`.
    """

    def __init__(self, request: Request, stream: LocalReplyStream, replies: Replies):
        super().__init__(request, stream, None)
        self._replies, self._members = replies, replies.members
        self.member: Member | None = None
        self.sent_id = request.request_id
        self.noted_samples = 0
        self.num_resumes = 0
        self.is_preferred = False
        self._course = ReplyProgress(request.request_id, replies.info.ids)
        self._news: News | None = None
        self._num_asked = self._num_deaths = 0

    async def run(self) -> None:
        """Deliver every event; returns behind the terminal one."""
        try:
            while not self.cancelled and not await self._follow():
                if not self.cancelled:
                    await self._resume()
        except MossError as error:
            self._put(self.failed(error))
        except Exception:
            log.exception("a reply is given up")
            fault = ReplyFaultError("The reply could not be put together; ask again.")
            self._put(self.failed(fault))
        finally:
            await _close(self._news)
            self._leave()
            self._put(self.stopped())  # unless it had its last word

    @property
    def rows(self) -> tuple[Row, ...]:
        return self._course.rows

    async def place(self) -> None:
        """Have a replica accept the request, or the rest of it; raises a MossError, with nothing
        begun, if none does."""
        tried: set[str] = set()
        refusal: MossError | None = None
        session_id, goes_on = self.request.session_id, self.num_resumes > 0
        while order := self._members.in_order(session_id, tried, full_too=goes_on):
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
            raise ReplicasLostError(NO_REPLICA)
        raise refusal or BusyError("All replicas are full; try again in a moment.")

    async def _ask(self, member: Member, *, teaches: bool = False) -> MossError | None:
        """Send the request to a replica; returns its refusal."""
        progress = self._course.progress(self.stream.taken_samples) if self.num_resumes else None
        self._num_asked += 1  # a replica may still be busy with what it was asked before
        self.sent_id = f"{self.request_id}~{self._num_asked}{member.name}"
        request = replace(self.request, request_id=self.sent_id, progress=progress, moves=True)
        member.num_sent += 1
        news = None
        try:
            request = await unless_gone(member, self._replies.prepare(request, member, teaches))
            news = member.reply(request)
            first = await unless_gone(member, anext(news))
            if isinstance(first, Refusal):
                raise first.error
        except BaseException as error:
            member.num_sent -= 1
            await _close(news)
            if isinstance(error, MossError):  # or its own voice was refused
                return error
            raise
        self.member, self._news = member, news
        self.noted_samples = self.stream.taken_samples if progress else 0
        self._begin(member, first)
        return None

    def _begin(self, member: Member, accepted: Event) -> None:
        """Tell the listener where the reply is made."""
        elapsed_s = self._now_s()
        self._course.begin(elapsed_s, resumes=self.num_resumes > 0)
        self.is_preferred = self._members.is_preferred(self.request.session_id, member)
        placed = Placed(
            self.request_id,
            elapsed_s,
            self._course.num_rows,
            member.name,
            self.is_preferred,
            self.num_resumes,
        )
        self._deliver(accepted)
        self._put(placed)
        if self.num_resumes and member.is_crowded:
            self._wait()

    async def _follow(self) -> bool:
        """Deliver what the replica sends; whether the reply is over."""
        member, news = self.member, self._news
        assert member is not None and news is not None
        try:
            await unless_gone(member, self._deliver_all(news))
            return True
        except ReplicaLostError as error:
            if not member.gone.done():
                self._members.lost(member, error)
            self._num_deaths += member.gone.done() and not member.retired
            return False
        finally:
            await _close(news)
            self._leave()

    async def _deliver_all(self, news: News) -> None:
        """Every event to the terminal one."""
        async for event in news:
            if isinstance(event, Refusal):
                raise event.error
            if isinstance(event, Failed) and event.code == EngineFaultError.code:
                raise ReplicaLostError(event.message)
            self._deliver(event)

    async def _resume(self) -> None:
        """Place the rest of the reply as soon as a replica takes it, unless it is stopped."""
        self.num_resumes += 1
        self._replies.num_resumes += 1
        if self._num_deaths > MAX_DEATHS:
            raise ReplicasLostError(
                f"{self._num_deaths} replicas were lost while they made this reply; ask again."
            )
        log.warning("a reply goes on at another replica behind %d rows", self._course.num_rows)
        end_s, waits = self.stream.elapsed_s() + self._replies.patience_s, False
        while not self.cancelled:
            try:
                await self.place()
                return
            except (BusyError, ShuttingDownError, ReplicasLostError):
                if self.stream.elapsed_s() > end_s:
                    raise
                if not waits:
                    self._wait()
                waits = True
                await self._members.change(BETWEEN_TRIES_S)

    def _wait(self) -> None:
        self._put(Waiting(self.request_id, self._now_s(), self._course.num_rows))

    def _now_s(self) -> float:
        return self._course.not_before(self.stream.elapsed_s())

    def _deliver(self, event: Event) -> None:
        told = self._course.take(event)
        if told is not None:
            self._put(told)

    def _put(self, event: Event) -> None:
        if isinstance(event, Finished | Failed):
            time_s = self._course.not_before(event.time_s)
            self._replies.open.finish(replace(event, time_s=time_s))
        else:
            self.stream.put(event)

    def _leave(self) -> None:
        if self.member is not None:
            self.member.num_sent -= 1
            self.member = None


async def _close(news: News | None) -> None:
    if news is not None:
        await news.aclose()


TICK_S = 0.1
SIGN_OF_LIFE_S = 1.0


class Replies:
    """All open replies of the page. Belongs to the cluster's event loop, on which `run` does the
    work.

    `num_placed` replies were accepted, `num_preferred` of them by the replica that has their
    conversation cached; `num_resumes` times one was continued by another replica. `prepare` gives a
    request the name that its own voice has at a replica, and sends the voice there again if the
    last argument says so; a reply that lost its replica waits for another for `patience_s`.
    """

    def __init__(self, members: Members, prepare: Prepare, info: ServiceInfo, patience_s: float):
        self.num_placed = self.num_preferred = self.num_resumes = 0
        self.open = OpenReplies[ClusterReply]()
        self.open.accepting = True
        self.members = members
        self.prepare = prepare
        self.info = info
        self.patience_s = patience_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def submit(self, request: Request) -> LocalReplyStream:
        """As `SpeechService.submit`."""
        stream = LocalReplyStream(
            request.request_id,
            clock=time.monotonic,
            cancel=self.cancel,
            on_taken=lambda: None,  # told with the next tick
        )
        reply = ClusterReply(request, stream, self)
        self.open.add(reply)
        try:
            await reply.place()
        except BaseException:
            self.open.refuse(reply)
            raise
        self.num_placed += 1
        self.num_preferred += reply.is_preferred
        self._start(reply.run())
        return stream

    def cancel_session(self, session_id: str) -> None:
        for reply in self.open.all():
            if reply.request.session_id == session_id:
                self._cancel(reply.request_id)

    async def drain(self, timeout_s: float) -> None:
        """As `OpenReplies.drain`."""
        await asyncio.to_thread(self.open.drain, timeout_s, self.cancel)
        if self._tasks:  # replicas are told meanwhile
            await asyncio.wait(self._tasks, timeout=1.0)

    async def run(self) -> None:
        """Tell replicas what listeners have taken, and stop replies that nobody listens to."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            replies = self.open.all()
            for reply in replies:
                if reply.stream.lease_lost(now_s, self.info.lease_s):
                    self._cancel(reply.request_id)
            for member in {reply.member for reply in replies if reply.member}:
                self._note(member, now_s)

    def cancel(self, request_id: str) -> None:
        """Stop a reply; does nothing if it is over or unknown. From any thread."""
        self._loop.call_soon_threadsafe(self._cancel, request_id)

    def _cancel(self, request_id: str) -> None:
        reply = self.open.get(request_id)
        if reply is not None and not reply.cancelled:
            reply.cancel("stopped")
            if reply.member is not None:
                self._start(self._send(reply.member, {}, (reply.sent_id,)))

    def _note(self, member: Member, now_s: float) -> None:
        """Send a note, unless the last one is still on its way."""
        if member.noting is not None and not member.noting.done():
            return
        taken = {}
        for reply in self.open.all():
            samples = reply.stream.taken_samples
            if reply.member is member and samples != reply.noted_samples:
                taken[reply.sent_id] = reply.noted_samples = samples
        if taken or now_s - member.noted_s > SIGN_OF_LIFE_S:
            member.noted_s = now_s
            member.noting = self._start(self._send(member, taken, ()))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, member: Member, taken: dict[str, int], stopped: tuple[str, ...]) -> None:
        try:
            await member.note(taken, stopped)
        except ReplicaLostError as error:
            self.members.lost(member, error)


def scaled_info(info: ServiceInfo, num_replicas: int) -> ServiceInfo:
    """The info of one replica, with the limits of so many together."""
    return replace(
        info,
        max_sessions=info.max_sessions * num_replicas,
        max_waiting=info.max_waiting * num_replicas,
        kv_rows=info.kv_rows * num_replicas,
    )


def total_stats(members: Members, replies: Replies) -> ServiceStats:
    """Sums over the replicas, as each reported last."""
    stats = [member.load.stats for member in members.all]
    names = EngineStats.__dataclass_fields__
    engine = EngineStats(*(sum(getattr(one.engine, name) for one in stats) for name in names))
    state = "ready" if members.has_ready else "stalled"
    state = state if replies.open.accepting else "draining"
    cluster = ClusterStats(
        tuple(map(_replica, members.all)),
        replies.num_placed,
        replies.num_preferred,
        replies.num_resumes,
    )
    age_s = max((one.progress_age_s for one in stats), default=0.0)
    return ServiceStats(engine, state, age_s, cluster)


def _replica(member: Member) -> ReplicaStats:
    stats, places = member.load.stats, member.load.places
    return ReplicaStats(
        member.name, stats.state, stats.engine.running, stats.engine.waiting, places,
        stats.engine.blocks_used,
    )  # fmt: skip
