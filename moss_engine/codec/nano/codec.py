"""The nano codec as a SpeechCodec: FSQ encoder and decoder, and a vocoder, joined on the same mel.

Torch's thread count is per calling thread: a codec thread sets its own with `torch.set_num_threads`
before its first call, and one thread is the setting to choose beside a language model on another
core. A stream belongs to one thread at a time; the networks are shared and only read. On a GPU many
replies are spoken in one run; on a CPU, where a run of many takes as long as each alone, one after
another.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import ParameterError, UnsupportedModeError
from moss_engine.codec.base import Push, check_codes
from moss_engine.codec.device import on_host, on_lane, open_lane
from moss_engine.codec.nano.fsq import (
    LOOK_AHEAD_CODES,
    Block,
    Decoder,
    NanoFsq,
    load_fsq,
    points_of_codes,
)
from moss_engine.codec.vocoder.make import make_vocoder, vocoder_mel
from moss_engine.codec.vocoder.stream import StreamVocoder
from moss_engine.models.recording import Recording

RECORDED_CODES = 2
"""From so many new codes on, every block has something to do in every run."""


class StreamedDecoder:
    """A decoder that runs as streams; `start` is what its blocks know before the first code."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder = decoder
        self._blocks = cast("list[Block]", [*decoder.code_blocks, *decoder.frame_blocks])
        self.start = tuple(_zeros(block, block.look_back, device) for block in self._blocks)
        self._advance: Callable[..., tuple[Tensor, ...]] = self._advance_blocks
        if device.type == "cpu":
            x = _zeros(self._blocks[0], RECORDED_CODES, device)
            self._advance = Recording(self._advance_blocks, (x, *self.start))

    def open(self) -> DecoderStream:
        return DecoderStream(self.start)

    @torch.inference_mode()
    def decode(self, streams: Sequence[DecoderStream], points: Tensor) -> Tensor:
        """Streams of one phase: grid points [streams, codes, len(levels)] -> log-mel [streams,
        num_mels, frames] that became final."""
        return self._run(streams, self.decoder.embed(points).transpose(1, 2))

    @torch.inference_mode()
    def flush(self, streams: Sequence[DecoderStream]) -> Tensor:
        """Ended streams of one phase -> the last code's log-mel; nothing follows it."""
        after = _zeros(self._blocks[0], LOOK_AHEAD_CODES, self.start[0].device)
        return self._run(streams, after.expand(len(streams), -1, -1))

    def _run(self, streams: Sequence[DecoderStream], x: Tensor) -> Tensor:
        """[streams, dim, codes] -> log-mel [streams, num_mels, frames]; updates every stream."""
        pasts = [torch.cat(pasts) for pasts in zip(*(stream.past for stream in streams))]
        advance = self._advance if x.shape[-1] >= RECORDED_CODES else self._advance_blocks
        mel, *pasts = advance(x, *pasts)
        for index, stream in enumerate(streams):
            stream.past = tuple(past[index : index + 1] for past in pasts)
        return mel

    def _advance_blocks(self, x: Tensor, *pasts: Tensor) -> tuple[Tensor, ...]:
        """-> log-mel, and the inputs that every block needs again"""
        decoder, kept = self.decoder, list(pasts)
        num_code_blocks = len(decoder.code_blocks)
        x = _through(self._blocks[:num_code_blocks], kept, 0, x)
        if not x.shape[-1]:
            return x.new_zeros(x.shape[0], decoder.config.mel.num_mels, 0), *kept
        frame_blocks = self._blocks[num_code_blocks:]
        return decoder.finish(
            _through(frame_blocks, kept, num_code_blocks, decoder.to_frames(x))
        ), *kept


class DecoderStream:
    """Codes in, mel frames out, one code late: the frames of `Decoder` over all codes at once.

    `past` holds, for each block, the inputs [1, dim, steps] that it will need again. It is
    replaced, never written to.
    """

    def __init__(self, past: tuple[Tensor, ...]) -> None:
        self.past = past

    @property
    def phase(self) -> tuple[int, ...]:
        """Streams of one phase can be decoded together when they get equally many codes."""
        return tuple(past.shape[-1] for past in self.past)


