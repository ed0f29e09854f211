"""What /metrics tells of a cluster."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from moss_engine.api.info import ClusterStats, ReplicaStats
from moss_engine.endpoints.replica_figures import ReplicaFigures


def told(figures: tuple[CollectorRegistry, ReplicaFigures], cluster: ClusterStats | None) -> str:
    figures[1].take(cluster)
    return generate_latest(figures[0]).decode()


def test_replicas_that_are_gone_are_told_no_more():
    registry = CollectorRegistry()
    figures = registry, ReplicaFigures(registry)
    assert "moss_speech_replica_replies{" not in told(figures, None)
    a, b = (ReplicaStats(name, "ready", 2, 1, 4, 9) for name in "ab")
    both = told(figures, ClusterStats((a, b), 7, 6, 1))
    assert 'moss_speech_replica_replies{replica="b",state="running"} 2.0' in both
    assert 'moss_speech_replica_kv_blocks{replica="a"} 9.0' in both
    assert 'moss_speech_cluster_replies{what="resumed"} 1.0' in both
    assert 'replica="b"' not in told(figures, ClusterStats((a,), 7, 6, 1))
