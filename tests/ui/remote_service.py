"""The scripted service in another process whose clock is a day ahead, and a `SpeechService` that
speaks to it over a pipe: what crosses the boundary are pickled values, nothing else.

    service = RemoteService()          started; its script and records are those of the other side
    page = launch(service, PageConfig(port=port))
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from moss_engine.api.events import AudioChunk, Event, Failed, Finished
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice
from moss_engine.api.transcript import Transcript
from tests.ui.page_support import FakeService, Script

DAY_S = 86_400.0
RECORDS = ("requests", "cancelled", "open", "chunk_ready_s", "asked_s", "encoded", "drained")
SETTINGS = ("script", "drained", "most_messages")


class RemoteReply:
    """`ReplyStream` of a reply in the other process."""

    def __init__(self, service: RemoteService, request_id: str):
        self.request_id = request_id
        self._service = service

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._service.listen(self.request_id, asyncio.get_running_loop(), queue)
        try:
            while True:
                event = await queue.get()
                if acknowledge and isinstance(event, AudioChunk):
                    self.acknowledge(event.start_sample + len(event.samples))
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            self._service.send("leave", self.request_id)

    def cancel(self) -> None:
        self._service.send("cancel", self.request_id)

    def acknowledge(self, samples: int) -> None:
        self._service.send("acknowledge", self.request_id, samples)


class RemoteService:
    """`SpeechService` over a pipe, used on any event loop; and the other side's records and
    settings, as if they were its own."""

    def __init__(self, *args: Any, **values: Any):
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(there, args, values), daemon=True)
        process.start()
        self.__dict__.update(
            _process=process,
            _pipe=here,
            _lock=threading.Lock(),
            _numbers=itertools.count(),
            _answers={},
            _listeners={},
        )
        threading.Thread(target=self._receive, daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        if name not in (*RECORDS, *SETTINGS):
            raise AttributeError(name)
        return self._ask("get", name).result()

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in SETTINGS, f"{name} is no setting of the scripted service"
        self._ask("set", name, value).result()

    def reset(self, script: Script | None = None) -> None:
        self._ask("call", "reset", script).result()

    def sent(self, index: int = -1) -> np.ndarray:
        return self._ask("call", "sent", index).result()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()

    async def describe(self) -> ServiceInfo:
        return await self._await("describe")

    async def submit(self, request: Request) -> RemoteReply:
        await self._await("submit", request)
        return RemoteReply(self, request.request_id)

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        return await self._await("encode", wave, sample_rate_hz)

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        return await self._await("transcribe", wave, sample_rate_hz, timed)

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        return await self._await("transcribe_partial", wave, sample_rate_hz)

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        return await self._await("add_voice", session_id, wave, sample_rate_hz, codes)

    async def remove_voice(self, session_id: str) -> None:
        await self._await("remove_voice", session_id)

    async def cancel_session(self, session_id: str) -> None:
        await self._await("cancel_session", session_id)

    async def stats(self) -> ServiceStats:
        return await self._await("stats")

    async def drain(self, timeout_s: float | None = None) -> None:
        await self._await("drain", timeout_s)

    def send(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send((None, *message))

    def listen(
        self, request_id: str, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event]
    ) -> None:
        self._listeners[request_id] = (loop, queue)
        self.send("listen", request_id)

    async def _await(self, name: str, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._ask("await", name, *arguments))

    def _ask(self, *message: Any) -> Future[Any]:
        number, answer = next(self._numbers), Future()
        self._answers[number] = answer
        with self._lock:
            self._pipe.send((number, *message))
        return answer

    def _receive(self) -> None:
        while True:
            try:
                kind, key, value = self._pipe.recv()
            except (EOFError, OSError):
                return
            if kind == "event":
                loop, queue = self._listeners[key]
                if not loop.is_closed():
                    loop.call_soon_threadsafe(queue.put_nowait, value)
            elif kind == "error":
                self._answers.pop(key).set_exception(value)
            else:
                self._answers.pop(key).set_result(value)


def serve(pipe: Connection, args: tuple[Any, ...], values: dict[str, Any]) -> None:
    """The other process."""
    monotonic = time.monotonic
    time.monotonic = lambda: monotonic() + DAY_S
    asyncio.run(_serve(pipe, FakeService(*args, **values)))


async def _serve(pipe: Connection, service: FakeService) -> None:
    replies: dict[str, Any] = {}
    tasks: dict[str, asyncio.Task[None]] = {}

    async def pump(request_id: str) -> None:
        async for event in replies[request_id].events(acknowledge=False):
            pipe.send(("event", request_id, event))

    async def answer(number: int, how: str, name: str, *arguments: Any) -> None:
        try:
            if how == "get":
                value = getattr(service, name)
            elif how == "set":
                value = setattr(service, name, *arguments)
            else:
                value = getattr(service, name)(*arguments)
                value = await value if how == "await" else value
            if name == "submit":
                replies[value.request_id], value = value, None
            pipe.send(("answer", number, value))
        except Exception as error:
            pipe.send(("error", number, error))

    while True:
        number, how, name, *arguments = await asyncio.to_thread(pipe.recv)
        if number is not None:
            tasks[f"answer {number}"] = asyncio.ensure_future(answer(number, how, name, *arguments))
        elif how == "listen":
            tasks[name] = asyncio.ensure_future(pump(name))
        elif how == "leave":
            tasks[name].cancel()
        else:
            getattr(replies[name], how)(*arguments)
