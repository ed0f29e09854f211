"""Figures of a cluster's replicas for Prometheus, out of the page's last look at them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from moss_engine.api.info import ClusterStats

PREFIX = "moss_speech"


class ReplicaFigures:
    """Nothing is told where there is no cluster."""

    def __init__(self, registry: CollectorRegistry):
        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", help, labels, registry=registry)

        self._replies = gauge(
            "replica_replies", "Replies that run or wait at a replica.", "replica", "state"
        )
        self._places = gauge("replica_places", "Replies that a replica can run.", "replica")
        self._blocks = gauge("replica_kv_blocks", "KV blocks in use at a replica.", "replica")
        self._counts = gauge(
            "cluster_replies",
            "Replies of this page: placed, at the replica that knows their conversation "
            "(preferred), and gone on elsewhere (resumed).",
            "what",
        )

    def take(self, cluster: ClusterStats | None) -> None:
        """The values of this moment; replicas that are gone are told no more."""
        if cluster is None:
            return
        for gauge in (self._replies, self._places, self._blocks):
            gauge.clear()
        for replica in cluster.replicas:
            self._replies.labels(replica.name, "running").set(replica.running)
            self._replies.labels(replica.name, "waiting").set(replica.waiting)
            self._places.labels(replica.name).set(replica.places)
            self._blocks.labels(replica.name).set(replica.blocks_used)
        self._counts.labels("placed").set(cluster.num_placed)
        self._counts.labels("preferred").set(cluster.num_preferred)
        self._counts.labels("resumed").set(cluster.num_resumes)
