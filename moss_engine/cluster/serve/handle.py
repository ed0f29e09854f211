"""The fleet behind a handle of Ray Serve, and whether the head of its cluster is there: by its
port, as a call to a head that is gone hangs, and ends the process behind a minute."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from moss_engine.api.request import Request
from moss_engine.cluster.fleet import (
    Answer,
    Card,
    CutOffError,
    Load,
    Parcel,
    ReplicaAwayError,
    ReplicaLostError,
)
from moss_engine.cluster.serve.deployment import NAME, Elsewhere
from moss_engine.cluster.serve.router import PREFIX

CONNECT_S = 1.0
ASK_S = 0.5
GONE_S = 3.0
"""A head that did not answer for so long, at every attempt, is gone."""


class Head:
    """`address` is host:port."""

    def __init__(self, address: str):
        self.address = address

    async def answers(self) -> bool:
        """Whether somebody listens at its port; nobody does where there is none."""
        host, _, port = self.address.rpartition(":")
        try:
            opening = asyncio.open_connection(host.strip("[]"), int(port))
            _, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, ValueError, asyncio.TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def is_gone(self) -> bool:
        """Takes GONE_S where it is."""
        end_s = time.monotonic() + GONE_S
        while not await self.answers():
            if time.monotonic() > end_s:
                return True
            await asyncio.sleep(ASK_S)
        return False

    async def back(self) -> None:
        """Wait until it answers."""
        while not await self.answers():
            await asyncio.sleep(ASK_S)


log = logging.getLogger(__name__)

CARDS_S = 5.0
NOTE_S = 10.0
LONELY_S = 30.0
"""Without any replica for so long, the head may be another one than that which was joined."""
REJOIN_S = 5.0
GIVE_UP_S = 5.0
PROBES_S = 1.0
"""What the router's questions for the queues of replicas take at most; they outlive their call."""


class Calls:
    """Those of one connection, to be given up together: Serve's router goes on looking for the
    replicas of what it was asked when Ray is shut down."""

    def __init__(self) -> None:
        self._open: set[Any] = set()
        self._given_up = False

    @contextmanager
    def following(self, call: Callable[[], Any]) -> Iterator[Any]:
        """The response of a call, until it has come; raises ReplicaLostError for what went wrong,
        and when calls are given up."""
        if self._given_up:
            raise ReplicaLostError("the connection to its cluster is given up")
        try:
            response = call()
            self._open.add(response)
            try:
                yield response
            finally:
                self._open.discard(response)
        except (RayError, RayServeException) as error:
            first = (str(error).splitlines() or [""])[0]
            raise ReplicaLostError(f"{type(error).__name__}: {first}") from None

    async def give_up(self) -> None:
        """All of them raise; returns when that is heard, or behind GIVE_UP_S."""
        self._given_up = True
        for response in list(self._open):
            response.cancel()
        end_s = time.monotonic() + GIVE_UP_S
        while self._open and time.monotonic() < end_s:
            await asyncio.sleep(0.01)


class HandleRemote:
    """One replica behind the handle."""

    def __init__(self, handle: DeploymentHandle[Any], name: str, calls: Calls):
        self._name = name
        self._calls = calls
        self._one = handle.options(session_id=f"{PREFIX}{name}")
        self._many = handle.options(session_id=f"{PREFIX}{name}", stream=True)

    async def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """See `Remote`."""
        call = partial(self._many.news.remote, self._name, page)
        with self._calls.following(call) as responses:
            try:
                async for value in responses:
                    yield pickle.loads(_checked(value))
            finally:
                responses.cancel()

    async def ask(self, page: str, request: Request) -> None:
        """See `Remote`."""
        await self._result("ask", page, request)

    async def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """See `Remote`."""
        try:
            await asyncio.wait_for(self._result("note", page, taken, stopped), NOTE_S)
        except asyncio.TimeoutError:
            raise ReplicaLostError(f"it took no note for {NOTE_S:g} s") from None

    async def call(self, page: str, method: str, *arguments: Any) -> Answer:
        """See `Remote`."""
        return await self._result("call", page, method, *arguments)

    async def _result(self, method: str, *arguments: Any) -> Any:
        call = partial(self._one.invoke.remote, self._name, method, *arguments)
        with self._calls.following(call) as response:
            return _checked(await response)


class HandleFleet:
    """All replicas behind the handle. `end` is called when the connection is given up, and `join`,
    which raises ConfigError, for another one; without `head` there is only the first."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        end: Callable[[], None],
        head: Head | None = None,
        join: Callable[[], DeploymentHandle[Any]] | None = None,
    ):
        self._handle = handle
        self._end = end
        self._head = head
        self._join = join
        self._met_s: float | None = None
        self._calls = Calls()

    async def cards(self) -> list[Card]:
        """See `Fleet`; replicas that do not answer are none."""
        if self._head is not None and await self._head.is_gone():
            raise CutOffError(f"the head of the Ray cluster at {self._head.address} is gone")
        cards = await self._listed()
        if cards:
            self._met_s = time.monotonic()
        elif self._head and self._met_s and time.monotonic() - self._met_s > LONELY_S:
            raise CutOffError(f"no replica was found for {LONELY_S:g} s")
        return cards

    async def _listed(self) -> list[Card]:
        asked = self._handle.broadcast("card")
        try:
            answers = await asked.results_async(timeout_s=CARDS_S, return_exceptions=True)
        except (TimeoutError, asyncio.TimeoutError, RayError, RayServeException) as error:
            raise ReplicaLostError(f"{type(error).__name__} {error}".strip()) from None
        return [answer for answer in answers if isinstance(answer, Card)]

    async def size(self) -> int:
        """See `Fleet`."""
        try:
            status = await asyncio.to_thread(serve.status)
        except (RayError, RayServeException) as error:
            raise ReplicaLostError(f"{type(error).__name__} {error}".strip()) from None
        if NAME not in status.applications:
            raise ReplicaLostError(f"it runs no {NAME} any more")
        return sum(
            count
            for deployment in status.applications[NAME].deployments.values()
            for state, count in deployment.replica_states.items()
            if state != "STOPPING"
        )

    async def rejoin(self) -> None:
        """See `Fleet`."""
        assert self._head is not None and self._join is not None
        await self._calls.give_up()
        await asyncio.sleep(PROBES_S)
        told = ""
        while True:
            await asyncio.to_thread(self._end)
            await self._head.back()
            try:
                self._handle = await asyncio.to_thread(self._join)
            except Exception as error:  # Ray raises bare ones for a head that is starting
                if str(error) != told:
                    log.warning("%s It is tried again every %g s.", error, REJOIN_S)
                told = str(error)
                await asyncio.sleep(REJOIN_S)
            else:
                self._met_s, self._calls = time.monotonic(), Calls()
                return

    def remote(self, name: str) -> HandleRemote:
        return HandleRemote(self._handle, name, self._calls)

    def close(self) -> None:
        self._end()


def _checked(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        raise ReplicaAwayError("it is not there any more")
    return value
