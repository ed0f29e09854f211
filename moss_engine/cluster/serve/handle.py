"""The fleet behind a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from moss_engine.cluster.fleet import Card, Load, Parcel, ReplicaAwayError, ReplicaLostError
from moss_engine.cluster.serve.deployment import NAME, Elsewhere
from moss_engine.cluster.serve.router import PREFIX

CARDS_S = 5.0


class HandleRemote:
    """One replica behind the handle."""

    def __init__(self, handle: DeploymentHandle[Any], name: str):
        self._name = name
        self._one = handle.options(session_id=f"{PREFIX}{name}")
        self._many: Any = handle.options(session_id=f"{PREFIX}{name}", stream=True)

    async def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """See `Remote`."""
        with _ray_errors():
            responses = self._many.news.remote(self._name, page)
            try:
                async for value in responses:
                    yield pickle.loads(_checked(value))
            finally:
                responses.cancel()

    async def invoke(self, method: str, *arguments: Any) -> Any:
        """See `Remote`."""
        with _ray_errors():
            return _checked(await self._one.invoke.remote(self._name, method, *arguments))


class HandleFleet:
    """All replicas behind the handle. `end` is called when the connection is given up."""

    def __init__(self, handle: DeploymentHandle[Any], end: Callable[[], None]):
        self._handle = handle
        self._end = end

    async def cards(self) -> list[Card]:
        """See `Fleet`; replicas that do not answer are none."""
        with _ray_errors():
            asked = self._handle.broadcast("card")
            answers = await asked.results_async(timeout_s=CARDS_S, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, Card)]

    async def size(self) -> int:
        """See `Fleet`."""
        with _ray_errors():
            status = await asyncio.to_thread(serve.status)
        if NAME not in status.applications:
            raise ReplicaLostError(f"it runs no {NAME} any more")
        return sum(
            count
            for deployment in status.applications[NAME].deployments.values()
            for state, count in deployment.replica_states.items()
            if state != "STOPPING"
        )

    def remote(self, name: str) -> HandleRemote:
        return HandleRemote(self._handle, name)

    def close(self) -> None:
        self._end()


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Raises ReplicaLostError for what went wrong with a call."""
    try:
        yield
    except (TimeoutError, asyncio.TimeoutError, RayError, RayServeException) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ReplicaLostError(f"{type(error).__name__} {first}".strip()) from None


def _checked(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        raise ReplicaAwayError("it is not there any more")
    return value
