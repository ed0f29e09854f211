"""The service for programs without an event loop of their own.

    with open_service() as service:
        service.say("Good morning.").save("good_morning.wav")
        for event in service.events("How are you?"):
            ...

Calls block the caller's thread, which may run an event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
import atexit
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from moss_engine.api.errors import ParameterError, ShuttingDownError, error_of
from moss_engine.api.events import AudioChunk, Event, Failed, Finished, FinishReason, TextDelta
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Text
from moss_engine.api.service import SpeechService, request_of, stream
from moss_engine.audio.pcm import save_wav, to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.options import from_values

Result = TypeVar("Result")
CLOSED = "This service is closed; open another one."


@dataclass(frozen=True)
class Speech:
    """A reply: float32 [samples] mono in [-1, 1], and the words that came with it."""

    samples: np.ndarray
    sample_rate_hz: int
    text: str

    def save(self, path: Path | str) -> None:
        """Write a 16-bit WAV file; raises ConfigError where that cannot be."""
        save_wav(Path(path), to_pcm16(self.samples), self.sample_rate_hz)


class Client:
    """Calls a service from any thread; the coroutines run on an event loop in a thread of their
    own. Close it after the last call, or leave its `with` block: that also calls `ending`."""

    def __init__(self, service: SpeechService, ending: Callable[[], None] = lambda: None):
        self._service, self._ending = service, ending
        self._is_open, self._changing = True, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()
        self.info: ServiceInfo = self._wait(service.describe())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; every later call but this one raises ShuttingDownError."""
        with self._changing:
            if not self._is_open:
                return
            self._is_open = False
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._ending()
        atexit.unregister(self.close)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        with self._changing:
            if not self._is_open:
                work.close()
                raise ShuttingDownError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ShuttingDownError(CLOSED) from None
        finally:
            future.cancel()  # where Ctrl+C ended the wait

    def say(self, text: str, **options: Any) -> Speech:
        """Wait for a whole reply; `options` are those of `events`.

        Raises a MossError, of the class that says why, if the request is refused or fails.
        """
        chunks, words = [np.empty(0, np.float32)], []
        for event in self.events(text, **options):
            if isinstance(event, AudioChunk):
                chunks.append(event.samples)
            elif isinstance(event, TextDelta):
                words.append(event.text)
            elif isinstance(event, Failed):
                raise error_of(event.code, event.message)
            elif isinstance(event, Finished) and event.reason is FinishReason.CANCELLED:
                raise ShuttingDownError(CLOSED)
        return Speech(np.concatenate(chunks), self.info.sample_rate_hz, "".join(words))

    def stats(self) -> ServiceStats:
        return self._wait(self._service.stats())

    def events(
        self,
        text: str,
        *,
        mode: str | None = None,
        voice: str | None = None,
        speed: float = 1.0,
        seed: int = 0,
    ) -> Iterator[Event]:
        """Every event of a reply as it comes; leaving the loop stops the reply.

        `mode` and `voice` are names of `info`, None for its defaults; `speed` lies within
        `info.speeds`; the same seed gives the same reply. Raises a MossError, with nothing begun,
        for what cannot be served.
        """
        names = [known.name for known in self.info.modes]
        if mode is not None and mode not in names:
            raise ParameterError(f"There is no mode {mode!r}; choose one of {', '.join(names)}.")
        request = request_of(
            self.info, Text(text), f"client-{secrets.token_hex(8)}", mode=mode, voice=voice,
            speed=speed, seed=seed,
        )  # fmt: skip
        events, running = stream(self._service, request), asyncio.Lock()

        async def following() -> Event | None:
            async with running:
                return await anext(events, None)

        async def leaving() -> None:
            async with running:  # what Ctrl+C cancelled takes a moment to end
                await events.aclose()

        try:
            while (event := self._wait(following())) is not None:
                yield event
        finally:
            with suppress(ShuttingDownError):  # closed meanwhile
                self._wait(leaving())


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def open_service(**options: Any) -> Client:
    """A client of a new service in this process, which ends with its `with` block, by its `close`,
    or with the program; `options` are fields of `EngineConfig`.

    Paths may be strings. Loading takes some seconds, so open it once. Raises ConfigError for a name
    that is no option, and what `build_service` raises.
    """
    service = build_service(from_values(EngineConfig, options))
    try:
        service.start()
        client = Client(service, service.close)
    except BaseException:
        service.close()
        raise
    atexit.register(client.close)
    return client
