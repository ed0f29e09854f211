"""The replicas as one page knows them: which there are, how busy they are, which are lost, and
which one serves a conversation: the one that has it cached, unless it is full."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import Any, TypeVar

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event, Failed, Finished
from moss_engine.api.info import EngineStats, ServiceStats
from moss_engine.api.request import Request
from moss_engine.cluster.fleet import (
    Card,
    Fleet,
    Load,
    Parcel,
    Refusal,
    ReplicaAwayError,
    ReplicaLostError,
)


def preferred(session_id: str, names: Sequence[str]) -> str:
    """The replica of a session by rendezvous hashing: the same on every page, and when a replica
    comes or goes only its own sessions move."""
    return max(names, key=lambda name: blake2b(f"{session_id} {name}".encode()).digest())


log = logging.getLogger(__name__)

Result = TypeVar("Result")

DISCOVER_S = 1.0
NOTE_S = 10.0
HANGS_S = 5.0
"""A replica is given up when nothing came from it for so long: a hundred times as long as it is
usually silent."""
LAST_ONE = 3
"""The only replica left is given up after so many times that silence: it may only be slow on a busy
machine, and its replies would have nowhere to go."""
NO_REPLICA = "No replica is running; try again in a moment."
UNHEARD = Load(ServiceStats(EngineStats(*[0] * 7), "unheard", 0.0), 0, 0)
"""The load of a replica that has not told it yet."""


class Member:
    """One replica. `gone` is set, with the reason, when it is lost or leaves; `retired`: it leaves
    on purpose. `load` is the latest; `num_sent` counts the open replies that were sent there;
    `noting` is the latest note of what listeners took, sent at `noted_s`.

    A replica that is `away`, which means no longer listed, gets no new replies; its own news tell
    whether it was taken out or died.
    """

    def __init__(self, card: Card, fleet: Fleet, page: str, now_s: float):
        self.card = card
        self._page = page
        self.name = card.name
        self._remote = fleet.remote(card.name)
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.load = UNHEARD
        self.heard_s = now_s
        self.num_sent = 0
        self.noting: asyncio.Task[None] | None = None
        self.noted_s = 0.0
        self.away = False
        self.retired = False
        self._heard: dict[str, asyncio.Queue[Event | Refusal]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def take(self, parcel: Parcel) -> None:
        """Events of its replies; those of replies that were left are dropped."""
        for news in parcel:
            if news.request_id in self._heard:
                self._heard[news.request_id].put_nowait(news)

    async def reply(self, request: Request) -> AsyncGenerator[Event | Refusal, None]:
        """A `Refusal`, or all events of a reply; leaving early stops it. Waits for ever if the
        replica is gone."""
        name, over = request.request_id, False
        queue = self._heard[name] = asyncio.Queue()
        asked = asyncio.ensure_future(self._remote.invoke("ask", self._page, request))
        try:
            await asyncio.shield(asked)
            while not over:
                news = await queue.get()
                over = isinstance(news, Refusal | Finished | Failed)
                yield news
        finally:
            del self._heard[name]
            if not over:
                stopping = asyncio.ensure_future(self._stop(name, asked))
                self._stopping.add(stopping)
                stopping.add_done_callback(self._stopping.discard)

    async def _stop(self, name: str, asked: asyncio.Future[None]) -> None:
        try:
            await asked  # a call may overtake the one before it
            await self.note({}, (name,))
        except ReplicaLostError:
            return  # then nothing is left to be stopped

    def news(self) -> AsyncGenerator[Load | Parcel, None]:
        """As `Remote.news`."""
        return self._remote.news(self._page)

    async def note(self, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """As `ReplicaServer.note`."""
        noting = self._remote.invoke("note", self._page, taken, stopped)
        try:
            await asyncio.wait_for(noting, NOTE_S)
        except asyncio.TimeoutError:
            raise ReplicaLostError(f"it took no note for {NOTE_S:g} s") from None

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of `SpeechService` at the replica; raises its MossError."""
        answer = await self._remote.invoke("call", self._page, method, *arguments)
        if isinstance(answer, MossError):
            raise answer
        return answer

    def leave(self, why: str, *, retired: bool = False) -> None:
        if not self.gone.done():
            self.retired = retired
            self.gone.set_result(why)

    @property
    def takes(self) -> bool:
        """Whether it accepts requests, even if it is full."""
        return self.load.stats.ready and not (self.gone.done() or self.away)

    @property
    def num_replies(self) -> int:
        """How many replies run or wait there."""
        engine = self.load.stats.engine
        return max(engine.running + engine.waiting, self.num_sent)

    @property
    def is_full(self) -> bool:
        return self.num_replies >= self.load.places + self.load.queue

    @property
    def is_crowded(self) -> bool:
        """Whether the reply that was sent there last has to wait for a place."""
        return self.takes and self.num_replies > self.load.places