def _through(blocks: Sequence[Block], pasts: list[Tensor], first: int, x: Tensor) -> Tensor:
    """Run blocks, whose inputs so far begin at `pasts[first]` and are renewed there."""
    for index, block in enumerate(blocks, first):
        x = torch.cat([pasts[index], x], dim=2)
        context = block.look_back + block.look_ahead
        pasts[index] = x[..., -context:]
        if x.shape[-1] <= context:
            return x[..., :0]
        x = block.forward_padded(x)
    return x


def _zeros(block: Block, steps: int, device: torch.device) -> Tensor:
    return torch.zeros(1, block.depthwise.in_channels, steps, device=device)


CHUNK_CODES = (6, 8, 10)
"""Codes of the first chunks and of every later one: the first is short so that sound starts early,
but long enough that the next one is ready in time. With (4, 6, 10) sound came 26 ms earlier, and 3
streams on 2 cores ran dry 25 times in 12 replies, with these 0 to 7 times (`python -m
scripts.bench load`)."""
CPU_CHUNK_CODES = (6, 6, 8, 10, 13, 16)
"""The same on a CPU, where half the cost of a run of ten codes is that of any run. The second one
is ready sooner, for a first one that lost its silent lead, and each is only so much longer than the
one before that a reply which keeps up with the first ones keeps up with all."""
MAX_TOGETHER = 16
"""Replies spoken in one run on a GPU."""


class NanoCodec:
    """codes -> wave; one voice. `max_together` streams are spoken at a time."""

    def __init__(
        self, fsq: NanoFsq, vocoder: StreamVocoder, device: torch.device, *, max_together: int = 1
    ) -> None:
        self._fsq, self._vocoder, self._device = fsq, vocoder, device
        self._decoder = StreamedDecoder(fsq.decoder, device)
        self._lane = open_lane(device)
        mel = fsq.config.mel
        self.mel = mel
        self.sample_rate_hz = mel.sample_rate_hz
        self.code_rate_hz = Fraction(mel.sample_rate_hz, fsq.config.samples_per_code)
        self.num_codes = fsq.config.num_codes
        self.voices: tuple[str, ...] = ("nano",)
        self.max_together = max_together

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """See `SpeechCodec`: no network was trained to understand these codes of a recording."""
        raise UnsupportedModeError(
            "The built-in voice does not understand recordings; talk to it with a recogniser, or "
            "name the MOSS-Speech codec with --codec."
        )

    def open_stream(self, voice: str | None = None) -> NanoStream:
        """A new reply; raises ParameterError for a voice that does not exist."""
        if voice is not None and voice not in self.voices:
            raise ParameterError(
                f"voice {voice!r} is unknown; choose one of {', '.join(self.voices)}."
            )
        with on_lane(self._lane):
            return NanoStream(self, self._fsq, self._decoder, self._vocoder)

    @torch.inference_mode()
    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        """See `SpeechCodec`; raises ParameterError for a code out of range."""
        check_codes(work, self.num_codes)
        streams = [push.stream for push in work]
        going = [push.stream.vocoder for push in work if not push.is_last]
        ending = [push.stream for push in work if push.is_last]
        with _unchanged_if_it_fails(streams), on_lane(self._lane):
            for stream, codes, _ in work:
                stream.waiting = (*stream.waiting, *codes)
            self._decode([s for s in streams if s.is_ready or (s in ending and s.waiting)])
            for members in _alike([s for s in ending if s.held_back], lambda s: s.decoder.phase):
                mels = self._decoder.flush([stream.decoder for stream in members])
                for stream, mel in zip(members, mels, strict=True):
                    stream.vocoder.add(mel)
                    stream.held_back = 0
            goes_on = iter(self._vocoder.speak_together(going) if going else ())
            ended = iter(
                self._vocoder.flush_together([s.vocoder for s in ending]) if ending else ()
            )
            return on_host([next(ended if push.is_last else goes_on) for push in work])

    def _decode(self, streams: Sequence[NanoStream]) -> None:
        """Turn all codes that wait into mel frames, those of equally many codes together."""
        for members in _alike(streams, lambda stream: (len(stream.waiting), stream.decoder.phase)):
            codes = torch.tensor(
                [stream.waiting for stream in members], dtype=torch.int64, device=self._device
            )
            points = points_of_codes(codes, self._fsq.config.levels)
            mels = self._decoder.decode([stream.decoder for stream in members], points)
            for stream, mel in zip(members, mels, strict=True):
                stream.vocoder.add(mel)
                stream.waiting, stream.held_back = (), LOOK_AHEAD_CODES


