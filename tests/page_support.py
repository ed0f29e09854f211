"""A scripted service for tests of the page: the interface of `moss_engine.service.Service` as far as the page uses it,
a reply of exact, never silent sound, and counters of what was begun, stopped and left behind.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from moss_engine.audio import to_pcm16
from moss_engine.errors import MossError
from moss_engine.events import Accepted, AudioChunk, Event, Finished, FinishReason, Sampled, Started, TextDelta
from moss_engine.modes import Mode
from moss_engine.request import ChannelSampling, Request, Sampling, Text
from moss_engine.runtime.base import RuntimeInfo
from moss_engine.tokens import Modality, Row, SpecialIds

PATIENCE_S = 30.0  # how long a test waits for what must happen
RATE_HZ = 24_000
IDS = SpecialIds(sosp=1, eosp=4096, modality_pad=2, audio_pad=4097, im_end=3, text_pad=4)
CODE_SAMPLES = 960
DEFAULTS = Sampling(ChannelSampling(0.7, 20, 0.9, 1.0), ChannelSampling(0.9, 50, 0.95, 1.1), max_rows=1500, min_rows=0,
                    seed=0)


READ = Mode("read", "Read aloud", "text", "speech", "<read>", True, True, "Your text is spoken as it stands.")
MODES = (
    READ,
    replace(READ, name="chat", label="Small talk", split_sentences=False, default=False, history=True, own_system=True,
            note="Greetings, sums, days."),
    replace(READ, name="write", label="Write", output="text", default=False, note="The answer is text, without sound."),
    replace(READ, name="listen", label="Speak to it", input="speech", default=False, history=True, own_system=True,
            split_sentences=False, note="Your voice goes in."),
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


async def collect(stream) -> list[dict]:
    """All messages of a reply's handler."""
    return [message async for message, _ in stream]


