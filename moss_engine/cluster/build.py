"""Where a page and its replicas are joined: options -> fleet -> service."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.build import open_brain, settled, talk_over
from moss_engine.cluster.fleet import Fleet
from moss_engine.cluster.service import ClusterService
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.talk.service import TalkingService

INSTALL = "pip install 'ray[serve]==2.60.0'"


def build_cluster_service(
    config: EngineConfig, talk: TalkConfig, cluster: ClusterConfig, *, clones_voices: bool = False
) -> TalkingService:
    """Somebody to talk to in front of the replicas that `cluster` asks for. Blocks until one is
    ready. Raises ConfigError, MissingPackageError or ReplicasLostError."""
    llm = open_brain(talk)
    fleet = open_fleet(config, talk, cluster, clones_voices=clones_voices)
    below = ClusterService(fleet, drain_s=config.drain_s)
    try:
        below.start()
        return talk_over(below, asyncio.run(below.describe()), llm, config)
    except BaseException:
        below.close()
        raise


def open_fleet(
    config: EngineConfig, talk: TalkConfig, cluster: ClusterConfig, *, clones_voices: bool = False
) -> Fleet:
    """Join the cluster at `cluster.ray_address`, or start `cluster.replicas` on this machine.

    Raises MissingPackageError without Ray, ConfigError for what cannot be started or joined.
    """
    if cluster.replicas and cluster.ray_address:
        raise ConfigError(
            "--replicas starts a cluster, --ray-address uses one that runs; give one of them."
        )
    if find_spec("ray") is None:
        raise MissingPackageError(f"Replicas need Ray; run `{INSTALL}`, or omit this option.")
    switch_off_telemetry()
    # Read when Ray is imported: a call without a cluster would start another one.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    from moss_engine.cluster.serve.connect import join_fleet, start_fleet

    if cluster.ray_address:
        return join_fleet(cluster.ray_address)
    return start_fleet(cluster.replicas, settled(config), talk, clones_voices=clones_voices)
