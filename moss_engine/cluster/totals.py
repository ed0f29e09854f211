"""What several replicas are and do together."""

from __future__ import annotations

from dataclasses import replace

from moss_engine.api.info import ClusterStats, EngineStats, ReplicaStats, ServiceInfo, ServiceStats
from moss_engine.cluster.members import Member, Members
from moss_engine.cluster.replies import Replies


def scaled_info(info: ServiceInfo, num_replicas: int) -> ServiceInfo:
    """The info of one replica with the limits of so many."""
    return replace(
        info,
        max_sessions=info.max_sessions * num_replicas,
        max_waiting=info.max_waiting * num_replicas,
        kv_rows=info.kv_rows * num_replicas,
    )


def total_stats(members: Members, replies: Replies) -> ServiceStats:
    """Sums over the replicas, as of their last push; outcomes are those of this page."""
    loads = [(member, member.load) for member in members.all if member.load is not None]
    engines = [load.stats.engine for _, load in loads]
    engine = EngineStats(
        *(
            sum(getattr(engine, name) for engine in engines)
            for name in EngineStats.__dataclass_fields__
        )
    )
    state = "draining" if replies.draining else "ready" if members.has_ready else "stalled"
    cluster = ClusterStats(
        tuple(_replica(member) for member, _ in loads),
        replies.num_placed,
        replies.num_preferred,
        replies.num_resumes,
    )
    return ServiceStats(
        engine,
        state,
        max((load.stats.progress_age_s for _, load in loads), default=0.0),
        dict(replies.outcomes),
        sum(load.stats.encoding for _, load in loads),
        cluster,
    )


def _replica(member: Member) -> ReplicaStats:
    assert member.load is not None
    stats, places = member.load.stats, member.load.places
    return ReplicaStats(
        member.name, stats.state, stats.engine.running, stats.engine.waiting, places,
        stats.engine.blocks_used,
    )  # fmt: skip
