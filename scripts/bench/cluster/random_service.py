"""The service of the full-size network with random weights, in front of whom listeners are counted:
in this process, or as a replica."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from moss_engine.cluster.replica import ReplicaServer
from moss_engine.cluster.serve.deployment import Replica
from moss_engine.cluster.values import Card
from moss_engine.models.config import PUBLISHED
from moss_engine.service.local import LocalService
from scripts.bench.lm import cuda as bench_cuda
from scripts.bench.service.streams import StreamSetup, random_codec, random_service


@dataclass(frozen=True)
class Size:
    """Replies that one step serves, and the rows of every prompt and reply."""

    places: int = 256
    prompt_rows: int = 64
    codes: int = 128

    @property
    def kv_rows(self) -> int:
        """Three times as many replies as places: as many again may be far ahead of their listeners,
        and those of a lost replica come on top."""
        rows_each = -(-(self.prompt_rows + self.codes) // 16) * 16
        return (3 * self.places + 1) * rows_each


def make_service(size: Size) -> tuple[LocalService, ServiceInfo]:
    """On the first GPU that this process sees; not started."""
    device, setup = torch.device("cuda"), StreamSetup(size.prompt_rows, size.codes)
    runtime = bench_cuda.make_runtime(
        PUBLISHED, size.places, size.kv_rows, "none", max(512, size.places), device=device
    )
    core = random_service(PUBLISHED, runtime, random_codec(setup, device), setup)
    info = ServiceInfo(
        runtime=runtime.info,
        modes=PUBLISHED_MODES.modes,
        voices=("random",),
        sampling=PUBLISHED_SAMPLING,
        sample_rate_hz=core.codec.sample_rate_hz,
        samples_per_code=core.samples_per_code,
        ids=PUBLISHED.special,
        pieces=(),
        max_text_chars=4000,
        max_speech_s=60.0,
        max_sessions=core.config.max_sessions,
        max_waiting=core.config.max_waiting,
        kv_rows=size.kv_rows,
        run_ahead_s=core.config.run_ahead_s,
        lease_s=core.config.lease_s,
    )
    return LocalService(core, info), info


class RandomReplica(Replica):
    """The same as a replica; another `version` makes Serve replace it."""

    async def __init__(self, size: Size, version: int) -> None:
        from ray import serve

        self._service, info = make_service(size)
        self._service.start()
        self._name = serve.get_replica_context().replica_id.unique_id
        card = Card(self._name, "random", f"version {version}", os.getpid())
        self._server = ReplicaServer(self._service, info, card)
