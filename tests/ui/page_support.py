"""A scripted `SpeechService` for tests of the page: a reply of exact, never silent sound, and
counters of what was begun, stopped and left behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moss_engine.api.errors import ContextError, MossError, UnsupportedModeError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    CodecRun,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.info import EngineStats, RuntimeInfo, ServiceInfo, ServiceStats
from moss_engine.api.modes import Mode
from moss_engine.api.request import (
    ChannelSampling,
    Request,
    Sampling,
    Text,
    check_text,
    check_values,
    without_older_half,
)
from moss_engine.api.service import ClonedVoice
from moss_engine.api.tokens import Modality, Row, SpecialIds
from moss_engine.api.transcript import Transcript, Word
from moss_engine.audio.pcm import to_pcm16

PATIENCE_S = 30.0  # how long a test waits for what must happen
RATE_HZ = 24_000
IDS = SpecialIds(sosp=1, eosp=4096, modality_pad=2, audio_pad=4097, im_end=3, text_pad=4)
CODE_SAMPLES = 960
DEFAULTS = Sampling(
    ChannelSampling(0.7, 20, 0.9, 1.0),
    ChannelSampling(0.9, 50, 0.95, 1.1),
    max_rows=1500,
    min_rows=0,
    seed=0,
)

READ = Mode(
    "read", "Read aloud", "text", "speech", "<read>", True, True, "It is read as it stands."
)
OTHER = replace(READ, default=False)
TALK = replace(OTHER, split_sentences=False, history=True, own_system=True)
MODES = (
    READ,
    replace(TALK, name="chat", label="Small talk", note="Greetings, sums, days."),
    replace(OTHER, name="write", label="Write", output="text", note="Text, without sound."),
    replace(TALK, name="listen", label="Speak to it", input="speech", note="Your voice goes in."),
)


def free_port() -> int:
    """One below those of outgoing connections, which could take it before it is listened to."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(condition, seconds: float = PATIENCE_S) -> bool:
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.02)
    return bool(condition())


async def soon(condition) -> bool:
    """The same on an event loop."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and not condition():
        await asyncio.sleep(0.02)
    return bool(condition())


async def asked(
    app: Any, scope: Mapping[str, Any], body: bytes = b"", parts: int = 1
) -> tuple[int, dict[bytes, bytes], bytes]:
    """What an ASGI app answers to a request whose body comes in parts: status, headers, body."""
    size = max(1, -(-len(body) // parts))
    pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    usual = {"type": "http", "method": "GET", "query_string": b""}
    await app({**usual, **scope}, receive, send)
    told = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), told


@contextmanager
def no_room(num_bytes: int = 4096) -> Iterator[None]:
    """No file of this process grows longer, as on a disk that is full."""
    import resource  # not on Windows

    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def signal(seconds: float, seed: int = 0) -> np.ndarray:
    """float32 samples, exact in int16, that are never near zero for longer than a few samples: two
    gliding tones. They are as loud as a voice: louder ones would be all that a page with an open
    microphone hears, as no echo canceller learns its way from tones."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    glide = np.sin(2 * np.pi * (180 + seed) * t + 30 * np.sin(2 * np.pi * 0.7 * t))
    wave = (0.15 + 0.06 * np.sin(2 * np.pi * 3.1 * t)) * glide + 0.06 * np.sin(
        2 * np.pi * (1400 * t + 300 * t * t)
    )
    return (np.rint(wave * 32767) / 32767).astype(np.float32)


@dataclass
class Script:
    """How the scripted service behaves: `rtf` paces the chunks, `first_s` is the time to the first
    one.

    It stalls for `stall_s` before the third chunk, and says `spoken` instead of what was asked.
    Every chunk was made by the run `codec`.
    """

    seconds: float = 3.0
    chunk_s: float = 0.2
    first_s: float = 0.1
    rtf: float = 0.3
    stall_s: float = 0.0
    error: MossError | None = None
    wordless: bool = False
    spoken: str = ""
    codec: CodecRun | None = None


