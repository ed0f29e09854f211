"""The published MOSS-Speech codec: Whisper-VQ encoder, chunked flow, vocoder on its mel.

Sound begins after 8 codes: a chunk of 5 is run once the 3 codes behind it are known. Streams whose
chunks are due are run together.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import ParameterError
from moss_engine.codec.base import MOSS_MEL, check_codes
from moss_engine.codec.device import on_host, on_lane, open_lane
from moss_engine.codec.moss.flow.network import (
    LOOK_BACK,
    OUTSIDE,
    Chunk,
    FlowMemory,
    FlowVoice,
    flow_voice,
    prompt_memory,
    run_chunks,
)
from moss_engine.codec.moss.flow.weights import FlowWeights
from moss_engine.codec.moss.voice import Voice
from moss_engine.codec.moss.whisper import WhisperVq
from moss_engine.codec.vocoder.hift.generator import Window
from moss_engine.codec.vocoder.stream import MelVocoder

CHUNK_CODES = 5
"""Codes that the flow makes a mel of at a time: the size that it was trained with."""
HISTORY_CODES = 40
"""Codes of the reply, beside the whole prompt, that a chunk can look back to: 3.2 s. It bounds
memory and time."""
MAX_PROMPTS = 4
"""Voices whose prompt stays in memory."""
RunChunks = Callable[[FlowWeights, Sequence[Chunk]], Tensor]


@dataclass(frozen=True)
class Prompt:
    """A voice, run once."""

    voice: FlowVoice
    memory: FlowMemory


class MossCodec:
    """wave <-> codes in one of the `voices`, the first being the default.

    `add_voice` may be called while replies are spoken.

    `vocoder` takes the flow's mel. `run` runs chunks of the flow, `max_together` streams at a time.
    """

    sample_rate_hz = MOSS_MEL.sample_rate_hz
    mel = MOSS_MEL

    def __init__(
        self,
        encoder: WhisperVq,
        flow: FlowWeights,
        vocoder: MelVocoder,
        voices: Sequence[Voice],
        *,
        num_codes: int,
        run: RunChunks = run_chunks,
        max_together: int = 1,
        history_codes: int = HISTORY_CODES,
    ) -> None:
        assert voices, "the codec speaks in no voice but those it is given"
        assert history_codes % CHUNK_CODES == 0, "history is kept in whole chunks"
        self._encoder, self.flow, self.vocoder, self._run = encoder, flow, vocoder, run
        self.num_codes, self.max_together = num_codes, max_together
        self.code_rate_hz = Fraction(MOSS_MEL.sample_rate_hz, MOSS_MEL.hop_size * flow.config.ratio)
        self.num_chunks = history_codes // CHUNK_CODES + 1
        self._voices = {voice.name: voice for voice in voices}
        self._installed = ", ".join(self._voices)  # no names of visitors' voices, which are secrets
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()
        device = flow.noise.device
        self._lane = open_lane(device)
        if self._lane is not None:
            self._lane.wait_stream(torch.cuda.current_stream(device))
        self._changing = threading.Lock()  # guards voices and prompts, which other threads change

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(self._voices)

    def add_voice(self, voice: Voice) -> None:
        """Offer one more voice; one of the same name is replaced for replies that begin later."""
        with self._changing:
            self._voices = {**self._voices, voice.name: voice}
            self._prompts.pop(voice.name, None)

    def remove_voice(self, name: str) -> None:
        """Offer a voice no more; replies that speak in it go on. The last voice stays."""
        with self._changing:
            if len(self._voices) > 1:
                self._voices = {
                    other: voice for other, voice in self._voices.items() if other != name
                }
                self._prompts.pop(name, None)

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """float32 [samples] mono at any rate -> codes, 12.5 a second."""
        return self._encoder.encode(wave, sample_rate_hz)

    def open_stream(self, voice: str | None = None) -> MossStream:
        """A new reply; raises ParameterError for a voice that does not exist. A voice's first reply
        runs its prompt."""
        with self._on_device():
            return MossStream(self, self.prompt(voice))

    def prompt(self, voice: str | None = None) -> Prompt:
        """A voice's prompt memory, computed unless cached; raises ParameterError if unknown."""
        with self._changing:
            name = next(iter(self._voices)) if voice is None else voice
            entry, found = self._voices.get(name), self._prompts.get(name)
            if entry is None:
                raise ParameterError(f"voice {name!r} is unknown; choose one of {self._installed}.")
        if found is None:
            of_flow = flow_voice(self.flow, entry.codes, entry.mel, entry.speaker)
            found = Prompt(of_flow, prompt_memory(self.flow, of_flow, CHUNK_CODES, self._run))
        with self._changing:
            if self._voices.get(name) is entry:
                self._prompts[name] = found
                self._prompts.move_to_end(name)
            if len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)
        return found

    def push_together(self, work: Sequence[tuple[MossStream, Sequence[int]]]) -> list[np.ndarray]:
        """See `SpeechCodec`; raises ParameterError for a code out of range."""
        check_codes(work, self.num_codes)
        streams = [stream for stream, _ in work]
        with self._on_device(), _taken_once(work):
            while ready := [stream for stream in streams if stream.is_ready]:
                self._advance(ready)
            return self._speak(streams, is_last=False)

    def flush_together(self, streams: Sequence[MossStream]) -> list[np.ndarray]:
        """See `SpeechCodec`."""
        with self._on_device():
            while ending := [stream for stream in streams if stream.waiting and stream.has_codes]:
                self._advance(ending)
            for stream in streams:
                stream.mels = (torch.cat(stream.mels, 1),) if stream.mels else ()
            return self._speak(streams, is_last=True)

    def _advance(self, streams: Sequence[MossStream]) -> None:
        """Run what each has next, those of one length together."""
        sizes = [stream.next_sizes for stream in streams]
        for size in sorted(set(sizes)):
            members = [
                stream for stream, other in zip(streams, sizes, strict=True) if other == size
            ]
            for first in range(0, len(members), self.max_together):
                part = members[first : first + self.max_together]
                mels = self._run(self.flow, [stream.chunk(size) for stream in part])
                for stream, mel in zip(part, mels, strict=True):
                    for codes, frames in zip(size, mel.t().chunk(len(size), 1), strict=True):
                        stream.take(codes, frames)

    def _speak(self, streams: Sequence[MossStream], *, is_last: bool) -> list[np.ndarray]:
        """Each stream's chunks in turn: samples do not depend on how codes were split."""
        states = [stream.state for stream in streams]
        waves = [[self.flow.noise.new_zeros(0)] for _ in streams]
        for turn in range(max(len(stream.mels) for stream in streams)):
            due = [i for i, stream in enumerate(streams) if turn < len(stream.mels)]
            results = self.vocoder.speak(
                [Window(states[i], streams[i].mels[turn], is_last) for i in due]
            )
            for i, (wave, state) in zip(due, results, strict=True):
                states[i] = state
                waves[i].append(wave)
        samples = on_host([torch.cat(parts) for parts in waves])
        for stream, state in zip(streams, states, strict=True):
            stream.state, stream.mels = state, ()
        return samples

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        with torch.inference_mode(), on_lane(self._lane):
            yield


