"""Replicas inside one process, which can be killed, hung and brought back, a cluster of them, and
what listeners hear of it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from moss_engine.api.events import Event, FinishReason, Placed, Sampled
from moss_engine.api.info import ServiceInfo
from moss_engine.cluster import members
from moss_engine.cluster.fleet import Card, Load, Parcel, ReplicaLostError
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.service import ClusterService
from moss_engine.codec.base import VoiceCloner
from moss_engine.service.local import LocalService
from moss_engine.service.reply_stream import LocalReplyStream
from tests.fakes import FakeCodec
from tests.service.service_support import (
    INFO,
    TALK,
    ask,
    assert_well_formed,
    hear,
    heard,
    served,
    sound_of,
    talking,
)


def sent(value: Any) -> Any:
    """A value as it arrives at the other side, after pickling."""
    return pickle.loads(pickle.dumps(value))


class Death(threading.Event):
    """Whether a replica is dead, and how often it has died: by `count` callers notice a death even
    if the replica is back when they look."""

    count = 0

    def set(self) -> None:
        self.count += 1
        super().set()


@dataclass
class LocalRemote:
    """A replica in this process. Tests set `died` and `hangs`; it also dies or hangs after
    `kill_after` or `hang_after` events of replies, which `told` counts. `most_together` is the
    largest number of replies whose news came in one parcel."""

    server: ReplicaServer
    died: Death = field(default_factory=Death)
    hangs: bool = False
    told: int = 0
    kill_after: int | None = None
    hang_after: int | None = None
    most_together: int = 0

    async def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        life = self.died.count
        async with aclosing(self.server.news(page)) as news:
            async for told in news:
                if not isinstance(told, Load):
                    together = len({one.request_id for one in told})
                    self.most_together = max(self.most_together, together)
                for part in [told] if isinstance(told, Load) else [[one] for one in told]:
                    if isinstance(part, list):
                        self.told += 1
                        if self.kill_after is not None and self.told > self.kill_after:
                            self.died.set()
                        self.hangs |= self.hang_after is not None and self.told > self.hang_after
                    await self._lives(life)
                    yield sent(part)

    async def invoke(self, method: str, *arguments: Any) -> Any:
        life = self.died.count
        await self._lives(life)
        answer = getattr(self.server, method)(*sent(arguments))
        answer = await answer if inspect.isawaitable(answer) else answer
        await self._lives(life)
        return sent(answer)

    async def _lives(self, life: int) -> None:
        """Raise if it is dead, or has died since its `life`-th death; does not return while it
        hangs."""
        while not (dead := self.died.is_set() or self.died.count > life) and self.hangs:
            await asyncio.sleep(0.01)
        if dead:
            raise ReplicaLostError("killed")


class LocalFleet:
    """A fleet of `remotes`, by name; it cannot be listed while one hangs, which does not answer."""

    def __init__(self, servers: Sequence[ReplicaServer]):
        self.remotes = {server.card.name: LocalRemote(server) for server in servers}
        self.hidden: set[str] = set()
        self.closed = False

    async def cards(self) -> list[Card]:
        living = [remote for remote in self.remotes.values() if not remote.died.is_set()]
        if any(remote.hangs for remote in living):
            raise ReplicaLostError("one of them does not answer")
        cards = [remote.server.card for remote in living]
        return [card for card in cards if card.name not in self.hidden]

    async def size(self) -> int:
        return len(self.remotes)

    def remote(self, name: str) -> LocalRemote:
        return self.remotes[name]

    def close(self) -> None:
        self.closed = True


@dataclass
class Cluster:
    service: ClusterService
    fleet: LocalFleet
    cores: dict[str, LocalService]

    def hold_back(self, run_ahead_s: float) -> None:
        """From now on replicas make only so much more than listeners have taken, so that a reply of
        which nothing is taken does not end."""
        for core in self.cores.values():
            object.__setattr__(core.config, "run_ahead_s", run_ahead_s)

    def remote(self, name: str) -> LocalRemote:
        return self.fleet.remotes[name]

    async def held(
        self, run_ahead_s: float = 1.0
    ) -> tuple[LocalReplyStream, AsyncGenerator[Event, None], list[Event]]:
        """A reply of the session "s" that does not end before its listener takes something, its
        events, and the first two of them, `Accepted` and `Placed`."""
        self.hold_back(run_ahead_s)
        reply = await self.service.submit(ask(session="s"))
        events = reply.events()
        return reply, events, [await anext(events), await anext(events)]


@contextmanager
def clustered(
    num_replicas: int = 2,
    *,
    codec: Callable[[], FakeCodec] = FakeCodec,
    fingerprints: tuple[str, ...] | None = None,
    info: ServiceInfo = INFO,
    patience_s: float = 10.0,
    hangs_s: float = 3.0,
    cloner: VoiceCloner | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Cluster]:
    """A running cluster; when the test is over no replica may hold a block or a place. `clock` is
    that of the replicas."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(members, "DISCOVER_S", 0.1)
        cores, servers = {}, []
        for i in range(num_replicas):
            name = f"replica-{i}"
            core = stack.enter_context(served(talking(), codec(), info=info, cloner=cloner))
            card = Card(name, fingerprints[i] if fingerprints else "same")
            cores[name] = core
            servers.append(ReplicaServer(core, info, card, clock))
        fleet = LocalFleet(servers)
        service = ClusterService(fleet, hangs_s=hangs_s, patience_s=patience_s, start_s=10.0)
        try:
            service.start()
            yield Cluster(service, fleet, cores)
        finally:
            service.close()
        assert fleet.closed


def assert_whole(events: list) -> None:
    """Assert that a reply is as without the fault: nothing is lost, and nothing comes twice."""
    assert_well_formed(events)
    assert [event.row for event in events if isinstance(event, Sampled)] == TALK
    assert heard(events).tobytes() == sound_of(tuple(TALK)).tobytes()
    assert events[-1].rows == tuple(TALK) and events[-1].reason is FinishReason.STOP


def placements(events: list) -> list[str]:
    return [event.replica for event in events if isinstance(event, Placed)]


def home(cluster: Cluster) -> str:
    """The replica of the session "s"."""
    return placements(hear(cluster.service, ask(session="s", max_rows=2)))[0]
