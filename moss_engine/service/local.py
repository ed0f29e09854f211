"""The service in one process: `SpeechService` over the core's threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from moss_engine.api.errors import UnsupportedModeError
from moss_engine.api.info import MachineLimits, ServiceInfo, ServiceStats
from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice, ReplyStream
from moss_engine.api.transcript import Transcript
from moss_engine.service.core import ServiceCore
from moss_engine.service.recordings import ClonedVoices, Hearing

if TYPE_CHECKING:
    import numpy as np


LOOK_S = 0.2  # between two looks whether the service rests
GAP_S = 0.005  # between two steps, so that a question that comes meanwhile hardly waits
Result = TypeVar("Result")


class LocalService:
    """Used on any number of event loops. `start` it before use and `close` it afterwards.

    `voices` is None where no voice can be made of a recording, `hearing` where no recogniser
    listens, `machine` where its limits are not measured.
    """

    def __init__(
        self,
        core: ServiceCore,
        info: ServiceInfo,
        voices: ClonedVoices | None = None,
        hearing: Hearing | None = None,
        machine: MachineWatch | None = None,
    ):
        self._core = core
        self._info = info
        self._voices = voices
        self._hearing = hearing
        self._machine = machine
        # One at a time: in asyncio's own few threads they would keep requests from being accepted.
        self._voice_thread = ThreadPoolExecutor(1, "voices")
        self._started = False

    def start(self) -> None:
        """Start the threads and accept requests from now on; does nothing the second time."""
        if self._started:
            return
        self._started = True
        self._core.start()
        if self._machine is not None:
            self._machine.start()

    def close(self) -> None:
        """Stop everything now and give back the runtime's memory; blocks."""
        if self._machine is not None:
            self._machine.close()
        self._core.close()
        self._voice_thread.shutdown(cancel_futures=True)
        if self._hearing is not None:
            self._hearing.close()

    async def describe(self) -> ServiceInfo:
        return self._info

    async def submit(self, request: Request) -> ReplyStream:
        """As `SpeechService.submit`; the text is prepared beside the event loop."""
        submitted = asyncio.ensure_future(asyncio.to_thread(self._core.submit, request))
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(_cancel_unheard)
            raise

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        if not self._info.encodes:
            raise UnsupportedModeError(
                "This checkpoint cannot understand recordings; get MOSS-Speech with "
                "python -m scripts.download."
            )
        return await asyncio.wrap_future(self._core.encode(wave, sample_rate_hz))

    async def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
        if self._hearing is None:
            raise UnsupportedModeError(
                self._info.no_recogniser
                or "No recogniser listens here; start the program with --transcribe."
            )
        return await self._hearing.transcribe(wave, sample_rate_hz)

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        if self._hearing is None:
            return None
        return await self._hearing.transcribe_partial(wave, sample_rate_hz)

    async def add_voice(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        if self._voices is None:
            raise UnsupportedModeError(
                "This service speaks with installed voices only; choose one of them."
            )
        arguments = (session_id, wave, sample_rate_hz, codes)
        return await self._beside(self._voices.add, *arguments)

    async def remove_voice(self, session_id: str) -> None:
        if self._voices is not None:
            await self._beside(self._voices.remove, session_id)

    async def _beside(self, work: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._voice_thread, work, *arguments)

    async def cancel_session(self, session_id: str) -> None:
        self._core.cancel_session(session_id)

    async def stats(self) -> ServiceStats:
        stats = self._core.stats()
        return replace(stats, limits=self._machine.limits) if self._machine else stats

    async def drain(self, timeout_s: float | None = None) -> None:
        await asyncio.to_thread(self._core.drain, timeout_s)


def _cancel_unheard(submitted: asyncio.Future[Any]) -> None:
    """The listener left while its request was being accepted."""
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


class MachineWatch:
    """The machine's limits, measured beside the service while nothing is asked of it.

    `steps` gives None until it gives the limits; it goes on only while `rests` says so."""

    def __init__(
        self, steps: Callable[[], Iterator[MachineLimits | None]], rests: Callable[[], bool]
    ):
        self.limits: MachineLimits | None = None
        self._steps = steps
        self._rests = rests
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="machine", daemon=True)

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what was not measured stays unknown."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _measure(self) -> None:
        for limits in self._steps():
            self.limits = limits
            if self._closing.wait(GAP_S):
                return
            while not self._rests():
                if self._closing.wait(LOOK_S):
                    return
