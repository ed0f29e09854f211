"""Two ways to stream a vocoder, and what a codec sees of either.

`WindowVocoder` runs a non-causal one on overlapping windows of the mel and keeps each window's
middle. A window is [left context | chunk | right context]. With contexts at least as long as the
network's support, the joined chunks are the samples of one run over the whole mel with silence
around it; nothing is faded or scaled at the joins. `CachedVocoder` runs one that keeps what its
layers need of the past, so that every frame is computed once. `MelVocoder` is either, or HiFT, with
streams that are values.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.vocoder.hift.generator import Window
from moss_engine.codec.vocoder.source_filter import Pasts
from moss_engine.models.recording import Recording

ACTIVATION_REACH = 5
Generator = Callable[[Tensor], Tensor]
"""log-mel [batch, num_mels, frames] -> [batch, 1, frames * hop_size]"""


@dataclass(frozen=True)
class WindowPlan:
    """Frames of each chunk in turn (the last repeats), and of the context before and behind it.
    With `support_frames` of context on both sides the joins are exact.

    `lengths`, ascending, are those that windows may have, where that is restricted: each window is
    the shortest that will do, filled up with more context on the left, so that few shapes occur and
    windows of many streams run together.
    """

    chunk_frames: tuple[int, ...]
    left_frames: int
    right_frames: int
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.chunk_frames and min(self.chunk_frames) > 0, "a chunk needs frames"
        assert self.left_frames >= 0 and self.right_frames >= 0, "context cannot be negative"
        assert list(self.lengths) == sorted(self.lengths), "lengths ascend"
        assert not self.lengths or max(self.chunk_frames) <= self.longest_part, (
            "no window is long enough for a chunk"
        )

    def chunk(self, index: int) -> int:
        return self.chunk_frames[min(index, len(self.chunk_frames) - 1)]

    @property
    def longest_part(self) -> int:
        """The most frames that one window of a restricted length makes final."""
        return self.lengths[-1] - self.left_frames - self.right_frames

    def part(self, remaining: int) -> int:
        """How many of the last frames of a reply are made in one window."""
        return min(remaining, self.longest_part) if self.lengths else remaining

    @property
    def past_frames(self) -> int:
        """Frames before the first that is not final which a window may need."""
        return self.lengths[-1] - self.right_frames if self.lengths else self.left_frames

    def window(self, frames: int) -> int:
        """Length of the window that makes so many frames final."""
        needed = self.left_frames + frames + self.right_frames
        return (
            next(length for length in self.lengths if length >= needed) if self.lengths else needed
        )


def support_frames(config: Mapping[str, Any]) -> int:
    """Frames on either side of a frame that can change its samples, for a BigVGAN config.

    Composed backwards from the output through every layer's reach: 3 samples for the outer
    convolutions, ACTIVATION_REACH for an anti-aliased activation, the longest residual block of
    each stage, the transposed kernels.
    """
    first, last = 0, config["hop_size"] - 1
    first, last = first - 3 - ACTIVATION_REACH, last + 3 + ACTIVATION_REACH
    blocks = zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True)
    reach = max(_block_reach(config["resblock"], kernel, dilations) for kernel, dilations in blocks)
    stages = zip(config["upsample_rates"], config["upsample_kernel_sizes"], strict=True)
    for rate, kernel in reversed(list(stages)):
        first, last = first - reach, last + reach
        padding = (kernel - rate) // 2
        first, last = -((kernel - 1 - padding - first) // rate), (last + padding) // rate
    return max(3 - first, last + 3)


def context_frames(config: Mapping[str, Any], share: float) -> int:
    """Whole frames of context that are `share` of the support."""
    return math.ceil(share * support_frames(config) - 1e-9)


def _block_reach(kind: str, kernel: int, dilations: list[int]) -> int:
    reach = sum(ACTIVATION_REACH + (kernel - 1) // 2 * dilation for dilation in dilations)
    if kind == "1":
        reach += len(dilations) * (ACTIVATION_REACH + (kernel - 1) // 2)
    return reach


class StreamVocoder(ABC):
    """A generator run as a stream: `WindowVocoder` or `CachedVocoder`.

    A stream takes mel by `add` and says by `missing_frames` how much more it waits for. All that it
    holds is replaced, never written to, so that a shallow copy is the stream as it was.
    """

    mel: MelSpec

    @abstractmethod
    def open(self) -> Any:
        """A reply before its first frame."""

    @abstractmethod
    def speak_together(self, streams: Sequence[Any]) -> list[Tensor]:
        """-> the samples [n] of each stream that became final"""

    @abstractmethod
    def flush_together(self, streams: Sequence[Any]) -> list[Tensor]:
        """Replies that are over -> the remaining samples [n] of each; silence follows the last
        frame."""

    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, Any]]:
        """See `MelVocoder`."""
        streams: list[Any] = [copy.copy(one.state) for one in windows]
        done: dict[int, Tensor] = {}
        for i, one in enumerate(windows):
            streams[i].add(one.mel)
        for is_last, run in ((False, self.speak_together), (True, self.flush_together)):
            members = [i for i, one in enumerate(windows) if one.is_last == is_last]
            if members:
                done.update(zip(members, run([streams[i] for i in members]), strict=True))
        return [(done[i], stream) for i, stream in enumerate(streams)]


class VocoderStream:
    """One reply of a `WindowVocoder`. `mel` [num_mels, frames] holds the context and all that is
    not final yet. It is replaced, never written to, so that a shallow copy is the stream as it was.
    """

    def __init__(self, mel: MelSpec, plan: WindowPlan, device: torch.device) -> None:
        self.plan, self._hop, self._past_frames = plan, mel.hop_size, plan.past_frames
        self.mel = torch.full((mel.num_mels, self._past_frames), LOG_FLOOR, device=device)
        self.num_chunks = 0

    @property
    def state(self) -> tuple[Any, ...]:
        """All that changes."""
        return self.mel, self.num_chunks

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        self.mel, self.num_chunks = state

    @property
    def missing_frames(self) -> int:
        """Frames that must still be added before more samples become final."""
        return self.plan.chunk(self.num_chunks) + self.plan.right_frames - self.pending_frames

    @property
    def pending_frames(self) -> int:
        return self.mel.shape[1] - self._past_frames

    def add(self, mel: Tensor) -> None:
        """Take float32 [num_mels, frames] without running anything yet."""
        self.mel = torch.cat([self.mel, mel], dim=1)

    def window(self, frames: int) -> Tensor:
        """[num_mels, window]: the next `frames` frames with their context"""
        end = self._past_frames + frames + self.plan.right_frames
        return self.mel[:, end - self.plan.window(frames) : end]

    def take(self, wave: Tensor, frames: int) -> Tensor:
        """The window's wave [window * hop_size] -> its `frames` frames' samples, which are
        final."""
        self.mel = self.mel[:, frames:]
        self.num_chunks += 1
        end = len(wave) - self.plan.right_frames * self._hop
        return wave[end - frames * self._hop : end]


class WindowVocoder(StreamVocoder):
    """Speaks replies with a generator that is run on windows of the mel."""

    def __init__(
        self, generator: Generator, mel: MelSpec, plan: WindowPlan, device: torch.device
    ) -> None:
        self.generator, self.mel, self.plan, self._device = generator, mel, plan, device

    def open(self) -> VocoderStream:
        return VocoderStream(self.mel, self.plan, self._device)

    @torch.inference_mode()
    def speak_together(self, streams: Sequence[VocoderStream]) -> list[Tensor]:
        """See `StreamVocoder`: runs every complete chunk."""
        done: list[list[Tensor]] = [[] for _ in streams]
        while ready := [i for i, stream in enumerate(streams) if stream.missing_frames <= 0]:
            chunks = {i: self.plan.chunk(streams[i].num_chunks) for i in ready}
            self._run(streams, chunks, done)
        return [_joined(pieces, self._device) for pieces in done]

    @torch.inference_mode()
    def flush_together(self, streams: Sequence[VocoderStream]) -> list[Tensor]:
        """See `StreamVocoder`."""
        done: list[list[Tensor]] = [[] for _ in streams]
        remaining = [stream.pending_frames for stream in streams]
        for stream in streams:
            stream.mel = pad(stream.mel, (0, self.plan.right_frames), value=LOG_FLOOR)
        while any(remaining):
            parts = {i: self.plan.part(left) for i, left in enumerate(remaining) if left}
            self._run(streams, parts, done)
            remaining = [left - parts.get(i, 0) for i, left in enumerate(remaining)]
        return [_joined(pieces, self._device) for pieces in done]

    def _run(
        self, streams: Sequence[VocoderStream], frames: Mapping[int, int], done: list[list[Tensor]]
    ) -> None:
        """The next frames of some streams (index -> count), windows of one length in one run."""
        windows = {i: streams[i].window(count) for i, count in frames.items()}
        for length in sorted({window.shape[1] for window in windows.values()}):
            members = [i for i, window in windows.items() if window.shape[1] == length]
            waves = self.generator(torch.stack([windows[i] for i in members]))[:, 0]
            for i, wave in zip(members, waves, strict=True):
                done[i].append(streams[i].take(wave, frames[i]))


def _joined(pieces: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat(pieces) if pieces else torch.empty(0, device=device)


SILENT_FRAMES = 64
"""Silence before a stream's first frame: longer than anything that a layer remembers."""
RUN_FRAMES = 40
"""Frames of one run: as many as keep the layers' tensors in a processor's cache."""
KNEE = 0.8
"""Samples beyond it are bent, so that none reaches 1."""