class Members:
    """Follows the replicas that have the fingerprint of the first one found. `run` does the work;
    everything belongs to one event loop. `page` is the name of the page that follows them."""

    def __init__(
        self,
        fleet: Fleet,
        page: str,
        *,
        hangs_s: float = HANGS_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.fingerprint: str | None = None
        self.mismatched: frozenset[str] = frozenset()
        self._fleet = fleet
        self._page = page
        self._hangs_s = hangs_s
        self._clock = clock
        self._members: dict[str, Member] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def all(self) -> list[Member]:
        return list(self._members.values())

    async def run(self) -> None:
        """Look for replicas, and give up silent ones, until cancelled."""
        discovering = asyncio.ensure_future(self._discover())
        try:
            while True:
                await asyncio.sleep(min(DISCOVER_S, self._hangs_s) / 4)
                for member in self._hanging():
                    self._leave(member, "it hangs")
        finally:
            tasks = (discovering, *self._watching.values())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _hanging(self) -> list[Member]:
        """The replicas that were silent for too long."""
        now_s = self._clock()
        silent = [member for member in self.all if now_s - member.heard_s > self._hangs_s]
        if any(member.takes for member in self.all if member not in silent):
            return silent
        return [member for member in silent if now_s - member.heard_s > LAST_ONE * self._hangs_s]

    def in_order(
        self, session_id: str, tried: Collection[str], *, full_too: bool = False
    ) -> list[Member]:
        """The replicas to ask, best first: without those in `tried`, and without full ones unless
        `full_too`.

        First the preferred one, if a reply would start there at once, else the least loaded; among
        equals the preferred one.
        """
        asked = [m for m in self.all if m.takes and m.name not in tried]
        own = preferred(session_id, [member.name for member in asked]) if asked else ""

        def rank(member: Member) -> tuple[bool, float, bool]:
            is_own, share = member.name == own, member.num_replies / max(1, member.load.places)
            return not (is_own and share < 1), share, not is_own

        return [member for member in sorted(asked, key=rank) if full_too or not member.is_full]

    def is_preferred(self, session_id: str, member: Member) -> bool:
        return preferred(session_id, [*self._members, member.name]) == member.name

    @property
    def has_ready(self) -> bool:
        """Whether some replica takes requests, be it full."""
        return any(member.takes for member in self.all)

    async def change(self, timeout_s: float) -> None:
        """Wait until a replica comes, goes, or tells another load; not longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return

    def lost(self, member: Member, error: ReplicaLostError) -> None:
        """A call to it failed."""
        if isinstance(error, ReplicaAwayError):
            member.away = True
            self._wake()
        else:
            self._leave(member, f"it is lost: {error}")

    async def _discover(self) -> None:
        while True:
            try:
                self._meet(await self._fleet.cards())
            except ReplicaLostError as error:
                log.warning("the replicas cannot be listed: %s", error)
            except Exception:
                log.exception("the replicas cannot be listed")
            await asyncio.sleep(DISCOVER_S)

    def _meet(self, cards: Collection[Card]) -> None:
        if self.fingerprint is None and cards:
            self.fingerprint = min(cards, key=lambda card: card.name).fingerprint
        others = frozenset(card.name for card in cards if card.fingerprint != self.fingerprint)
        for name in others - self.mismatched:
            log.error(
                "replica %s has another checkpoint, codec or program: it is not used; "
                "start this page again to use its like",
                name,
            )
        self.mismatched = others
        known = {card.name: card for card in cards if card.name not in others}
        for name, card in known.items():
            if name not in self._watching:
                member = Member(card, self._fleet, self._page, self._clock())
                self._watching[name] = asyncio.ensure_future(self._watch(member))
        for member in self.all:
            member.away = member.away or member.name not in known

    async def _watch(self, member: Member) -> None:
        try:
            while not member.gone.done():
                async with aclosing(member.news()) as news:
                    async for told in news:
                        if isinstance(told, Load):
                            self._hear(member, told)
                        else:
                            member.heard_s = self._clock()
                            member.take(told)
                        if member.gone.done():
                            return
        except ReplicaLostError as error:
            self._leave(member, f"it is lost: {error}")
        finally:
            if self._watching.get(member.name) is asyncio.current_task():
                del self._watching[member.name]

    def _hear(self, member: Member, load: Load) -> None:
        if load.stats.state in ("draining", "faulted"):
            retired = load.stats.state == "draining"
            self._leave(member, f"it is {load.stats.state}", retired=retired)
            return
        if member.away:
            self._leave(member, "it was taken out of the cluster", retired=True)
            return
        if member.load is UNHEARD:
            card = member.card
            self._members[member.name] = member
            log.info("replica %s joined (%s, %d)", card.name, card.host, card.pid)
        member.load, member.heard_s = load, self._clock()
        self._wake()

    def _leave(self, member: Member, why: str, *, retired: bool = False) -> None:
        if self._members.get(member.name) is member:
            del self._members[member.name]
            log.warning("replica %s is left: %s", member.name, why)
            watching = self._watching.pop(member.name, None)
            if watching is not None and watching is not asyncio.current_task():
                watching.cancel()
        member.leave(why, retired=retired)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def unless_gone(member: Member, work: Awaitable[Result]) -> Result:
    """The result of `work`; raises ReplicaLostError as soon as the replica is given up."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, member.gone}, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        task.cancel()
        await asyncio.wait({task})  # or a generator that it waits for could not be closed
        raise
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    raise ReplicaLostError(member.gone.result())
