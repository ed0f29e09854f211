"""All replies of a page: accepted, noted to their replicas, ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from moss_engine.api.errors import ParameterError, ShuttingDownError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Request
from moss_engine.cluster.fleet import ReplicaLostError
from moss_engine.cluster.members import Member, Members
from moss_engine.cluster.reply import ClusterReply, Prepare
from moss_engine.service.reply_stream import LocalReplyStream

TICK_S = 0.1
SIGN_OF_LIFE_S = 1.0
CLOSED = "The service is shutting down; try again when it is back."


class Replies:
    """Belongs to the cluster's event loop; `run` is its life.

    `num_placed`, `num_preferred` and `num_resumes` count replies that were accepted, those of them
    by the replica that knows their conversation, and how often one went on elsewhere.
    """

    def __init__(
        self,
        members: Members,
        page: str,
        prepare: Prepare,
        info: ServiceInfo,
        patience_s: float,
        clock: Callable[[], float],
    ):
        self.outcomes: Counter[str] = Counter()
        self.num_placed = self.num_preferred = self._num_resumes = 0
        self.draining = False
        self._members = members
        self._page = page
        self._prepare = prepare
        self._info = info
        self._patience_s = patience_s
        self._clock = clock
        self._open: dict[str, ClusterReply] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._noting: dict[str, asyncio.Task[None]] = {}
        self._noted_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def num_resumes(self) -> int:
        return self._num_resumes + sum(reply.num_resumes for reply in self._open.values())

    async def submit(self, request: Request) -> LocalReplyStream:
        """As `SpeechService.submit`."""
        if self.draining:
            raise ShuttingDownError(CLOSED)
        if request.request_id in self._open:
            raise ParameterError(
                "request_id is that of an open request; give every request its own."
            )
        stream = LocalReplyStream(
            request.request_id,
            clock=self._clock,
            cancel=self.cancel,
            on_taken=lambda: None,  # told with the next tick
        )
        reply = ClusterReply(
            request,
            stream,
            self._members,
            self._page,
            self._prepare,
            self._patience_s,
            self._info.ids,
        )
        self._open[request.request_id] = reply
        try:
            await reply.start()
        except BaseException:
            del self._open[request.request_id]
            self.outcomes["refused"] += 1
            raise
        self.num_placed += 1
        self.num_preferred += reply.is_preferred
        task = asyncio.ensure_future(self._run(reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def cancel_session(self, session_id: str) -> None:
        for reply in list(self._open.values()):
            if reply.request.session_id == session_id:
                self._cancel(reply.request.request_id)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new replies, give the open ones `timeout_s`, then stop the rest."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for request_id in list(self._open):
            self._cancel(request_id)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        for reply in list(self._open.values()):
            reply.end()

    async def run(self) -> None:
        """Tell replicas what listeners took, and stop replies that nobody listens to."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._clock()
            for reply in list(self._open.values()):
                if reply.stream.lease_lost(now_s, self._info.lease_s):
                    self._cancel(reply.request.request_id)
            serving = [reply.member for reply in self._open.values() if reply.member]
            members = {member.name: member for member in serving}
            self._noted_s = {n: at_s for n, at_s in self._noted_s.items() if n in members}
            for member in members.values():
                self._note(member, now_s)

    async def _run(self, reply: ClusterReply) -> None:
        try:
            await reply.run()
        finally:
            self._open.pop(reply.request.request_id, None)
            self._num_resumes += reply.num_resumes
            self.outcomes[reply.outcome or "failed"] += 1

    def cancel(self, request_id: str) -> None:
        """Stop a reply; does nothing if it is over or unknown. From any thread."""
        self._loop.call_soon_threadsafe(self._cancel, request_id)

    def _cancel(self, request_id: str) -> None:
        reply = self._open.get(request_id)
        if reply is not None and not reply.cancelled:
            reply.cancelled = True
            if reply.member is not None:
                task = asyncio.ensure_future(self._send(reply.member, {}, (reply.sent_id,)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _note(self, member: Member, now_s: float) -> None:
        """Unless the last note is still on its way."""
        if member.name in self._noting:
            return
        taken = {}
        for reply in self._open.values():
            samples = reply.stream.taken_samples
            if reply.member is member and samples != reply.noted_samples:
                taken[reply.sent_id] = reply.noted_samples = samples
        silent_s = now_s - self._noted_s.get(member.name, 0.0)
        if taken or silent_s > SIGN_OF_LIFE_S:
            self._noted_s[member.name] = now_s
            task = asyncio.ensure_future(self._send(member, taken, ()))
            self._noting[member.name] = task
            task.add_done_callback(lambda _: self._noting.pop(member.name, None))

    async def _send(self, member: Member, taken: dict[str, int], stopped: tuple[str, ...]) -> None:
        try:
            await member.remote.note(self._page, taken, stopped)
        except ReplicaLostError as error:
            self._members.lost(member, error)
