"""The nano codec: its networks, mel -> codes by finite scalar quantisation and codes -> mel, and
the SpeechCodec of them and a vocoder, joined on the same mel.

Both networks are stacks of ConvNeXt blocks. The encoder sees both sides; the decoder is causal but
for one code of look-ahead in its first block, so that it can run as a stream. A folder holds both
with their configuration.

Torch's thread count is per calling thread: a codec thread sets its own with `torch.set_num_threads`
before its first call, and one thread is the setting to choose beside a language model on another
core. A stream belongs to one thread at a time; the networks are shared and only read. On a GPU many
replies are spoken in one run; on a CPU, where a run of many takes as long as each alone, one after
another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from moss_engine.api.errors import CheckpointError, ParameterError, UnsupportedModeError
from moss_engine.codec.base import (
    MOSS_MEL,
    ChunkVocoder,
    MelSpec,
    Push,
    Window,
    check_codes,
    run_alike,
)
from moss_engine.codec.device import on_host, on_lane, open_lane
from moss_engine.codec.files import CONFIG_NAME, filled, read_config, unusable, write
from moss_engine.codec.streamed import Block, Kept, Pasts, Streamed, advanced
from moss_engine.codec.vocoder.make import make_vocoder, vocoder_mel

LOOK_AHEAD_CODES = 1


@dataclass(frozen=True)
class FsqConfig:
    """Sizes of encoder and decoder; the defaults are the built-in voice's. `blocks` are (at the
    frame rate, at the code rate)."""

    mel: MelSpec = MOSS_MEL
    frames_per_code: int = 2
    levels: tuple[int, ...] = (8, 8, 8, 8)
    mel_mean: float = -5.0
    mel_scale: float = 2.0
    kernel_size: int = 7
    mlp_ratio: int = 3
    encoder_dim: int = 256
    encoder_blocks: tuple[int, int] = (2, 2)
    decoder_dim: int = 256
    decoder_blocks: tuple[int, int] = (4, 4)

    @property
    def num_codes(self) -> int:
        return math.prod(self.levels)

    @property
    def samples_per_code(self) -> int:
        return self.frames_per_code * self.mel.hop_size


def _blocks(config: FsqConfig, dim: int, look_aheads: Iterable[int]) -> nn.Sequential:
    """A block for each look-ahead."""
    sizes = dim, config.kernel_size, config.mlp_ratio
    return nn.Sequential(*(Block(*sizes, look_ahead) for look_ahead in look_aheads))


class Encoder(nn.Module):
    """Log-mel -> one point per code, which `quantise` turns into a code."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        dim, side = config.encoder_dim, (config.kernel_size - 1) // 2
        at_frames, at_codes = config.encoder_blocks
        self.embed = nn.Linear(config.mel.num_mels, dim)
        self.frame_blocks = _blocks(config, dim, [side] * at_frames)
        self.shrink = nn.Linear(dim * config.frames_per_code, dim)
        self.code_blocks = _blocks(config, dim, [side] * at_codes)
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, len(config.levels))

    def forward(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> [batch, frames / frames_per_code, len(levels)]"""
        x = self.embed(((mel - self.config.mel_mean) / self.config.mel_scale).transpose(1, 2))
        x = self.frame_blocks(x.transpose(1, 2)).transpose(1, 2)
        x = self.shrink(x.unflatten(1, (-1, self.config.frames_per_code)).flatten(2))
        x = self.code_blocks(x.transpose(1, 2)).transpose(1, 2)
        return self.project(self.norm(x))


class Decoder(nn.Module):
    """Quantised points -> log-mel."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.decoder_dim
        at_frames, at_codes = config.decoder_blocks
        self.embed = nn.Linear(len(config.levels), dim)
        self.code_blocks = _blocks(config, dim, [LOOK_AHEAD_CODES, *[0] * (at_codes - 1)])
        self.expand = nn.Linear(dim, dim * config.frames_per_code)
        self.frame_blocks = _blocks(config, dim, [0] * at_frames)
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, config.mel.num_mels)

    def forward(self, points: Tensor) -> Tensor:
        """[batch, codes, len(levels)] -> [batch, num_mels, codes * frames_per_code]"""
        x = self.code_blocks(self.embed(points).transpose(1, 2))
        return self.finish(self.frame_blocks(self.to_frames(x)))

    def to_frames(self, x: Tensor) -> Tensor:
        """[batch, dim, codes] -> [batch, dim, codes * frames_per_code]; codes do not mix."""
        batch, dim, codes = x.shape
        return (
            self.expand(x.transpose(1, 2))
            .reshape(batch, codes * self.config.frames_per_code, dim)
            .transpose(1, 2)
        )

    def finish(self, x: Tensor) -> Tensor:
        """[batch, dim, frames] -> log-mel [batch, num_mels, frames]"""
        mel = self.project(self.norm(x.transpose(1, 2))).transpose(1, 2)
        return mel * self.config.mel_scale + self.config.mel_mean


