"""Two ways to stream a vocoder, and what a codec sees of either.

`WindowVocoder` runs a non-causal one on overlapping windows of the mel and keeps each window's
middle. A window is [left context | chunk | right context]. With contexts at least as long as the
network's support, the joined chunks are the samples of one run over the whole mel with silence
around it; nothing is faded or scaled at the joins. `CachedVocoder` runs one that keeps what its
layers need of the past, so that every frame is computed once. `MelVocoder` is either, or HiFT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.codec.base import MelSpec, MelVocoder, Window
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.vocoder.source_filter import Pasts
from moss_engine.models.recording import Recording


class ChunkVocoder(MelVocoder, Protocol):
    """Takes mel of any length, and makes sound of it in chunks: `WindowVocoder` or
    `CachedVocoder`."""

    mel: MelSpec

    def missing_frames(self, state: Any) -> int:
        """Frames that must still be added before more samples become final."""
        ...


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


class WindowState(NamedTuple):
    """A reply of a `WindowVocoder`: `mel` [num_mels, frames] holds the context and all that is not
    final yet."""

    mel: Tensor
    num_chunks: int


class WindowVocoder:
    """Speaks replies with a generator that is run on windows of the mel."""

    def __init__(
        self, generator: Generator, mel: MelSpec, plan: WindowPlan, device: torch.device
    ) -> None:
        self.generator, self.mel, self.plan, self._device = generator, mel, plan, device
        self._before, self._after = (
            torch.full((mel.num_mels, frames), LOG_FLOOR, device=device)
            for frames in (plan.past_frames, plan.right_frames)
        )

    def open(self) -> WindowState:
        """See `MelVocoder`."""
        return WindowState(self._before, 0)

    def missing_frames(self, state: WindowState) -> int:
        """See `ChunkVocoder`."""
        return self.plan.chunk(state.num_chunks) - self._ready(state)

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, WindowState]]:
        """See `MelVocoder`: every complete chunk, windows of one length in one run."""
        states = [
            state._replace(mel=torch.cat([state.mel, mel, *[self._after] * is_last], 1))
            for state, mel, is_last in windows
        ]
        done: list[list[Tensor]] = [[] for _ in windows]
        while due := {
            i: frames
            for i, one in enumerate(windows)
            if (frames := self._due(states[i], one.is_last))
        }:
            cut = {i: self._window(states[i].mel, frames) for i, frames in due.items()}
            for length in sorted({mel.shape[1] for mel in cut.values()}):
                members = [i for i, mel in cut.items() if mel.shape[1] == length]
                waves = self.generator(torch.stack([cut[i] for i in members]))[:, 0]
                for i, wave in zip(members, waves, strict=True):
                    end = len(wave) - self.plan.right_frames * self.mel.hop_size
                    done[i].append(wave[end - due[i] * self.mel.hop_size : end])
                    mel, num_chunks = states[i]
                    states[i] = WindowState(mel[:, due[i] :], num_chunks + 1)
        waves = [_joined(pieces, self._device) for pieces in done]
        return list(zip(waves, states, strict=True))

    def _ready(self, state: WindowState) -> int:
        """Frames with all their context."""
        return state.mel.shape[1] - self.plan.past_frames - self.plan.right_frames

    def _due(self, state: WindowState, is_last: bool) -> int:
        """Frames of the next window, if any."""
        ready, chunk = self._ready(state), self.plan.chunk(state.num_chunks)
        return self.plan.part(ready) if is_last else chunk * (ready >= chunk)

    def _window(self, mel: Tensor, frames: int) -> Tensor:
        """[num_mels, window]: the next `frames` frames with their context"""
        end = self.plan.past_frames + frames + self.plan.right_frames
        return mel[:, end - self.plan.window(frames) : end]


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


class CachedState(NamedTuple):
    """A reply of a `CachedVocoder`: `kept` is what the layers know of it, `mel` [num_mels, frames]
    what they do not know yet, `skipped` the samples that the delay still swallows."""

    kept: tuple[Tensor, ...]
    mel: Tensor
    num_chunks: int
    skipped: int


class CachedVocoder:
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

    def open(self) -> CachedState:
        """See `MelVocoder`."""
        empty = torch.empty(self.mel.num_mels, 0, device=self._device)
        return CachedState(self._silent, empty, 0, self.network.delay)

    def missing_frames(self, state: CachedState) -> int:
        """See `ChunkVocoder`."""
        chunk = self._chunk_frames[min(state.num_chunks, len(self._chunk_frames) - 1)]
        return chunk + -(-state.skipped // self.mel.hop_size) - state.mel.shape[1]

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, CachedState]]:
        """See `MelVocoder`: all frames that wait, once they complete a chunk, those of equally many
        together."""
        delay, hop = self.network.delay, self.mel.hop_size
        states: list[CachedState] = []
        due, owed = list[int](), dict[int, int]()
        for i, (state, mel, is_last) in enumerate(windows):
            state = state._replace(mel=torch.cat([state.mel, mel], 1))
            if is_last:
                owed[i] = state.mel.shape[1] * hop + delay - state.skipped
                state = state._replace(mel=pad(state.mel, (0, -(-delay // hop)), value=LOG_FLOOR))
            if is_last or self.missing_frames(state) <= 0:
                due.append(i)
                state = state._replace(num_chunks=state.num_chunks + 1)
            states.append(state)
        done: list[list[Tensor]] = [[] for _ in windows]
        while waiting := [i for i in due if states[i].mel.shape[1]]:
            count = min(RUN_FRAMES, states[waiting[0]].mel.shape[1])
            members = [i for i in waiting if min(RUN_FRAMES, states[i].mel.shape[1]) == count]
            mel = torch.stack([states[i].mel[:, :count] for i in members])
            pasts = (torch.cat(kept) for kept in zip(*(states[i].kept for i in members)))
            waves, *news = (self._advance_one if len(members) == 1 else self._advance)(mel, *pasts)
            for row, (i, wave) in enumerate(zip(members, waves, strict=True)):
                _, mel, num_chunks, skipped = states[i]
                done[i].append(wave[skipped:])
                kept = tuple(kept[row : row + 1] for kept in news)
                skipped = max(0, skipped - len(wave))
                states[i] = CachedState(kept, mel[:, count:], num_chunks, skipped)
        waves = [_joined(done[i], self._device)[: owed.get(i)] for i in range(len(windows))]
        return list(zip(waves, states, strict=True))

    def _advance(self, mel: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        """-> samples [batch, n], and what the layers keep"""
        pasts = Pasts(kept)
        waves = limited(self.network.advance(mel, pasts) * self._gain)
        return waves, *pasts.kept


def limited(wave: Tensor) -> Tensor:
    """Samples up to KNEE as they are, louder ones bent towards 1, each by itself."""
    over = (wave.abs() - KNEE).clamp_min(0)
    bent = KNEE + (1 - KNEE) * torch.tanh(over / (1 - KNEE))
    return torch.where(over > 0, bent * wave.sign(), wave)
