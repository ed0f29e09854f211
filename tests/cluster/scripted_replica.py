"""A replica under Ray Serve that says scripted sound at the pace of speech, without models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from moss_engine.api.request import Request
from moss_engine.cluster.fleet import Card
from moss_engine.cluster.replica import ReplicaServer
from tests.ui.page_support import INFO, FakeReply, FakeService, Script

MOST = 512


class ScriptedService(FakeService):
    """A reply takes as many seconds as the question says."""

    async def submit(self, request: Request) -> FakeReply:
        seconds = float(request.messages[-1].content.text)  # type: ignore[union-attr]
        self.script = Script(seconds=seconds, rtf=1.0)
        return await super().submit(request)

    def close(self) -> None:
        """Nothing was opened."""


def scripted_fleet(folder: Path) -> Any:
    """A cluster of this machine with one scripted replica."""
    from ray import serve

    from moss_engine.cluster.serve.connect import serve_here, start_machine
    from moss_engine.cluster.serve.deployment import Replica, as_deployment

    class Scripted(Replica):
        async def __init__(self) -> None:
            self._service: Any = ScriptedService()
            self._name = serve.get_replica_context().replica_id.unique_id
            card = Card(self._name, "scripted", "", os.getpid())
            self._server = ReplicaServer(self._service, INFO, card)

    start_machine(1, 0, folder)
    return serve_here(as_deployment(Scripted, 1, MOST, {"num_cpus": 1}).bind())