class NanoFsq(nn.Module):
    """Encoder and decoder, as they lie together in one file."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def codes_of_mel(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> int64 [batch, frames / frames_per_code]."""
        return codes_of_points(quantise(self.encoder(mel), self.config.levels), self.config.levels)

    def mel_of_codes(self, codes: Tensor) -> Tensor:
        """int64 [batch, codes] -> [batch, num_mels, codes * frames_per_code]"""
        return self.decoder(points_of_codes(codes, self.config.levels))


def quantise(raw: Tensor, levels: tuple[int, ...]) -> Tensor:
    """Round [..., len(levels)] to grid points in (-1, 1); gradients pass as through tanh.

    A level's bin is equally wide everywhere, so that raw values near N(0, 1) use all of them about
    equally.
    """
    count = torch.tensor(levels, dtype=torch.float32, device=raw.device)
    smooth = torch.tanh(0.85 * raw.float())
    index = ((smooth + 1) / 2 * count).floor().clamp_min(0).minimum(count - 1)
    return smooth + ((2 * index + 1) / count - 1 - smooth).detach()


def codes_of_points(points: Tensor, levels: tuple[int, ...]) -> Tensor:
    """Grid points [..., len(levels)] -> int64 codes [...]; the first level varies fastest."""
    count = torch.tensor(levels, device=points.device)
    index = ((points + 1) / 2 * count - 0.5).round().long()
    return (index * _strides(levels, points.device)).sum(-1)


def points_of_codes(codes: Tensor, levels: tuple[int, ...]) -> Tensor:
    """int64 codes [...] -> float32 grid points [..., len(levels)]"""
    count = torch.tensor(levels, device=codes.device)
    index = codes[..., None] // _strides(levels, codes.device) % count
    return (2 * index + 1) / count - 1


def _strides(levels: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([math.prod(levels[:i]) for i in range(len(levels))], device=device)


FSQ_TYPE = "nano-fsq"


def load_fsq(folder: Path, device: torch.device | str = "cpu") -> NanoFsq:
    """The nano codec's networks in float32, ready to run; CheckpointError names a missing, unknown
    or unusable field of config.json."""
    values = read_config(folder)
    wrong = ["type"] * (values.pop("type") != FSQ_TYPE)
    if wrong := wrong + unusable(values, dataclasses.asdict(FsqConfig())):
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export it again."
        )
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    config = FsqConfig(**{**values, **tuples, "mel": MelSpec(**values["mel"])})
    return filled(lambda: NanoFsq(config), folder, device)


def save_fsq(folder: Path, fsq: NanoFsq, *, int8: bool = True) -> None:
    """Write large matrices as int8 rows and the rest as float16, or everything as float32."""
    config = {"type": FSQ_TYPE, **dataclasses.asdict(fsq.config)}
    write(folder, config, fsq.state_dict(), "int8" if int8 else "float32")