class MossStream:
    """One reply being spoken: codes -> mel -> samples.

    `waiting` are the codes that were not run yet, the prompt's last chunk among them at first: it
    looks ahead into the reply, and is run as soon as that is known. `mels` are chunks [mels,
    frames] that were not spoken yet.
    """

    def __init__(self, codec: MossCodec, prompt: Prompt) -> None:
        self._codec, self._voice = codec, prompt.voice
        self._look_ahead = codec.flow.config.look_ahead
        self._memory = FlowMemory(codec.flow, CHUNK_CODES, codec.num_chunks, prompt.memory)
        codes = [OUTSIDE] * LOOK_BACK + prompt.voice.codes.tolist()
        self._before = tuple(codes[-CHUNK_CODES - LOOK_BACK : -CHUNK_CODES])
        self.waiting = tuple(codes[-CHUNK_CODES:])
        self._in_prompt, self.has_codes = True, False
        self.ahead = 0
        self.mels: tuple[Tensor, ...] = ()
        self.state: Any = codec.vocoder.open()

    def push(self, codes: Sequence[int]) -> np.ndarray:
        """Codes -> the samples float32 [n] that became final; raises ParameterError."""
        return self._codec.push_together([(self, codes)])[0]

    def flush(self) -> np.ndarray:
        """-> the remaining samples; the stream is over."""
        return self._codec.flush_together([self])[0]

    @property
    def _needed(self) -> int:
        """Codes that the next run wants: a chunk and what it looks ahead to, and at first the
        prompt's last chunk before it."""
        both = self._in_prompt and self._codec.num_chunks > 1
        return CHUNK_CODES * (1 + both) + self._look_ahead

    @property
    def is_ready(self) -> bool:
        return len(self.waiting) >= self._needed

    @property
    def missing_codes(self) -> int:
        """Codes until the next chunk can run (see `SpeechStream`)."""
        return max(1, self._needed - len(self.waiting) + self.ahead)

    @property
    def next_sizes(self) -> tuple[int, ...]:
        """Codes of the chunk that is run next, and of the one behind it that is run with it."""
        if self._in_prompt and self.is_ready and self._needed > CHUNK_CODES + self._look_ahead:
            return CHUNK_CODES, CHUNK_CODES
        return (min(CHUNK_CODES, len(self.waiting)),)

    def add(self, codes: Sequence[int]) -> None:
        """Take codes, but those again that a failed run had already taken."""
        new = tuple(codes[self.ahead :])
        self.ahead = max(0, self.ahead - len(codes))
        self.waiting += new
        self.has_codes = self.has_codes or bool(new)

    def chunk(self, sizes: tuple[int, ...]) -> Chunk:
        """The next codes with what surrounds them, of one chunk or two."""
        codes = self._before + self.waiting + (OUTSIDE,) * self._look_ahead
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        windows = [
            codes[end - size : end + LOOK_BACK + self._look_ahead]
            for size, end in zip(sizes, ends, strict=True)
        ]
        condition = (
            self._voice.mel[-CHUNK_CODES * self._codec.flow.config.ratio :]
            if self._in_prompt
            else None
        )
        return Chunk(self._memory, self._voice, windows[0], condition, *windows[1:])

    def take(self, size: int, mel: Tensor) -> None:
        """Advance by `size` codes with `mel` [mels, frames]; the prompt's own codes are silent."""
        self._before = (self._before + self.waiting[:size])[-LOOK_BACK:]
        self.waiting = self.waiting[size:]
        if not self._in_prompt:
            self.mels = (*self.mels, mel)
        self._in_prompt = False


@contextlib.contextmanager
def _taken_once(work: Sequence[tuple[MossStream, Sequence[int]]]) -> Iterator[None]:
    """Queue each stream's codes; when the work on them raises, they are not queued again."""
    before = [stream.ahead for stream, _ in work]
    for stream, codes in work:
        stream.add(codes)
    try:
        yield
    except BaseException:
        for (stream, codes), ahead in zip(work, before, strict=True):
            stream.ahead = max(ahead, len(codes))
        raise