class NanoStream:
    """One reply being spoken: codes -> mel frames -> samples.

    Codes wait until they complete a chunk of the vocoder, since one run of the decoder over many
    costs as much as over one. The last code that it took is held back in it, until its look-ahead
    is known.
    """

    def __init__(
        self, codec: NanoCodec, fsq: NanoFsq, decoder: StreamedDecoder, vocoder: StreamVocoder
    ) -> None:
        self._codec, self._frames_per_code = codec, fsq.config.frames_per_code
        self.decoder = decoder.open()
        self.vocoder = vocoder.open()
        self.waiting: tuple[int, ...] = ()
        self.held_back = 0

    def push(self, codes: Sequence[int]) -> np.ndarray:
        """Codes -> the samples float32 [n] that became final; raises ParameterError."""
        return self._codec.push_together([Push(self, codes)])[0]

    def flush(self) -> np.ndarray:
        """-> the remaining samples; the stream is over."""
        return self._codec.push_together([Push(self, (), is_last=True)])[0]

    def saved(self) -> tuple[Any, ...] | None:
        """See `MovableStream`; on a GPU the codes are soon run again."""
        if self.decoder.past[0].device.type != "cpu":
            return None
        return self.waiting, self.held_back, _plain(self.decoder.past), _plain(self.vocoder.state)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """See `MovableStream`."""
        self.waiting, self.held_back, past, vocoder = saved
        self.decoder.past, self.vocoder.state = _tensors(past), _tensors(vocoder)

    @property
    def is_ready(self) -> bool:
        """Whether the codes that wait complete a chunk."""
        return self._lacking_codes <= 0

    @property
    def missing_codes(self) -> int:
        """See `SpeechStream`."""
        return max(1, self._lacking_codes)

    @property
    def lasting_codes(self) -> int:
        """See `SpeechStream`: the first chunk is long enough."""
        return self.missing_codes

    def places(self, num_codes: int) -> int:
        """See `SpeechStream`."""
        return 1

    @property
    def _lacking_codes(self) -> int:
        chunk_codes = -(-self.vocoder.missing_frames // self._frames_per_code)
        return chunk_codes + LOOK_AHEAD_CODES - self.held_back - len(self.waiting)


def _plain(value: Any) -> Any:
    """Tensors, in tuples or not, as numpy arrays of their own."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.numpy().copy() if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def _alike(
    streams: Sequence[NanoStream], key: Callable[[NanoStream], Hashable]
) -> list[list[NanoStream]]:
    groups: dict[Hashable, list[NanoStream]] = {}
    for stream in streams:
        groups.setdefault(key(stream), []).append(stream)
    return list(groups.values())


@contextlib.contextmanager
def _unchanged_if_it_fails(streams: Sequence[NanoStream]) -> Iterator[None]:
    """Put every stream back to where it was when the work on them raises."""
    before = [(s.waiting, s.held_back, s.decoder.past, copy.copy(s.vocoder)) for s in streams]
    try:
        yield
    except BaseException:
        for s, values in zip(streams, before, strict=True):
            s.waiting, s.held_back, s.decoder.past, s.vocoder = values
        raise


def load_nano_codec(
    codec_folder: Path, vocoder_folder: Path, device: torch.device | str = "cpu"
) -> NanoCodec:
    """Read both folders and join them; MelSpecError where they were trained on different mels."""
    device = torch.device(device)
    chunk_codes = CHUNK_CODES if device.type == "cuda" else CPU_CHUNK_CODES
    mel, fsq = vocoder_mel(vocoder_folder), load_fsq(codec_folder, device)
    fsq.config.mel.check_equal(mel, ours=str(codec_folder), theirs=str(vocoder_folder))
    chunks = tuple(codes * fsq.config.frames_per_code for codes in chunk_codes)
    together = MAX_TOGETHER if device.type == "cuda" else 1
    vocoder = make_vocoder(vocoder_folder, device, chunks, together)
    return NanoCodec(fsq, vocoder, device, max_together=together)
