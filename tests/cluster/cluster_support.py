"""A cluster of scripted replicas in one process, and what listeners hear of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from moss_engine.api.events import Event, FinishReason, Placed, Sampled
from moss_engine.api.info import RuntimeInfo, ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import Request
from moss_engine.api.service import stream
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.service import ClusterService
from moss_engine.cluster.values import Card
from moss_engine.codec.base import VoiceCloner
from moss_engine.service.core import ServiceCore
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import ClonedVoices
from tests.cluster.local_fleet import LocalFleet, LocalRemote
from tests.fakes import IDS, FakeCodec, FakeRuntime, make_request
from tests.service.service_support import (
    TALK,
    ask,
    assert_well_formed,
    heard,
    served,
    sound_of,
    talking,
    wait_until,
)

INFO = ServiceInfo(
    runtime=RuntimeInfo("fake", "0", "cpu", "float32", "none"),
    modes=(Mode("speech", "Speech", "text", "speech", "", False, True, None),),
    voices=("plain",),
    sampling=make_request().sampling,
    sample_rate_hz=24_000,
    samples_per_code=960,
    ids=IDS,
    pieces=(),
    max_text_chars=4000,
    max_speech_s=60.0,
    max_sessions=4,
    max_waiting=16,
    kv_rows=1024,
    run_ahead_s=10.0,
    lease_s=10.0,
)
HANGS_S = 3.0


@dataclass
class Cluster:
    service: ClusterService
    fleet: LocalFleet
    cores: dict[str, ServiceCore]

    def hold_back(self, run_ahead_s: float) -> None:
        """From now on replicas make so much more than listeners took, so that a reply of which
        nothing is taken does not end."""
        for core in self.cores.values():
            object.__setattr__(core.config, "run_ahead_s", run_ahead_s)

    def remote(self, name: str) -> LocalRemote:
        return self.fleet.remotes[name]

    def serving(self) -> str:
        """The replica that makes the only reply."""
        names = []

        def found() -> bool:
            names[:] = [n for n, core in self.cores.items() if core.stats().engine.running]
            return bool(names)

        wait_until(found)
        return names[0]


@contextmanager
def clustered(
    num_replicas: int = 2,
    *,
    runtime: Callable[[], FakeRuntime] = talking,
    codec: Callable[[], FakeCodec] = FakeCodec,
    fingerprints: tuple[str, ...] | None = None,
    info: ServiceInfo = INFO,
    patience_s: float = 10.0,
    cloner: VoiceCloner | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Cluster]:
    """A running cluster; when the test is over no replica may hold a block or a place. `clock` is
    that of the replicas."""
    with ExitStack() as stack:
        cores, servers, voice_threads = {}, [], []
        for i in range(num_replicas):
            name = f"replica-{i}"
            core = stack.enter_context(served(runtime(), codec()))
            card = Card(name, fingerprints[i] if fingerprints else "same")
            cores[name] = core
            local = LocalService(core, info, ClonedVoices(cloner) if cloner else None)
            servers.append(ReplicaServer(local, info, card, clock))
            voice_threads.append(local._voice_thread)
        for voice_thread in voice_threads:
            stack.callback(voice_thread.shutdown)
        fleet = LocalFleet(servers)
        service = ClusterService(fleet, hangs_s=HANGS_S, patience_s=patience_s, start_s=10.0)
        try:
            service.start()
            yield Cluster(service, fleet, cores)
        finally:
            service.close()
        assert fleet.closed


async def listen(service: ClusterService, request: Request) -> list[Event]:
    return [event async for event in stream(service, request)]


def hear(service: ClusterService, request: Request) -> list[Event]:
    return asyncio.run(listen(service, request))


def assert_whole(events: list) -> None:
    """As without the fault: nothing is lost, nothing doubled."""
    assert_well_formed(events)
    assert [event.row for event in events if isinstance(event, Sampled)] == TALK
    assert heard(events).tobytes() == sound_of(tuple(TALK)).tobytes()
    assert events[-1].rows == tuple(TALK) and events[-1].reason is FinishReason.STOP


def placements(events: list) -> list[str]:
    return [event.replica for event in events if isinstance(event, Placed)]


def home(cluster: Cluster) -> str:
    """The replica of the session "s"."""
    return placements(hear(cluster.service, ask(session="s", max_rows=2)))[0]