def signal(seconds: float, seed: int = 0) -> np.ndarray:
    """float32 samples, exact in int16, that are never near zero for longer than a few samples: two gliding tones."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    glide = np.sin(2 * np.pi * (180 + seed) * t + 30 * np.sin(2 * np.pi * 0.7 * t))
    wave = (0.30 + 0.12 * np.sin(2 * np.pi * 3.1 * t)) * glide + 0.12 * np.sin(2 * np.pi * (1400 * t + 300 * t * t))
    return (np.rint(wave * 32767) / 32767).astype(np.float32)


@dataclass
class Script:
    """How the scripted service behaves: `rtf` paces the chunks, `first_s` is the time to the first one.

    It stalls for `stall_s` before the third chunk.
    """

    seconds: float = 3.0
    chunk_s: float = 0.2
    first_s: float = 0.1
    rtf: float = 0.3
    stall_s: float = 0.0
    error: MossError | None = None
    wordless: bool = False


@dataclass
class FakeHandle:
    service: FakeService
    request: Request

    @property
    def cancelled(self) -> bool:
        return self.request.request_id in self.service.cancelled

    def events(self) -> AsyncIterator[Event]:
        return self.service.told(self.request)


@dataclass
class FakeService:
    script: Script = field(default_factory=Script)
    requests: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    chunk_ready_s: list[float] = field(default_factory=list)  # wall clock: shared with the browser
    asked_s: list[float] = field(default_factory=list)  # wall clock
    open: dict[str, Request] = field(default_factory=dict)
    drained: bool = False
    encoded: list[tuple[np.ndarray, int]] = field(default_factory=list)
    engine = SimpleNamespace(processor=SimpleNamespace(modes=MODES, default_sampling=DEFAULTS, ids=IDS,
                                                       piece="piece {}".format),
                             runtime=SimpleNamespace(info=RuntimeInfo("scripted", "1", "cpu", "float32", "none")))

    @property
    def codec(self) -> SimpleNamespace:
        return SimpleNamespace(voices=("default",), sample_rate_hz=RATE_HZ, code_rate_hz=Fraction(25),
                               encode=self.encode)

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """A code for every 80 ms: its loudest sample, in hundredths."""
        self.encoded.append((wave, sample_rate_hz))
        step = round(0.08 * sample_rate_hz)
        return [int(100 * np.abs(wave[start : start + step]).max()) for start in range(0, len(wave), step)]

    def reset(self, script: Script | None = None) -> None:
        """As new, for the next test."""
        self.script = script or Script(seconds=1.2, rtf=0.2)
        for record in (self.requests, self.cancelled, self.chunk_ready_s, self.asked_s, self.encoded):
            record.clear()

    def sent(self, index: int = -1) -> np.ndarray:
        """int16 of what was said in answer to a request, without its leading zeros."""
        request = self.requests[index]
        return np.trim_zeros(to_pcm16(signal(self.script.seconds, request.sampling.seed % 50)), "f")

    def submit(self, request: Request) -> FakeHandle:
        if self.script.error:
            raise self.script.error
        self.requests.append(request)
        self.asked_s.append(time.time())
        return FakeHandle(self, request)

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        async for event in self.submit(request).events():
            yield event

    async def told(self, request: Request) -> AsyncIterator[Event]:
        """Leaving early cancels the reply, whoever is the first to notice that the tab was closed."""
        key, over = request.request_id, False
        self.open[key] = request
        try:
            async for event in self._events(request):
                over = isinstance(event, Finished)
                yield event
        finally:
            if not over and key not in self.cancelled:
                self.cancelled.append(key)
            del self.open[key]

    async def _events(self, request: Request) -> AsyncIterator[Event]:
        script, key = self.script, request.request_id
        content = request.messages[-1].content
        text = content.text if isinstance(content, Text) else f"{len(content.codes)} codes were heard."
        wave = signal(script.seconds, seed=request.sampling.seed % 50)
        rows = 0
        yield Accepted(key, time.monotonic(), 0, 20 + len(text) // 4)
        yield Started(key, time.monotonic(), 0, 16)
        if await self._stopped(key, script.first_s * 0.4):
            yield Finished(key, time.monotonic(), 0, FinishReason.CANCELLED, ())
            return
        if request.mode == "write":
            yield Sampled(key, time.monotonic(), 1, Row(300, 0), Modality.TEXT)
            yield TextDelta(key, time.monotonic(), 1, text, 0)
            yield Finished(key, time.monotonic(), 1, FinishReason.STOP, ())
            return
        words, step = text.split(), round(script.chunk_s * RATE_HZ)
        starts = list(range(0, len(wave), step))
        for index, start in enumerate(starts):
            share = words[len(words) * index // len(starts) : len(words) * (index + 1) // len(starts)]
            if share and not script.wordless:
                rows += 1
                yield Sampled(key, time.monotonic(), rows, Row(300 + rows % 700, 0), Modality.TEXT)
                yield TextDelta(key, time.monotonic(), rows, (" " if start else "") + " ".join(share), start)
            for code in range(max(1, step // CODE_SAMPLES)):
                rows += 1
                yield Sampled(key, time.monotonic(), rows, Row(2, (rows * 37 + code) % 4096), Modality.AUDIO)
            pause_s = script.first_s * 0.6 if index == 0 else script.rtf * script.chunk_s
            if await self._stopped(key, pause_s + (script.stall_s if index == 2 else 0.0)):
                yield Finished(key, time.monotonic(), rows, FinishReason.CANCELLED, ())
                return
            self.chunk_ready_s.append(time.time())
            yield AudioChunk(key, time.monotonic(), rows, wave[start : start + step], start, RATE_HZ)
        yield Finished(key, time.monotonic(), rows, FinishReason.STOP, ())

    async def _stopped(self, key: str, seconds: float) -> bool:
        """Let time pass, at most until the request is cancelled."""
        end = time.monotonic() + seconds
        while key not in self.cancelled and time.monotonic() < end:
            await asyncio.sleep(min(0.02, max(0.0, end - time.monotonic())))
        return key in self.cancelled

    def cancel_session(self, session_id: str) -> None:
        self.cancelled += [key for key, request in self.open.items() if request.session_id == session_id]

    def stats(self) -> SimpleNamespace:
        used = 12 * sum(key not in self.cancelled for key in self.open)
        engine = SimpleNamespace(running=len(self.open), waiting=0, blocks_used=used, blocks_cached=40,
                                 blocks_free=984 - used, blocks_reserved=0, leaked_blocks=0)
        return SimpleNamespace(engine=engine, ready=not self.drained)