INFO = ServiceInfo(
    runtime=RuntimeInfo("scripted", "1", "cpu", "float32", "none"),
    modes=MODES,
    voices=("default",),
    sampling=DEFAULTS,
    sample_rate_hz=RATE_HZ,
    samples_per_code=CODE_SAMPLES,
    ids=IDS,
    pieces=tuple(f"piece {i}" for i in range(1024)),
    max_text_chars=4000,
    max_speech_s=60.0,
    speeds=(0.7, 1.5),
    max_sessions=4,
    max_waiting=16,
    kv_rows=16_384,
    run_ahead_s=10.0,
)


@dataclass
class FakeReply:
    service: FakeService
    request: Request

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def cancel(self) -> None:
        self.service.cancel(self.request_id)

    def acknowledge(self, samples: int) -> None:
        self.service.acknowledged[self.request_id] = samples

    def events(self) -> AsyncGenerator[Event, None]:
        return self.service.told(self.request)


@dataclass
class FakeService:
    script: Script = field(default_factory=Script)
    info: ServiceInfo = INFO
    requests: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    chunk_ready_s: list[float] = field(default_factory=list)  # wall clock: shared with the browser
    open: dict[str, Request] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=dict)
    most_messages: int = 1000
    drained: bool = False
    waiting: int = 0
    encoded: list[tuple[np.ndarray, int]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """What was asked in writing, in order."""
        return [request.messages[-1].content.text for request in self.requests]

    async def describe(self) -> ServiceInfo:
        return self.info

    async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        """A code for every 80 ms: its loudest sample, in hundredths."""
        self.encoded.append((wave, sample_rate_hz))
        step = round(0.08 * sample_rate_hz)
        return tuple(
            int(100 * np.abs(wave[start : start + step]).max())
            for start in range(0, len(wave), step)
        )

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        """What its information names as recogniser always hears the same."""
        assert self.info.recogniser, "nobody listens"
        self.encoded.append((wave, sample_rate_hz))
        seconds = len(wave) / sample_rate_hz
        said = "What time is it?"
        times = np.linspace(0.0, seconds, 5)
        words = tuple(map(Word, said.split(), times[:-1].tolist(), times[1:].tolist()))
        return Transcript(said, self.info.recogniser, seconds, words=words if timed else ())

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        assert self.info.recogniser, "nobody listens"
        return Transcript("What time", self.info.recogniser, len(wave) / sample_rate_hz)

    async def add_voice(self, *_: object) -> ClonedVoice:
        raise UnsupportedModeError("The scripted service has one voice.")

    async def remove_voice(self, session_id: str) -> None:
        """It has none of its own."""

    async def drain(self, timeout_s: float | None = None) -> None:
        self.drained = True

    def reset(self, script: Script | None = None) -> None:
        """As new, for the next test."""
        self.script, self.waiting = script or Script(seconds=1.2, rtf=0.2), 0
        for record in (self.requests, self.cancelled, self.chunk_ready_s, self.encoded):
            record.clear()
        self.acknowledged.clear()
        self.over.clear()

    def sent(self, index: int = -1) -> np.ndarray:
        """int16 of what was said in answer to a request, without its leading zeros."""
        request = self.requests[index]
        return np.trim_zeros(to_pcm16(signal(self.script.seconds, request.sampling.seed % 50)), "f")

    async def submit(self, request: Request) -> FakeReply:
        if self.script.error:
            raise self.script.error
        check_values(request)
        for message in request.messages:
            if isinstance(message.content, Text):
                check_text(message.content.text, self.info.max_text_chars)
        asked = len(request.messages)
        while len(request.messages) > self.most_messages:
            request, num_left_out = without_older_half(request)
            if not num_left_out:
                raise ContextError("The question is too long; ask a shorter one.")
        self.left_out[request.request_id] = asked - len(request.messages)
        self.requests.append(request)
        return FakeReply(self, request)

    async def told(self, request: Request) -> AsyncGenerator[Event, None]:
        """Leaving early cancels the reply, whoever is the first to notice that the tab was
        closed."""
        key, over = request.request_id, False
        self.open[key] = request
        try:
            async for event in self._events(request):
                if over := isinstance(event, Finished):  # told when its blocks are given back
                    self._end(key)
                yield event
        finally:
            if not over:
                self.cancel(key)
                self._end(key)

    def _end(self, key: str) -> None:
        self.over.add(key)
        del self.open[key]

    async def _events(self, request: Request) -> AsyncIterator[Event]:
        script, key = self.script, request.request_id
        if request.session_id == "warm-up":  # before anybody visits
            script = replace(script, seconds=0.2, first_s=0.0, rtf=0.0)
        content = request.messages[-1].content
        heard = "" if isinstance(content, Text) else f"{len(content.codes)} codes were heard."
        text = script.spoken or heard or content.text
        wave = signal(script.seconds, seed=request.sampling.seed % 50)
        rows, accepted_s = 0, time.monotonic()

        def now_s() -> float:
            return time.monotonic() - accepted_s

        yield Accepted(key, 0.0, 0, 20 + len(text) // 4, self.left_out.get(key, 0))
        yield Started(key, now_s(), 0, 16)
        if await self._stopped(key, script.first_s * 0.4):
            yield Finished(key, now_s(), 0, FinishReason.CANCELLED, ())
            return
        if request.mode == "write":
            yield Sampled(key, now_s(), 1, Row(300, 0), Modality.TEXT)
            yield TextDelta(key, now_s(), 1, text, 0)
            yield Finished(key, now_s(), 1, FinishReason.STOP, ())
            return
        words, step = text.split(), round(script.chunk_s * RATE_HZ)
        starts = list(range(0, len(wave), step))
        for index, start in enumerate(starts):
            share = words[
                len(words) * index // len(starts) : len(words) * (index + 1) // len(starts)
            ]
            if share and not script.wordless:
                rows += 1
                yield Sampled(key, now_s(), rows, Row(300 + rows % 700, 0), Modality.TEXT)
                yield TextDelta(key, now_s(), rows, (" " if start else "") + " ".join(share), start)
            for code in range(max(1, step // CODE_SAMPLES)):
                rows += 1
                yield Sampled(key, now_s(), rows, Row(2, (rows * 37 + code) % 4096), Modality.AUDIO)
            pause_s = script.first_s * 0.6 if index == 0 else script.rtf * script.chunk_s
            pause_s += script.stall_s if index == 2 else 0.0
            if await self._stopped(key, pause_s) or await self._held_back(key, start):
                yield Finished(key, now_s(), rows, FinishReason.CANCELLED, ())
                return
            self.chunk_ready_s.append(time.time())
            samples = wave[start : start + step]
            yield AudioChunk(key, now_s(), rows, samples, start, RATE_HZ, codec=script.codec)
        yield Finished(key, now_s(), rows, FinishReason.STOP, ())

    async def _held_back(self, key: str, start: int) -> bool:
        """Wait for a listener who is far behind; whether the request was cancelled meanwhile."""
        while start > self.acknowledged.get(key, 0) + self.info.run_ahead_s * RATE_HZ:
            if await self._stopped(key, 0.02):
                return True
        return False

    async def _stopped(self, key: str, seconds: float) -> bool:
        """Let time pass, at most until the request is cancelled."""
        end = time.monotonic() + seconds
        while key not in self.cancelled and time.monotonic() < end:
            await asyncio.sleep(min(0.02, max(0.0, end - time.monotonic())))
        return key in self.cancelled

    def cancel(self, key: str) -> None:
        """Counted once, whoever stops it and how often; what is over is stopped by nobody."""
        if key not in self.cancelled and key not in self.over:
            self.cancelled.append(key)

    async def cancel_session(self, session_id: str) -> None:
        """Replies that nobody listens to yet, too."""
        for request in self.requests:
            if request.session_id == session_id:
                self.cancel(request.request_id)

    async def stats(self) -> ServiceStats:
        used = 12 * sum(key not in self.cancelled for key in self.open)
        engine = EngineStats(
            running=len(self.open),
            waiting=self.waiting,
            blocks_used=used,
            blocks_cached=40,
            blocks_free=984 - used,
            blocks_reserved=0,
            leaked_blocks=0,
        )
        state = "draining" if self.drained else "ready"
        return ServiceStats(engine, state, 0.0)
