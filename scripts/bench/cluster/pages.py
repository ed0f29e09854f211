"""Page processes in front of the same replicas, as several are behind one proxy, each with its
share of the listeners; and their listeners seen as one crowd.

Times are those of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from moss_engine.cluster.service import ClusterService
from scripts.bench.cluster.listeners import Crowd, Heard
from scripts.bench.cluster.requests import make_request

JOIN_S, ANSWER_S, LEAVE_S = 120.0, 60.0, 5.0


class Page:
    """A page process that joins the cluster at `address`; `wait` until it is ready."""

    def __init__(self, args: argparse.Namespace, address: str):
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(there, args, address), daemon=True)
        self._process.start()
        there.close()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def wait(self) -> None:
        assert self._here.poll(JOIN_S), "a page did not join the cluster"
        self._here.recv()
        threading.Thread(target=self._read, daemon=True).start()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of its `_Listening`, on any event loop; RuntimeError where it is gone."""
        number = next(self._numbers)
        future = self._asked[number] = Future()
        if not self._process.is_alive():
            raise RuntimeError("a page is gone")
        self._here.send((number, method, *arguments))
        return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_S)

    def close(self) -> None:
        """It leaves the cluster by itself, or is made to."""
        if self._process.is_alive():
            self._here.send((0, "close"))
            self._process.join(LEAVE_S)
        self._process.kill()
        self._process.join()

    def _read(self) -> None:
        while True:
            try:
                number, value = self._here.recv()
            except (EOFError, OSError):
                for future in self._asked.values():
                    future.cancel()
                return
            future = self._asked.pop(number)
            if future.set_running_or_notify_cancel():
                future.set_result(value)


class Crowds:
    """The listeners of several pages, as `Crowd` has those of one: `refresh` brings what they met
    until now."""

    def __init__(self, pages: Sequence[Page], number: int):
        self.heard: list[Heard] = []
        self.arrivals_s: list[float] = []
        self.refused = 0
        self._pages = pages
        self._number = number

    async def begin(self, count: int, per_s: float) -> None:
        """See `Crowd.begin`; the pages share the listeners evenly."""
        num = len(self._pages)
        shares = [count // num + (i < count % num) for i in range(num)]
        await self._each("begin", [(self._number, share, per_s / num) for share in shares])

    async def have_come(self) -> bool:
        return all(await self._each("have_come"))

    async def refresh(self) -> None:
        self._merge(await self._each("found"))

    async def leave(self) -> None:
        """Everybody closes the page; `heard` stays as of the last `refresh`."""
        await self._each("leave")

    async def _each(self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> Any:
        given = arguments or [()] * len(self._pages)
        asked = zip(self._pages, given, strict=True)
        return await asyncio.gather(*(page.ask(method, *values) for page, values in asked))

    def _merge(self, found: Sequence[tuple[list[Heard], list[float], int]]) -> None:
        self.heard = [heard for part, _, _ in found for heard in part]
        self.arrivals_s = [at_s for _, part, _ in found for at_s in part]
        self.refused = sum(refused for _, _, refused in found)


class _Listening:
    """What a page process does when it is told."""

    def __init__(self, args: argparse.Namespace, service: ClusterService):
        self._args = args
        self._service = service
        self._crowd: Crowd | None = None

    async def begin(self, number: int, count: int, per_s: float) -> None:
        if self._crowd is None:
            info = await self._service.describe()
            self._crowd = Crowd(self._service, partial(make_request, self._args, info, number))
        await self._crowd.begin(count, per_s)

    async def have_come(self) -> bool:
        return self._crowd is not None and await self._crowd.have_come()

    async def found(self) -> tuple[list[Heard], list[float], int]:
        crowd = self._crowd
        return (crowd.heard, crowd.arrivals_s, crowd.refused) if crowd else ([], [], 0)

    async def leave(self) -> None:
        if self._crowd is not None:
            await self._crowd.leave()
            self._crowd = None


def _serve(conn: Connection, args: argparse.Namespace, address: str) -> None:
    """The life of a page process."""
    from moss_engine.cluster.serve.connect import join_fleet

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is told by its pipe
    service = ClusterService(join_fleet(address))
    service.start()
    conn.send("ready")
    try:
        asyncio.run(_obey(conn, _Listening(args, service)))
    finally:
        service.close()


async def _obey(conn: Connection, listening: _Listening) -> None:
    while True:
        number, method, *arguments = await asyncio.to_thread(conn.recv)
        if method == "close":
            return
        conn.send((number, await getattr(listening, method)(*arguments)))
