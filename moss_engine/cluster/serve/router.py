"""Ray Serve's consistent-hash router, for callers that may also name the replica they want."""

from __future__ import annotations

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, RunningReplica

PREFIX = "replica:"
"""A session id that begins with this names a replica: the page decides by the load that replicas
push, which the router does not know."""


class NamedReplicaRouter(ConsistentHashRouter):
    """Routes by session id, or to the named replica. Where that one is gone it offers another,
    which answers `Elsewhere`; with no offer Serve would search for ever."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        session_id = pending_request.metadata.session_id if pending_request else ""
        if pending_request is not None and session_id.startswith(PREFIX):
            name = session_id.removeprefix(PREFIX)
            named = [r for r in candidate_replicas if r.replica_id.unique_id == name]
            if named:
                pending_request.routing_context.should_backoff = True
                return [named]
        return await super().choose_replicas(candidate_replicas, pending_request)
