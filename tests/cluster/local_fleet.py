"""A fleet of replicas inside one process, whose members can be killed, hung and brought back."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moss_engine.api.events import Event
from moss_engine.api.request import Request
from moss_engine.cluster.fleet import CutOffError, ReplicaLostError
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.values import Answer, Card, Load, Refusal


def sent(value: Any) -> Any:
    """What arrives of a value on the other side."""
    return pickle.loads(pickle.dumps(value))


class Death(threading.Event):
    """Set while a replica is dead; `count` tells those who were busy with it that it died, even if
    it is back when they look."""

    count = 0

    def set(self) -> None:
        self.count += 1
        super().set()


@dataclass
class LocalRemote:
    """`died` and `hangs` are set by tests; `batches` counts what was delivered, and
    `kill_after` dies behind so many."""

    server: ReplicaServer
    died: Death = field(default_factory=Death)
    hangs: bool = False
    batches: int = 0
    kill_after: int | None = None
    hang_after: int | None = None

    async def reply(
        self, page: str, request: Request
    ) -> AsyncGenerator[list[Event] | Refusal, None]:
        batches, life = self.server.reply(page, sent(request)), self.died.count
        try:
            while True:
                try:
                    batch = await self._reach(anext(batches), life)
                except StopAsyncIteration:
                    return
                self.batches += 1
                if self.kill_after is not None and self.batches > self.kill_after:
                    self.died.set()
                self.hangs |= self.hang_after is not None and self.batches > self.hang_after
                await self._reach(asyncio.sleep(0), life)
                yield sent(batch)
        finally:
            await batches.aclose()

    async def watch(self, page: str, voiced: Sequence[str]) -> AsyncGenerator[Load, None]:
        loads, life = self.server.watch(page, sent(list(voiced))), self.died.count
        try:
            while True:
                try:
                    load = await self._reach(anext(loads), life)
                except StopAsyncIteration:
                    return
                yield sent(load)
        finally:
            await loads.aclose()

    async def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        await self._reach(asyncio.sleep(0), self.died.count)
        self.server.note(page, taken, stopped)

    async def call(self, page: str, method: str, *arguments: Any) -> Answer:
        calling = self.server.call(page, method, *arguments)
        return sent(await self._reach(calling, self.died.count))

    def _is_dead(self, life: int) -> bool:
        return self.died.is_set() or self.died.count > life

    async def _reach(self, work: Any, life: int) -> Any:
        """The result, unless the replica is dead or has died behind its `life`-th death; never
        while it hangs."""
        task, dying = asyncio.ensure_future(work), asyncio.ensure_future(self._death(life))
        try:
            await asyncio.wait({task, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self._is_dead(life):
                raise ReplicaLostError("killed")
            if self.hangs:
                await self._death(life)
                raise ReplicaLostError("killed")
            return task.result()
        finally:
            dying.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _death(self, life: int) -> None:
        """On any event loop, several services may have the same fleet."""
        while not self._is_dead(life):
            await asyncio.sleep(0.01)


class LocalFleet:
    """`remotes` by name; they cannot be listed while one hangs, as it does not answer. While
    `headless` there is no way to more of them; `num_joins` counts the ways that were opened,
    `num_listed` how often somebody asked for the replicas."""

    def __init__(self, servers: Sequence[ReplicaServer]):
        self.remotes = {server.card.name: LocalRemote(server) for server in servers}
        self.hidden: set[str] = set()
        self.closed = self.headless = False
        self.num_joins = 1
        self.num_listed = 0

    async def cards(self) -> list[Card]:
        self.num_listed += 1
        if self.headless:
            raise CutOffError("the head is gone")
        living = [remote for remote in self.remotes.values() if not remote.died.is_set()]
        if any(remote.hangs for remote in living):
            raise ReplicaLostError("one of them does not answer")
        cards = [remote.server.card for remote in living]
        return [card for card in cards if card.name not in self.hidden]

    async def size(self) -> int:
        return len(self.remotes)

    async def rejoin(self) -> None:
        while self.headless:
            await asyncio.sleep(0.01)
        self.num_joins += 1

    def remote(self, name: str) -> LocalRemote:
        return self.remotes[name]

    def close(self) -> None:
        self.closed = True