class StreamedDecoder:
    """A decoder that runs as streams: mel frames come one code late, and are those of `Decoder`
    over all codes at once. `start` is what its blocks know before the first code."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder = decoder
        dim = decoder.config.decoder_dim
        blocks = cast("list[Block]", [*decoder.code_blocks, *decoder.frame_blocks])
        self.start = tuple(torch.zeros(1, dim, block.look_back, device=device) for block in blocks)
        self._after = torch.zeros(1, dim, LOOK_AHEAD_CODES, device=device)
        codes = torch.zeros(1, dim, 1 + LOOK_AHEAD_CODES, device=device)
        self._streamed = Streamed(self._advance, self.start, codes)

    def decode(
        self, streams: Sequence[Kept], points: Tensor, *, is_last: bool
    ) -> tuple[Tensor, list[Kept]]:
        """Streams that are all new or none: grid points [streams, codes, len(levels)], and nothing
        behind them where they are the last -> log-mel [streams, num_mels, frames] that became
        final, and what each stream keeps."""
        x, kept = self._decoder.embed(points).transpose(1, 2), list(streams)
        runs = [x, *[self._after.expand(len(streams), -1, -1)] * is_last]
        if x.shape[2] + kept[0][0].shape[2] < self._decoder.config.kernel_size:
            runs = [torch.cat(runs, 2)]  # the codes alone make no frame yet
        mels = []
        for steps in runs:
            mel, kept = self._streamed(steps, kept)
            mels.append(mel)
        return torch.cat(mels, 2), kept

    def _advance(self, x: Tensor, pasts: Pasts) -> Tensor:
        """[streams, dim, codes] -> log-mel [streams, num_mels, frames]"""
        x = self._decoder.to_frames(advanced(self._decoder.code_blocks, x, pasts))
        return self._decoder.finish(advanced(self._decoder.frame_blocks, x, pasts))


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
        self, fsq: NanoFsq, vocoder: ChunkVocoder, device: torch.device, *, max_together: int = 1
    ) -> None:
        self._fsq, self.vocoder, self._device = fsq, vocoder, device
        self._decoder = StreamedDecoder(fsq.decoder, device)
        self._lane = open_lane(device)
        mel = fsq.config.mel
        self._no_mel = torch.empty(mel.num_mels, 0, device=device)
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
            return NanoStream(self, NanoState((), 0, self._decoder.start, self.vocoder.open()))

    @torch.inference_mode()
    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        """See `SpeechCodec`; raises ParameterError for a code out of range."""
        check_codes(work, self.num_codes)
        states: list[NanoState] = [push.stream.state.with_codes(push.codes) for push in work]
        with on_lane(self._lane):
            due = [i for i, push in enumerate(work) if self._is_due(states[i], push.is_last)]
            decoded = run_alike(
                [(states[i], work[i].is_last) for i in due],
                lambda one: (len(one[0].waiting), one[0].held_back, one[1]),
                self._decode,
            )
            mels = [self._no_mel] * len(work)
            for i, (mel, kept) in zip(due, decoded, strict=True):
                mels[i] = mel
                states[i] = NanoState((), LOOK_AHEAD_CODES, kept, states[i].vocoder)
            spoken = self.vocoder.speak(
                [
                    Window(state.vocoder, mel, push.is_last)
                    for push, state, mel in zip(work, states, mels, strict=True)
                ]
            )
            samples = on_host([wave for wave, _ in spoken])
        for push, state, (_, vocoder) in zip(work, states, spoken, strict=True):
            push.stream.state = state._replace(vocoder=vocoder)
        return samples

    def _is_due(self, state: NanoState, is_last: bool) -> bool:
        codes = len(state.waiting)
        return codes + state.held_back > 0 if is_last else codes > 0 >= self.lacking_codes(state)

    def _decode(self, alike: Sequence[tuple[NanoState, bool]]) -> Iterable[tuple[Tensor, Kept]]:
        states, (_, is_last) = [state for state, _ in alike], alike[0]
        codes = torch.tensor([s.waiting for s in states], dtype=torch.int64, device=self._device)
        points = points_of_codes(codes, self._fsq.config.levels)
        return zip(*self._decoder.decode([s.kept for s in states], points, is_last=is_last))

    def lacking_codes(self, state: NanoState) -> int:
        """How many more complete a chunk of the vocoder."""
        frames = self.vocoder.missing_frames(state.vocoder)
        codes = -(-frames // self._fsq.config.frames_per_code)
        return codes + LOOK_AHEAD_CODES - state.held_back - len(state.waiting)


class NanoState(NamedTuple):
    """A reply: codes that wait until they complete a chunk of the vocoder, since one run of the
    decoder over many costs as much as over one; how many codes that the decoder took it holds back
    until their look-ahead is known; and the states of both networks. A value: what it holds is
    replaced, never written to."""

    waiting: tuple[int, ...]
    held_back: int
    kept: Kept
    vocoder: Any

    def with_codes(self, codes: Sequence[int]) -> NanoState:
        return self._replace(waiting=(*self.waiting, *codes))


class NanoStream:
    """One reply being spoken: codes -> mel frames -> samples."""

    def __init__(self, codec: NanoCodec, state: NanoState) -> None:
        self._codec, self.state = codec, state

    def saved(self) -> tuple[Any, ...] | None:
        """See `MovableStream`; on a GPU the codes are soon run again."""
        return _plain(self.state) if self.state.kept[0].device.type == "cpu" else None

    def restore(self, saved: tuple[Any, ...]) -> None:
        """See `MovableStream`."""
        state = NanoState(*_tensors(saved))
        self.state = state._replace(vocoder=self.state.vocoder._make(state.vocoder))

    @property
    def missing_codes(self) -> int:
        """See `SpeechStream`."""
        return max(1, self._codec.lacking_codes(self.state))

    @property
    def lasting_codes(self) -> int:
        """See `SpeechStream`: the first chunk is long enough."""
        return self.missing_codes

    def places(self, num_codes: int) -> int:
        """See `SpeechStream`."""
        return 1


def _plain(value: Any) -> Any:
    """Tensors, in tuples or not, as numpy arrays of their own."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.numpy().copy() if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


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
