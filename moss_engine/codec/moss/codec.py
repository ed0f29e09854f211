"""The published MOSS-Speech codec: Whisper-VQ encoder, chunked flow, vocoder on its mel.

Sound begins after 8 codes: a chunk of 5 is run once the 3 codes behind it are known. Streams whose
chunks are due are run together.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import ParameterError
from moss_engine.codec.base import MOSS_MEL, MelVocoder, Push, Window, check_codes
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

CHUNK_CODES = 5
"""Codes that the flow makes a mel of at a time: the size that it was trained with."""
HISTORY_CODES = 40
"""Codes of the reply, beside the whole prompt, that a chunk can look back to: 3.2 s, in whole
chunks. It bounds memory and time."""
MAX_PROMPTS = 4
"""Voices whose prompt stays in memory."""
RunChunks = Callable[[FlowWeights, Sequence[Chunk]], Sequence[Tensor]]


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
    ) -> None:
        assert voices, "the codec speaks in no voice but those it is given"
        self._encoder, self.flow, self.vocoder, self._run = encoder, flow, vocoder, run
        self.num_codes, self.max_together = num_codes, max_together
        self.code_rate_hz = Fraction(MOSS_MEL.sample_rate_hz, MOSS_MEL.hop_size * flow.config.ratio)
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

    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        """See `SpeechCodec`; raises ParameterError for a code out of range."""
        check_codes(work, self.num_codes)
        with self._on_device(), _taken_once(work):
            while parts := [
                (push.stream, sizes)
                for push in work
                if (sizes := push.stream.next_sizes(is_last=push.is_last))
            ]:
                self._advance(parts)
            return self._speak(work)

    def _advance(self, parts: Sequence[tuple[MossStream, tuple[int, ...]]]) -> None:
        """Run what each has next, of chunks of these sizes, as many chunks together as pays."""
        left = deque(parts)
        while left:
            part = [left.popleft()]
            room = self.max_together - len(part[0][1])
            while left and len(left[0][1]) <= room:
                part.append(left.popleft())
                room -= len(part[-1][1])
            mels = self._run(self.flow, [stream.chunk(sizes) for stream, sizes in part])
            for (stream, sizes), mel in zip(part, mels, strict=True):
                frames = [size * self.flow.config.ratio for size in sizes]
                for size, piece in zip(sizes, mel.t().split(frames, 1), strict=True):
                    stream.take(size, piece)

    def _speak(self, work: Sequence[Push]) -> list[np.ndarray]:
        """Each stream's chunks in turn: samples do not depend on how codes were split."""
        streams = [push.stream for push in work]
        windows = [stream.windows for stream in streams]
        states = [stream.state for stream in streams]
        waves = [[self.flow.noise.new_zeros(0)] for _ in streams]
        for turn in range(max(map(len, windows), default=0)):
            due = [i for i, chunks in enumerate(windows) if turn < len(chunks)]
            results = self.vocoder.speak([Window(states[i], *windows[i][turn]) for i in due])
            for i, (wave, state) in zip(due, results, strict=True):
                states[i] = state
                waves[i].append(wave)
        samples = on_host([torch.cat(parts) for parts in waves])
        for stream, state in zip(streams, states, strict=True):
            stream.state, stream.mels, stream.last_mels = state, (), ()
        return samples

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        with torch.inference_mode(), on_lane(self._lane):
            yield


