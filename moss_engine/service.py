"""The service: one engine thread, one codec thread, and any number of listeners on any event loop.

    submit -> engine thread -> Sampled, TextDelta ... -> listener
                            -> codes -> codec thread -> AudioChunk ... -> listener

The engine never waits for the codec or for a listener: a turn that is too far ahead of its listener is left out of
steps, which bounds every queue here. Every accepted request gets exactly one terminal event, its last.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import torch

from moss_engine.codec.base import SpeechCodec, samples_per_code
from moss_engine.config import EngineConfig
from moss_engine.engine import FAULT, Engine, EngineStats
from moss_engine.errors import EngineFaultError, ParameterError, ShuttingDownError
from moss_engine.events import Event, Failed, Finished, FinishReason, Sampled
from moss_engine.handle import MAX_UNTAKEN_EVENTS, Handle, Waiter, wake
from moss_engine.request import Request
from moss_engine.speaker import Speaker, failed
from moss_engine.tokens import code_of

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
STALL_S = 10.0


@dataclass(frozen=True)
class ServiceStats:
    """`ready`: requests are accepted and both threads were alive within the last seconds (`progress_age_s`).

    `outcomes` counts requests by the value of their FinishReason, or "failed" or "refused".
    """

    engine: EngineStats
    ready: bool
    progress_age_s: float
    outcomes: dict[str, int]


class Service:
    """Answers requests, many at a time. Made once, where the parts are joined; `start` it before use."""

    def __init__(self, engine: Engine, codec: SpeechCodec, config: EngineConfig, *,
                 clock: Callable[[], float] = time.monotonic):
        self.engine = engine
        self.codec = codec
        self._config = config
        self._clock = clock
        self._samples_per_code = samples_per_code(codec)
        self._handles: dict[str, Handle] = {}
        self._outcomes: Counter[str] = Counter()
        self._changed = threading.Condition(threading.RLock())  # guards handles, outcomes and flags
        self._accepting = self._closing = False
        self._engine_wake = threading.Event()
        self._speaker = Speaker(codec, end=self._end, cancel=self.engine.cancel, clock=clock)
        self._leases_seen_s = begun_s = clock()
        self._codec_settled = threading.Event()
        self._turned_s = {"engine": begun_s, "codec": begun_s}
        self._threads = [threading.Thread(target=self._run, args=(name, turn), name=name, daemon=True)
                         for name, turn in (("codec", self._speaker.turn), ("engine", self._turn_engine))]

    def start(self) -> None:
        """Start both threads and accept requests from now on."""
        for thread in self._threads:
            thread.start()
        self._codec_settled.wait()
        self._accepting = True

    def submit(self, request: Request) -> Handle:
        """Accept a request, from any thread; its events come from `Handle.events`.

        Raises a MossError, with nothing begun, if the request cannot be served: an InputError for what is wrong with
        it, BusyError, ShuttingDownError or EngineFaultError.
        """
        handle = None
        try:
            handle = self._open(request)
            handle.open(self.engine.submit(request))
        except BaseException:
            self._close(handle, "refused")
            raise
        if handle.cancelled:  # while the engine did not know it yet
            self.engine.cancel(request.request_id)
        self._engine_wake.set()
        return handle

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """`submit`, then every event to the terminal one. Leaving early, by break or cancellation, stops the reply."""
        async with aclosing(self.submit(request).events()) as events:
            async for event in events:
                yield event

    def cancel(self, request_id: str) -> None:
        """Stop a reply at once, whatever it is doing; does nothing if it is over or unknown. From any thread."""
        handle = self._handles.get(request_id)
        if handle is not None:
            handle.cancelled = True
            self.engine.cancel(request_id)
            self._engine_wake.set()
            self._speaker.look_at(handle)

    def cancel_session(self, session_id: str) -> None:
        """Stop every reply of a session."""
        for handle in self._open_handles():
            if handle.request.session_id == session_id:
                self.cancel(handle.request_id)

    def stats(self) -> ServiceStats:
        now_s = self._clock()
        age_s = now_s - min(self._turned_s.values())
        with self._changed:
            outcomes, accepting = dict(self._outcomes), self._accepting
        ready = accepting and self.engine.fault is None and age_s < STALL_S
        return ServiceStats(self.engine.stats(), ready, age_s, outcomes)

    def drain(self, timeout_s: float | None = None) -> None:
        """Refuse new requests, give the open ones `timeout_s` (default: `config.drain_s`) to end, then stop the rest.

        Blocks; on return every stream has its terminal event. Not to be called inside a signal handler: it takes locks.
        """
        timeout_s = self._config.drain_s if timeout_s is None else timeout_s
        with self._changed:
            self._accepting = False
            self._changed.wait_for(lambda: not self._handles, timeout_s)
        for handle in self._open_handles():
            self.cancel(handle.request_id)
        with self._changed:
            self._changed.wait_for(lambda: not self._handles, 1.0)
        for handle in self._open_handles():  # a thread hangs in the runtime or the codec
            self._end(handle, Finished(handle.request_id, self._clock(), handle.num_rows, FinishReason.CANCELLED, ()))

    def close(self) -> None:
        """Stop everything now: open replies are cancelled, both threads end, the runtime's memory is given back."""
        self.drain(0.0)
        self._closing = True
        self._engine_wake.set()
        self._speaker.wake()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STALL_S)
        if not any(thread.is_alive() for thread in self._threads):
            self.engine.close()

    def _open(self, request: Request) -> Handle:
        if request.voice is not None and request.voice not in self.codec.voices:
            raise ParameterError(f"voice {request.voice!r} is unknown; choose one of {', '.join(self.codec.voices)}.")
        handle = Handle(request, speaks=self.engine.processor.speaks(request), sample_rate_hz=self.codec.sample_rate_hz,
                        samples_per_code=self._samples_per_code, clock=self._clock, cancel=self.cancel,
                        on_taken=self._engine_wake.set)
        with self._changed:
            if not self._accepting:
                raise ShuttingDownError("The service is shutting down; try again when it is back.")
            if handle.request_id in self._handles:
                raise ParameterError("request_id is that of an open request; give every request its own.")
            self._handles[handle.request_id] = handle
        return handle

    def _open_handles(self) -> list[Handle]:
        with self._changed:
            return list(self._handles.values())

    def _close(self, handle: Handle | None, outcome: str) -> None:
        with self._changed:
            if handle is not None:
                self._handles.pop(handle.request_id, None)
            self._outcomes[outcome] += 1
            self._changed.notify_all()

    def _end(self, handle: Handle, event: Finished | Failed) -> None:
        """Deliver a terminal event, unless the stream already had one."""
        with self._changed:  # whoever has seen the event finds it counted
            if handle.put(dataclasses.replace(event, time_s=self._clock())):
                self._close(handle, event.reason.value if isinstance(event, Finished) else "failed")

    def _run(self, name: str, turn: Callable[[], None]) -> None:
        """A thread's life. Whatever goes wrong in it, no listener is left without a last word."""
        if name == "codec":
            # One core, beside those of the runtime, which sets its own number in the engine thread. PyTorch keeps the
            # number per thread for its own kernels, but for MKL once per process, by whoever set it last: that must be
            # the runtime, so nothing is accepted before this.
            torch.set_num_threads(1)
            self._codec_settled.set()
        try:
            while not self._closing:
                turn()
                self._turned_s[name] = self._clock()
        except Exception:
            log.exception("the %s thread stopped", name)
            self.engine.fault = FAULT
            for handle in self._open_handles():
                self._end(handle, failed(handle, EngineFaultError(FAULT)))

    def _turn_engine(self) -> None:
        self._engine_wake.clear()
        handles, run_ahead_s = self._open_handles(), self._config.run_ahead_s
        self._end_leases(handles)
        paused = {handle.request_id for handle in handles
                  if handle.ahead_s > run_ahead_s or handle.num_untaken > MAX_UNTAKEN_EVENTS}
        result = self.engine.step(paused)
        waiters: list[Waiter] = []
        try:
            for event in result.events:
                self._route(event, waiters)
        finally:
            wake(waiters)
        if not result.num_rows and not result.events:
            self._engine_wake.wait(IDLE_POLL_S)

    def _end_leases(self, handles: list[Handle]) -> None:
        """Stop the replies that nobody listens to; looked for now and then, not at every step."""
        now_s = self._clock()
        if now_s - self._leases_seen_s < IDLE_POLL_S:
            return
        self._leases_seen_s = now_s
        for handle in handles:
            if handle.lease_lost(now_s, self._config.lease_s):
                self.cancel(handle.request_id)

    def _route(self, event: Event, waiters: list[Waiter]) -> None:
        """Send an engine's event on its way: to the listener, with its code to the codec thread."""
        handle = self._handles.get(event.request_id)
        if handle is None:
            return
        handle.num_rows = event.num_rows
        if isinstance(event, Finished) and handle.cancelled:  # it ended by itself, but its sound was dropped
            event = dataclasses.replace(event, reason=FinishReason.CANCELLED)
        if isinstance(event, Finished) and not handle.cancelled and handle.has_sound:
            handle.ending = event
            self._speaker.look_at(handle)
        elif isinstance(event, Finished | Failed):
            self._end(handle, event)
        else:
            handle.put(event, waiters)
        if isinstance(event, Sampled) and handle.speaks:
            code = code_of(event.row, self.engine.processor.ids)
            if code is not None:
                handle.add_code(code)
                self._speaker.look_at(handle)