class Network(Protocol):
    """A generator that can be streamed; `delay` samples pass before a mel frame's first sample."""

    delay: int

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor: ...


class CachedVocoder(StreamVocoder):
    """Speaks replies with one network, `gain` times as loud as it was trained.

    Sound comes in chunks of `chunk_frames` frames, the last number again and again.
    """

    def __init__(
        self,
        network: Network,
        mel: MelSpec,
        gain: float,
        chunk_frames: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.network, self.mel = network, mel
        self._gain, self._chunk_frames = gain, chunk_frames
        silence = torch.full((1, mel.num_mels, SILENT_FRAMES), LOG_FLOOR, device=device)
        with torch.inference_mode():
            pasts = Pasts(None)
            self.network.advance(silence, pasts)
        self._silent = tuple(pasts.kept)
        self._advance_one: Callable[..., tuple[Tensor, ...]] = self._advance
        if device.type == "cpu":
            self._advance_one = Recording(self._advance, (silence, *self._silent))
        self._device = device

    def open(self) -> CachedStream:
        empty = torch.empty(self.mel.num_mels, 0, device=self._device)
        delay, hop = self.network.delay, self.mel.hop_size
        return CachedStream(self._silent, empty, self._chunk_frames, delay, hop)

    @torch.inference_mode()
    def speak_together(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """See `StreamVocoder`: runs those whose chunk is complete."""
        ready = [stream for stream in streams if stream.missing_frames <= 0]
        made = dict(zip(map(id, ready), self._run(ready), strict=True))
        none = torch.empty(0, device=self._device)
        for stream in ready:
            stream.num_chunks += 1
        return [made.get(id(stream), none) for stream in streams]

    @torch.inference_mode()
    def flush_together(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """See `StreamVocoder`."""
        owed = [stream.owed_samples for stream in streams]
        tail = -(-self.network.delay // self.mel.hop_size)
        for stream in streams:
            stream.mel = pad(stream.mel, (0, tail), value=LOG_FLOOR)
        waves = self._run(streams)
        return [wave[:count] for wave, count in zip(waves, owed, strict=True)]

    def _run(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """All frames that wait, those of equally many together"""
        done: list[list[Tensor]] = [[] for _ in streams]
        while waiting := [i for i, stream in enumerate(streams) if stream.pending_frames]:
            count = min(RUN_FRAMES, streams[waiting[0]].pending_frames)
            members = [i for i in waiting if min(RUN_FRAMES, streams[i].pending_frames) == count]
            mel = torch.stack([streams[i].mel[:, :count] for i in members])
            pasts = (torch.cat(kept) for kept in zip(*(streams[i].kept for i in members)))
            waves, *news = (self._advance_one if len(members) == 1 else self._advance)(mel, *pasts)
            for row, (i, wave) in enumerate(zip(members, waves, strict=True)):
                stream = streams[i]
                stream.kept = tuple(kept[row : row + 1] for kept in news)
                stream.mel = stream.mel[:, count:]
                done[i].append(wave[stream.skipped :])
                stream.skipped = max(0, stream.skipped - len(wave))
        return [_joined(pieces, self._device) for pieces in done]

    def _advance(self, mel: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        """-> samples [batch, n], and what the layers keep"""
        pasts = Pasts(kept)
        waves = limited(self.network.advance(mel, pasts) * self._gain)
        return waves, *pasts.kept


class CachedStream:
    """One reply: `kept` is what the layers know of it, `mel` [num_mels, frames] what they do not
    know yet.

    Both are replaced, never written to, so that a shallow copy is the stream as it was.
    """

    def __init__(
        self,
        kept: tuple[Tensor, ...],
        mel: Tensor,
        chunk_frames: tuple[int, ...],
        delay: int,
        hop_size: int,
    ) -> None:
        self.kept, self.mel, self.num_chunks = kept, mel, 0
        self.skipped = delay
        self._chunk_frames, self._delay, self._hop = chunk_frames, delay, hop_size

    @property
    def state(self) -> tuple[Any, ...]:
        """All that changes."""
        return self.kept, self.mel, self.num_chunks, self.skipped

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        self.kept, self.mel, self.num_chunks, self.skipped = state

    def add(self, mel: Tensor) -> None:
        """Take float32 [num_mels, frames] without running anything yet."""
        self.mel = torch.cat([self.mel, mel], 1)

    @property
    def pending_frames(self) -> int:
        return self.mel.shape[1]

    @property
    def missing_frames(self) -> int:
        """Frames that must still be added before more samples become final."""
        chunk = self._chunk_frames[min(self.num_chunks, len(self._chunk_frames) - 1)]
        return chunk + -(-self.skipped // self._hop) - self.pending_frames

    @property
    def owed_samples(self) -> int:
        """Samples of the frames so far that have not been given out."""
        return self.pending_frames * self._hop + self._delay - self.skipped


def limited(wave: Tensor) -> Tensor:
    """Samples up to KNEE as they are, louder ones bent towards 1, each by itself."""
    over = (wave.abs() - KNEE).clamp_min(0)
    bent = KNEE + (1 - KNEE) * torch.tanh(over / (1 - KNEE))
    return torch.where(over > 0, bent * wave.sign(), wave)


class MelVocoder(Protocol):
    """Speaks many replies: `Hift`, or a `StreamVocoder`. A state is a value: what is spoken from it
    leaves it as it was. A window is a state with the next mel frames [mels, n], which are the
    reply's last ones or not."""

    def open(self) -> Any:
        """The state of a reply before its first frame."""
        ...

    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, Any]]:
        """-> for each, the samples [n] that are final now, and the state that follows."""
        ...
