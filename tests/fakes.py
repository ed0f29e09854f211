"""Stand-ins for the slow parts, for tests of the parts around them: a runtime whose "network" is a
function of the rows it finds through the block tables, a codec that writes every code's number into
its samples, and a processor for one-character tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import ChannelSampling, Message, Request, Sampling, Text
from moss_engine.api.tokens import Row, effective_id, text_rows
from moss_engine.codec.base import Push
from moss_engine.engine.sequence import Segment
from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch
from moss_engine.runtime.sampler import LogitsRuntime

CONFIG = replace(
    PUBLISHED, vocab_size=128, audio_vocab_size=40, max_position_embeddings=4096, sosp_token_id=1,
    eosp_token_id=32, modality_pad_token_id=2, audio_pad_token_id=33, eos_token_id=3,
    pad_token_id=4,
)  # fmt: skip
IDS = CONFIG.special
HEADER = 5  # ends every prompt
PAD = IDS.modality_pad
SPOKEN = [
    Row(ord("a"), 0),
    Row(ord("b"), 0),
    Row(IDS.sosp, 0),
    Row(PAD, 7),
    Row(PAD, 8),
    Row(PAD, 9),
    Row(PAD, IDS.eosp),
    Row(IDS.im_end, 0),
]
"""A short reply: two characters, three codes."""

LIMITS = Limits(block_size=4, num_blocks=64, max_batch=4, max_step_rows=32, max_seq_len=200)
GREEDY = ChannelSampling(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
WARM = ChannelSampling(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)

Network = Callable[[tuple[int, ...]], tuple[np.ndarray, np.ndarray]]
"""Effective ids of a whole sequence -> text logits [vocab_size], audio logits [audio_vocab_size].
"""


class Clock:
    """A clock that shows the time that a test has set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def scripted(reply: Sequence[Row]) -> Network:
    """A network whose greedy reply to every prompt is `reply`, over and over."""

    def network(ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        done = len(ids) - 1 - max(i for i, value in enumerate(ids) if value == HEADER)
        row = reply[done % len(reply)]
        text, audio = np.zeros(CONFIG.vocab_size), np.zeros(CONFIG.audio_vocab_size)
        text[row.text], audio[row.audio] = 1.0, 1.0
        return text, audio

    return network


def noisy(ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A network whose logits are random numbers, seeded by all that it sees. Its replies are long,
    because it seldom stops."""
    random = np.random.default_rng(abs(hash(ids)))
    text, audio = random.normal(size=CONFIG.vocab_size), random.normal(size=CONFIG.audio_vocab_size)
    text[[IDS.im_end, IDS.text_pad, IDS.modality_pad]] -= 2.0
    return text, audio


class FakeRuntime(LogitsRuntime):
    """Keeps effective ids where a real pool keeps keys and values, and reads each sequence back
    through its table."""

    info = RuntimeInfo("fake", "0", "cpu", "float32", "none")

    def __init__(self, network: Network, limits: Limits = LIMITS):
        self.network = network
        self.limits = limits
        self.batches: list[ScheduledBatch] = []
        self.before_forward: Callable[[], None] = lambda: None
        self.closed = False
        self._pool: dict[tuple[int, int], int] = {}

    def forward(self, batch: ScheduledBatch) -> Logits:
        self.batches.append(batch)
        self.before_forward()
        assert len(batch.sequences) <= self.limits.max_batch
        assert sum(len(s.rows) for s in batch.sequences) <= self.limits.max_step_rows
        size = self.limits.block_size
        for s in batch.sequences:
            for position, row in enumerate(s.rows, s.num_cached):
                self._pool[s.block_table[position // size], position % size] = effective_id(
                    row, IDS
                )
        seen = [
            tuple(
                self._pool[s.block_table[p // size], p % size]
                for p in range(s.num_cached + len(s.rows))
            )
            for s in batch.sequences
            if s.sample
        ]
        text, audio = zip(*map(self.network, seen), strict=True) if seen else ((), ())
        return Logits(torch.tensor(np.array(text)).float(), torch.tensor(np.array(audio)).float())

    def close(self) -> None:
        self.closed = True


class FakeDecoder:
    def push(self, text_id: int) -> str:
        return chr(text_id) if text_id >= 32 else ""

    def end_segment(self, goes_on: bool) -> str:
        return ""


class FakeProcessor:
    """The prompt is every message's characters, then HEADER; in mode "lines" each line is a segment
    of its own."""

    ids = IDS

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        texts = [m.content.text if isinstance(m.content, Text) else "" for m in request.messages]
        parts = "".join(texts).split("\n") if request.mode == "lines" else ["".join(texts)]
        return tuple(
            Segment(
                (*text_rows(part.encode(), IDS), *text_rows([HEADER], IDS)),
                request.sampling.max_rows,
            )
            for part in parts
        )

    def speaks(self, request: Request) -> bool:
        return request.mode != "text"

    def open_text_decoder(self) -> FakeDecoder:
        return FakeDecoder()


class FakeStream:
    def __init__(self, codec: FakeCodec):
        self._codec = codec
        self._held: list[int] = []

    def push(self, codes: Sequence[int]) -> np.ndarray:
        self._codec.before_push()
        self._held.extend(codes)
        ready = len(self._held) // self._codec.chunk_codes * self._codec.chunk_codes
        return self._samples(ready)

    def flush(self) -> np.ndarray:
        return self._samples(len(self._held))

    @property
    def missing_codes(self) -> int:
        return self._codec.chunk_codes - len(self._held)

    @property
    def lasting_codes(self) -> int:
        return self.missing_codes + self._codec.short_codes

    def places(self, num_codes: int) -> int:
        return 1

    def _samples(self, count: int) -> np.ndarray:
        codes, self._held = self._held[:count], self._held[count:]
        return np.repeat(np.array(codes, dtype=np.float32) / 100, 960)


class FakeCodec:
    """Every code becomes 960 samples of value code / 100, in chunks of `chunk_codes`. It can be the
    `VoiceCloner` of its own voices, too.

    `calls` holds the size of every call; a first sound lasts with `short_codes` more.
    """

    sample_rate_hz = 24_000
    code_rate_hz = Fraction(25)
    num_codes = 32
    voices: tuple[str, ...] = ("plain",)

    def __init__(self, chunk_codes: int = 2, max_together: int = 1):
        self.chunk_codes = chunk_codes
        self.max_together = max_together
        self.calls: list[int] = []
        self.short_codes = 0
        self.before_push: Callable[[], None] = lambda: None

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        return [round(float(value) * 100) for value in wave[::960]]

    def add(self, name: str, *_: object) -> None:
        self.voices = (*self.voices, name)

    def remove(self, name: str) -> None:
        self.voices = tuple(other for other in self.voices if other != name)

    def open_stream(self, voice: str | None = None) -> FakeStream:
        return FakeStream(self)

    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        self.calls.append(len(work))
        return [
            np.concatenate([stream.push(codes), *([stream.flush()] if is_last else [])])
            for stream, codes, is_last in work
        ]


_numbers = itertools.count()


def make_request(
    text: str = "hello",
    *,
    session: str | None = None,
    mode: str = "speech",
    max_rows: int = 64,
    seed: int = 0,
    channel: ChannelSampling = GREEDY,
    request_id: str | None = None,
) -> Request:
    number = next(_numbers)
    return Request(
        request_id=request_id or f"request-{number}",
        session_id=session or f"session-{number}",
        messages=(Message("user", Text(text)),),
        mode=mode,
        sampling=Sampling(text=channel, audio=channel, max_rows=max_rows, min_rows=0, seed=seed),
    )