class MossStream:
    """One reply being spoken: codes -> mel -> samples.

    `waiting` are the codes that were not run yet, the prompt's last chunk among them at first: it
    looks ahead into the reply, and is run as soon as that is known. `mels` are chunks [mels,
    frames] that were not spoken yet, `last_mels` those that were run with nothing behind them.
    """

    def __init__(self, codec: MossCodec, prompt: Prompt) -> None:
        self._codec, self._voice = codec, prompt.voice
        self._look_ahead = codec.flow.config.look_ahead
        chunks = HISTORY_CODES // CHUNK_CODES + 1
        self._memory = FlowMemory(codec.flow, CHUNK_CODES, chunks, prompt.memory)
        codes = [OUTSIDE] * LOOK_BACK + prompt.voice.codes.tolist()
        self._before = tuple(codes[-CHUNK_CODES - LOOK_BACK : -CHUNK_CODES])
        self.waiting = tuple(codes[-CHUNK_CODES:])
        self._in_prompt, self.has_codes = True, False
        self.ahead = 0
        self.mels: tuple[Tensor, ...] = ()
        self.last_mels: tuple[Tensor, ...] = ()
        self.state: Any = codec.vocoder.open()

    @property
    def _needed(self) -> int:
        """Codes that the next run wants: a chunk and what it looks ahead to, and at first the
        prompt's last chunk before it."""
        both = self._in_prompt and self._memory.most_chunks > 1
        return CHUNK_CODES * (1 + both) + self._look_ahead

    @property
    def missing_codes(self) -> int:
        """Codes until the next chunk can run (see `SpeechStream`)."""
        return max(1, self._needed - len(self.waiting) + self.ahead)

    @property
    def lasting_codes(self) -> int:
        """Of a reply's first chunk the vocoder holds more than half back."""
        return self.missing_codes + CHUNK_CODES * self._in_prompt

    def places(self, num_codes: int) -> int:
        """One for each chunk of a run."""
        ready = len(self.waiting) + max(0, num_codes - self.ahead) - self._look_ahead
        return min(self._memory.most_chunks, max(1, ready // CHUNK_CODES))

    def next_sizes(self, *, is_last: bool) -> tuple[int, ...]:
        """Codes of the chunks that are run next in one go, if any; the last ones of a reply need no
        others behind them."""
        left, sizes = len(self.waiting), []
        if left < self._needed and not (is_last and self.has_codes):
            return ()
        while left and len(sizes) < self._memory.most_chunks:
            if left < CHUNK_CODES + self._look_ahead and not is_last:
                break
            sizes.append(min(CHUNK_CODES, left))
            left -= sizes[-1]
        return tuple(sizes)

    @property
    def windows(self) -> list[tuple[Tensor, bool]]:
        """What the vocoder is to speak, the reply's end by itself: mels, and whether it is that."""
        ends = [(torch.cat(self.last_mels, 1), True)] if self.last_mels else []
        return [*((mel, False) for mel in self.mels), *ends]

    def add(self, codes: Sequence[int]) -> None:
        """Take codes, but those again that a failed run had already taken."""
        new = tuple(codes[self.ahead :])
        self.ahead = max(0, self.ahead - len(codes))
        self.waiting += new
        self.has_codes = self.has_codes or bool(new)

    def chunk(self, sizes: tuple[int, ...]) -> Chunk:
        """The next codes with what surrounds them, in chunks of these sizes."""
        codes = self._before + self.waiting + (OUTSIDE,) * self._look_ahead
        ends = itertools.accumulate(sizes)
        windows = tuple(
            codes[end - size : end + LOOK_BACK + self._look_ahead]
            for size, end in zip(sizes, ends, strict=True)
        )
        condition = (
            self._voice.mel[-CHUNK_CODES * self._codec.flow.config.ratio :]
            if self._in_prompt
            else None
        )
        return Chunk(self._memory, self._voice, windows, condition)

    def take(self, size: int, mel: Tensor) -> None:
        """Advance by `size` codes with `mel` [mels, frames]; the prompt's own codes are silent."""
        is_known = len(self.waiting) >= size + self._look_ahead  # what comes behind them
        self._before = (self._before + self.waiting[:size])[-LOOK_BACK:]
        self.waiting = self.waiting[size:]
        if not self._in_prompt and is_known:
            self.mels = (*self.mels, mel)
        elif not self._in_prompt:
            self.last_mels = (*self.last_mels, mel)
        self._in_prompt = False


@contextlib.contextmanager
def _taken_once(work: Sequence[Push]) -> Iterator[None]:
    """Queue each stream's codes; when the work on them raises, they are not queued again."""
    before = [push.stream.ahead for push in work]
    for push in work:
        push.stream.add(push.codes)
    try:
        yield
    except BaseException:
        for push, ahead in zip(work, before, strict=True):
            push.stream.ahead = max(ahead, len(push.codes))
        raise
