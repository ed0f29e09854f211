"""Replies of which a replica tells everything, or what went wrong, with its first words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from moss_engine.api.events import Event
from moss_engine.api.request import Request
from tests.cluster.cluster_support import Cluster, assert_whole, clustered, hear, home, placements
from tests.service.service_support import ask, broken, wait_until


def deliver_at_once(cluster: Cluster) -> None:
    """Replicas send every reply in one batch, from its first word to its last."""

    def in_one(reply: Callable) -> Callable:
        async def at_once(page: str, request: Request) -> AsyncGenerator[list[Event], None]:
            yield [event async for batch in reply(page, request) for event in batch]

        return at_once

    for remote in cluster.fleet.remotes.values():
        remote.reply = in_one(remote.reply)  # type: ignore[method-assign]


def test_a_reply_that_is_over_when_it_is_heard_of_leaves_no_replica():
    with clustered() as cluster:
        deliver_at_once(cluster)
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert len(placements(events)) == 1
        wait_until(lambda: asyncio.run(cluster.service.stats()).outcomes)
        stats = asyncio.run(cluster.service.stats()).cluster
        assert stats is not None and (len(stats.replicas), stats.num_resumes) == (2, 0)


def test_an_engine_that_failed_when_its_reply_is_heard_of_is_the_loss_of_its_replica():
    with clustered() as cluster:
        deliver_at_once(cluster)
        first = home(cluster)
        cluster.cores[first].engine.runtime.before_forward = broken(RuntimeError("a runtime"))
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert len(placements(events)) == 2
