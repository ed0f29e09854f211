"""The service in one process: `SpeechService` over an engine's thread and a codec's."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from moss_engine.api.errors import (
    CLOSED,
    ContextError,
    EngineFaultError,
    MossError,
    ShuttingDownError,
    UnknownVoiceError,
    UnsupportedModeError,
)
from moss_engine.api.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    TextDelta,
)
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.request import Progress, Request, without_older_half
from moss_engine.api.service import ClonedVoice
from moss_engine.api.tokens import code_of
from moss_engine.api.transcript import Transcript
from moss_engine.codec.base import SpeechCodec
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import FAULT, Engine, StepResult
from moss_engine.service.recordings import ClonedVoices, SpeechEncoder, Transcriber
from moss_engine.service.replies import OpenReplies, OpenReply
from moss_engine.service.reply_stream import LocalReplyStream, Waiter, wake
from moss_engine.service.speech_worker import SpeechJob, SpeechWorker

if TYPE_CHECKING:
    import numpy as np

Result = TypeVar("Result")

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
STALL_S = 10.0
MOST_REST_S = 0.02


class LocalService:
    """Made once, where the parts are joined, and used on any number of event loops. `start` it
    before use and `close` it afterwards; no call waits for a step of the engine.

    `info` describes these parts. With `network_voices` requests choose among the network's voices,
    else among the codec's, which may change meanwhile. `voices` is None where no voice can be made
    of a recording, `transcriber` where there is no recogniser. Where runtime and codec share
    `one_gpu`, steps that nobody needs wait while a first sound is being made.
    """

    def __init__(
        self,
        engine: Engine,
        codec: SpeechCodec,
        config: EngineConfig,
        info: ServiceInfo,
        voices: ClonedVoices | None = None,
        transcriber: Transcriber | None = None,
        *,
        network_voices: bool = False,
        one_gpu: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.engine = engine
        self.codec = codec
        self.config = config
        self.info = info
        self._voices = voices
        self._transcriber = transcriber
        self._network_voices = network_voices
        self._one_gpu = one_gpu
        self._clock = clock
        self._replies = OpenReplies[OpenReply]()
        self._closing = False
        self._engine_wake = threading.Event()
        self._worker = SpeechWorker(
            codec,
            finish=self._replies.finish,
            fail=self._fail,
            on_first_sound=self._engine_wake.set,
            one_gpu=one_gpu,
        )
        # One at a time: in many threads they would hold Python's lock against the event loop.
        self.accept_thread = ThreadPoolExecutor(1, "accepting")
        self._voice_thread = ThreadPoolExecutor(1, "voices")
        self._encoder = SpeechEncoder(codec.encode, on_fault=self._stop_with_fault)
        self._leases_checked_s = begun_s = clock()
        self._codec_settled = threading.Event()
        self._ran_s = {"engine": begun_s, "codec": begun_s}
        self._threads = [
            threading.Thread(target=self._run, args=(name, run_once), name=name, daemon=True)
            for name, run_once in (("codec", self._worker.run_once), ("engine", self._run_engine))
        ]

    def start(self) -> None:
        """Start the threads and accept requests from now on; does nothing the second time."""
        if self._codec_settled.is_set():
            return
        for thread in self._threads:
            thread.start()
        self._codec_settled.wait()
        self._replies.accepting = True

    def close(self) -> None:
        """Stop everything now: open replies are cancelled, the threads end, the runtime's memory is
        given back. Blocks."""
        self._drain(0.0)
        self._closing = True
        self._engine_wake.set()
        self._worker.wake()
        self._encoder.close()
        for executor in (self.accept_thread, self._voice_thread):
            executor.shutdown(cancel_futures=True)
        for thread in filter(lambda thread: thread.ident, self._threads):
            thread.join(STALL_S)
        if not any(thread.is_alive() for thread in self._threads):
            self.engine.close()
        if self._transcriber is not None:
            self._transcriber.close()

    async def describe(self) -> ServiceInfo:
        return self.info

    async def submit(self, request: Request) -> LocalReplyStream:
        """As `SpeechService.submit`; the text is prepared beside the event loop, unless nobody
        waits for it any more when its turn comes."""
        try:
            submitted = self.accept_thread.submit(self.accept, request)
        except RuntimeError:  # of a closed executor
            raise ShuttingDownError(CLOSED) from None
        try:
            return await asyncio.shield(asyncio.wrap_future(submitted))
        except asyncio.CancelledError:
            if not submitted.cancel():
                submitted.add_done_callback(_cancel_unheard)
            raise

    def accept(self, request: Request) -> LocalReplyStream:
        """The same without an event loop, on any thread; blocks while the text is prepared."""
        reply = self._open(request)
        try:
            reply.stream.open(self._admit(reply))
        except BaseException:
            self._replies.refuse(reply)
            raise
        if reply.job is not None:
            self._worker.notify(reply.job)
        if reply.cancelled:  # while the engine did not know it yet
            self.engine.cancel(request.request_id)
        self._engine_wake.set()
        return reply.stream

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        if not self.info.encodes:
            raise UnsupportedModeError(
                "This checkpoint cannot understand recordings; get MOSS-Speech with "
                "python -m scripts.download."
            )
        if self.engine.fault:
            raise EngineFaultError(self.engine.fault)
        if not self._replies.accepting:
            raise ShuttingDownError(CLOSED)
        return await asyncio.wrap_future(self._encoder.submit(wave, sample_rate_hz))

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        if self._transcriber is None:
            raise UnsupportedModeError(
                self.info.no_recogniser
                or "No recogniser listens here; start the program with --transcribe."
            )
        return await self._transcriber.transcribe(wave, sample_rate_hz, timed)

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        if self._transcriber is None:
            return None
        return await self._transcriber.transcribe_partial(wave, sample_rate_hz)

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

    def cancel(self, request_id: str, cause: str = "stopped") -> None:
        """Stop a reply at once, whatever it is doing; does nothing if it is over or unknown."""
        reply = self._replies.get(request_id)
        if reply is not None:
            reply.cancel(cause)
            self.engine.cancel(request_id)
            self._engine_wake.set()
            if reply.job is not None:
                self._worker.notify(reply.job)

    async def cancel_session(self, session_id: str) -> None:
        for reply in self._replies.all():
            if reply.request.session_id == session_id:
                self.cancel(reply.request_id, "session")

    async def stats(self) -> ServiceStats:
        age_s = self._clock() - min(self._ran_s.values())
        state = "ready" if age_s < STALL_S else "stalled"
        state = state if self._replies.accepting else "draining"
        state = "faulted" if self.engine.fault else state
        return ServiceStats(self.engine.stats(), state, age_s)

    async def drain(self, timeout_s: float | None = None) -> None:
        await asyncio.to_thread(self._drain, timeout_s)

    def _drain(self, timeout_s: float | None) -> None:
        """Not to be called inside a signal handler: it takes locks."""
        timeout_s = self.config.drain_s if timeout_s is None else timeout_s
        self._replies.drain(timeout_s, partial(self.cancel, cause="shutdown"))

    def _open(self, request: Request) -> OpenReply:
        names = self.info.voices if self._network_voices else self.codec.voices
        if request.voice is not None and request.voice not in names:
            installed = ", ".join(self.info.voices)
            raise UnknownVoiceError(
                f"voice {request.voice!r} is unknown; choose one of {installed}."
            )
        stream = LocalReplyStream(
            request.request_id,
            clock=self._clock,
            cancel=self.cancel,
            on_taken=self._engine_wake.set,
        )
        speaks = self.engine.processor.speaks(request)
        voice, rate_hz = None if self._network_voices else request.voice, self.codec.sample_rate_hz
        progress = request.progress or Progress()
        stream.num_rows, stream.taken_samples = len(progress.rows), progress.num_taken
        lead = self.info.lead_samples
        job = SpeechJob(stream, voice, rate_hz, lead, progress, request.moves) if speaks else None
        reply = OpenReply(request, stream, job)
        self._replies.add(reply)
        return reply

    def _admit(self, reply: OpenReply) -> Accepted:
        """Hand the request to the engine, with as much of its history as fits if it allows that."""
        request, left_out = reply.request, 0
        while True:
            try:
                accepted = self.engine.submit(request, reply.stream.accepted_s)
            except ContextError:
                request, num_messages = without_older_half(request)
                if not num_messages:
                    raise
                left_out += num_messages
            else:
                return replace(accepted, num_left_out=left_out)

    def _fail(self, request_id: str, error: MossError) -> None:
        """End a reply with an error, and stop it in the engine."""
        reply = self._replies.get(request_id)
        if reply is not None:
            self._replies.finish(reply.failed(error))
            self.engine.cancel(request_id)
            self._engine_wake.set()

    def _stop_with_fault(self) -> None:
        """Nothing works any more until the process ends: every listener gets a last event."""
        self.engine.stop_with_fault()
        for reply in self._replies.all():
            self._replies.finish(reply.failed(EngineFaultError(FAULT)))

    def _run(self, name: str, run_once: Callable[[], None]) -> None:
        """The life of the engine's or the codec's thread."""
        if name == "codec":
            # One core, beside those of the runtime, which sets its own number in the engine thread.
            # PyTorch keeps the number per thread for its own kernels, but for MKL once per process,
            # by the thread that set it last: that must be the runtime's, so nothing is accepted
            # before this.
            torch.set_num_threads(1)
            self._codec_settled.set()
        try:
            while not self._closing:
                run_once()
                self._ran_s[name] = self._clock()
        except Exception:
            log.exception("the %s thread stopped", name)
            self._stop_with_fault()

    def _run_engine(self) -> None:
        self._engine_wake.clear()
        replies, run_ahead_s = self._replies.all(), self.config.run_ahead_s
        self._end_leases(replies)
        per_code, rate_hz = self.info.samples_per_code, self.info.sample_rate_hz
        now_s = self._clock()
        ahead_s: dict[str, float] = {}
        paused: set[str] = set()
        for reply in replies:
            left_s = ahead_s[reply.request_id] = reply.ahead_s(per_code, rate_hz)
            if reply.hold(left_s, run_ahead_s, now_s):
                paused.add(reply.request_id)
            if reply.job and reply.job.is_new and not reply.job.is_due:
                ahead_s[reply.request_id] = 0.0  # has codes, but not enough of them to be heard
        waits = self._one_gpu and self._worker.is_awaited(ahead_s)
        result = StepResult((), 0) if waits else self.engine.step(paused, ahead_s)
        self._tell(result.events)
        if not result.num_rows and not result.events:
            self._engine_wake.wait(IDLE_POLL_S)
        elif self._worker.runs_many and self._one_gpu:
            # the codec's turn: side by side each would take as much longer
            time.sleep(min(MOST_REST_S, self._clock() - now_s))

    def _tell(self, events: Iterable[Event]) -> None:
        """Deliver the events of one step; listeners who wait are woken for all of them at once."""
        waiters: list[Waiter] = []
        try:
            for event in events:
                reply = self._replies.get(event.request_id)
                if reply is None:
                    continue
                if isinstance(event, Sampled):
                    self._tell_row(event, reply, waiters)
                else:
                    self._tell_other(event, reply, waiters)
        finally:
            wake(waiters)

    def _tell_row(self, event: Sampled, reply: OpenReply, waiters: list[Waiter]) -> None:
        if reply.stream.held_s:
            event = replace(event, held_s=reply.stream.held_s)
        reply.stream.put(event, waiters)
        if reply.job is not None:
            self._add_codes(event, reply.job)

    def _tell_other(self, event: Event, reply: OpenReply, waiters: list[Waiter]) -> None:
        job = reply.job
        if isinstance(event, Finished) and reply.cancelled:
            # It ended by itself, but its sound was dropped.
            event = replace(event, reason=FinishReason.CANCELLED)
        if isinstance(event, Finished) and not reply.cancelled and job and job.num_codes:
            job.ending = event
            self._worker.notify(job)
        elif isinstance(event, (Finished, Failed)):
            self._replies.finish(event)
        else:
            if isinstance(event, TextDelta) and job is not None:
                start_sample = max(0, event.start_sample - job.lead_samples)
                event = replace(event, start_sample=start_sample)
            reply.stream.put(event, waiters)

    def _add_codes(self, event: Sampled, job: SpeechJob) -> None:
        code = code_of(event.row, self.engine.processor.ids)
        codes = event.silence if code is None else (code, *event.silence)
        for heard in codes:
            job.add_code(heard)
        if codes:
            self._worker.notify(job)

    def _end_leases(self, replies: list[OpenReply]) -> None:
        """Stop the replies that nobody listens to; called now and then, not at every step."""
        now_s = self._clock()
        if now_s - self._leases_checked_s < IDLE_POLL_S:
            return
        self._leases_checked_s = now_s
        for reply in replies:
            if reply.stream.lease_lost(now_s, self.config.lease_s):
                self.cancel(reply.request_id, "nobody listens")


def _cancel_unheard(submitted: Future[LocalReplyStream]) -> None:
    """The listener left while its request was being accepted."""
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()
