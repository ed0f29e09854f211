"""The service for programs without an event loop of their own.

    with open_service() as service:
        service.say("Good morning.").save("good_morning.wav")
        for event in service.events("How are you?"):
            ...

Calls block the caller's thread, which may run an event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from moss_engine.api.errors import ParameterError, ShuttingDownError, error_of
from moss_engine.api.events import AudioChunk, Event, Failed, TextDelta
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Text
from moss_engine.api.service import SpeechService, request_of, stream
from moss_engine.audio.pcm import save_wav, to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.options import from_values

Result = TypeVar("Result")


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
    own. Close it after the last call."""

    def __init__(self, service: SpeechService):
        self._service = service
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()
        self.info: ServiceInfo = self._wait(service.describe())

    def close(self) -> None:
        """Stop the thread; every later call raises ShuttingDownError."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop.is_closed():
            work.close()
            raise ShuttingDownError("This service is closed; open another one.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
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
            self.info, Text(text), "client", mode=mode, voice=voice, speed=speed, seed=seed
        )
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
            if not self._loop.is_closed():
                self._wait(leaving())


@contextmanager
def open_service(**options: Any) -> Iterator[Client]:
    """A client of a new service in this process, which ends with the `with` block; `options` are
    fields of `EngineConfig`.

    Paths may be strings. Loading takes some seconds, so open it once. Raises ConfigError for a name
    that is no option, and what `build_service` raises.
    """
    service = build_service(from_values(EngineConfig, options))
    with closing(service):
        service.start()
        with closing(Client(service)) as client:
            yield client
