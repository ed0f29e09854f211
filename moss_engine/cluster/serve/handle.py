"""The fleet behind a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from moss_engine.api.events import Event
from moss_engine.api.request import Request
from moss_engine.cluster.fleet import ReplicaLostError
from moss_engine.cluster.pipe import Inbox, Parcel
from moss_engine.cluster.serve.deployment import Elsewhere
from moss_engine.cluster.serve.router import PREFIX
from moss_engine.cluster.values import Answer, Card, Load, Refusal

CARDS_S = 5.0
NOTE_S = 10.0


class HandleRemote:
    """One replica behind the handle."""

    def __init__(self, handle: DeploymentHandle[Any], name: str):
        self._name = name
        self._inbox: Inbox | None = None
        self._one = handle.options(session_id=f"{PREFIX}{name}")
        self._many = handle.options(session_id=f"{PREFIX}{name}", stream=True)

    async def reply(
        self, page: str, request: Request
    ) -> AsyncGenerator[list[Event] | Refusal, None]:
        """See `Remote`."""
        if self._inbox is None or not self._inbox.is_open:
            self._inbox = self._open(page, secrets.token_hex(8))
        async with aclosing(self._inbox.reply(request)) as batches:
            async for batch in batches:
                yield batch

    def _open(self, page: str, stream: str) -> Inbox:
        async def parcels() -> AsyncGenerator[Parcel, None]:
            async with aclosing(self._stream("parcels", page, stream)) as values:
                async for value in values:
                    yield pickle.loads(value)

        async def ask(request: Request) -> None:
            await _result(self._one.ask.remote(self._name, page, stream, request))

        async def leave(request_id: str) -> None:
            await _result(self._one.leave.remote(self._name, stream, request_id))

        return Inbox(parcels, ask, leave)

    async def watch(self) -> AsyncGenerator[Load, None]:
        """See `Remote`."""
        async for value in self._stream("watch"):
            yield value

    async def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """See `Remote`."""
        response = self._one.note.remote(self._name, page, taken, stopped)
        try:
            await asyncio.wait_for(_result(response), NOTE_S)
        except asyncio.TimeoutError:
            raise ReplicaLostError(f"it took no note for {NOTE_S:g} s") from None

    async def call(self, method: str, *arguments: Any) -> Answer:
        """See `Remote`."""
        return await _result(self._one.call.remote(self._name, method, *arguments))

    async def retire(self) -> None:
        """Let the pages take its replies elsewhere."""
        await _result(self._one.retire.remote(self._name))

    async def _stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        responses = getattr(self._many, method).remote(self._name, *arguments)
        try:
            while True:
                try:
                    value = await anext(responses)
                except StopAsyncIteration:
                    return
                except (RayError, RayServeException) as error:
                    raise _lost(error) from None
                yield _checked(value)
        finally:
            responses.cancel()


class HandleFleet:
    """All replicas behind the handle. `end` is called when the connection is given up."""

    def __init__(self, handle: DeploymentHandle[Any], end: Callable[[], None]):
        self._handle = handle
        self._end = end

    async def cards(self) -> list[Card]:
        """See `Fleet`; replicas that do not answer are none."""
        asked = self._handle.broadcast("card")
        try:
            answers = await asked.results_async(timeout_s=CARDS_S, return_exceptions=True)
        except (TimeoutError, asyncio.TimeoutError, RayError, RayServeException) as error:
            raise ReplicaLostError(f"{type(error).__name__} {error}".strip()) from None
        return [answer for answer in answers if isinstance(answer, Card)]

    def remote(self, name: str) -> HandleRemote:
        return HandleRemote(self._handle, name)

    def close(self) -> None:
        self._end()


async def _result(response: Any) -> Any:
    try:
        return _checked(await response)
    except (RayError, RayServeException) as error:
        raise _lost(error) from None


def _checked(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        raise ReplicaLostError("it is not there any more")
    return value


def _lost(error: Exception) -> ReplicaLostError:
    return ReplicaLostError(f"{type(error).__name__}: {str(error).splitlines()[0]}")
