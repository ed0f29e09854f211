"""Streaming a non-causal vocoder: run it on overlapping windows of the mel and keep each window's
middle.

A window is [left context | chunk | right context]. With contexts at least as long as the network's
support, the joined chunks are the samples of one run over the whole mel with silence around it;
nothing is faded or scaled at the joins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.tally import Cost, Tallied, Tally

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


class VocoderStream:
    """Mel frames in, final samples out, for one reply.

    `mel` [num_mels, frames] holds the context and all that is not final yet. It is replaced, never
    written to.
    """

    def __init__(
        self,
        generator: Generator,
        num_mels: int,
        hop_size: int,
        plan: WindowPlan,
        device: torch.device,
    ) -> None:
        self.generator, self.plan, self._hop = generator, plan, hop_size
        self._past_frames = plan.past_frames
        self.mel = torch.full((num_mels, self._past_frames), LOG_FLOOR, device=device)
        self.num_chunks = 0

    @torch.inference_mode()
    def push(self, mel: Tensor) -> Tensor:
        """float32 [num_mels, frames] -> the samples [n] that became final"""
        self.add(mel)
        return speak_together([self])[0]

    @torch.inference_mode()
    def flush(self) -> Tensor:
        """-> the remaining samples; silence follows the last frame."""
        return flush_together([self])[0]

    @property
    def missing_frames(self) -> int:
        """Frames that must still be pushed before more samples become final."""
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


@torch.inference_mode()
def speak_together(streams: Sequence[VocoderStream]) -> list[Tensor]:
    """Run every complete chunk of streams of one generator -> the samples [n] of each that became
    final"""
    done: list[list[Tensor]] = [[] for _ in streams]
    while ready := [i for i, stream in enumerate(streams) if stream.missing_frames <= 0]:
        _run_windows(
            streams, {i: streams[i].plan.chunk(streams[i].num_chunks) for i in ready}, done
        )
    return [_joined(pieces, streams[0].mel) for pieces in done]


@torch.inference_mode()
def flush_together(streams: Sequence[VocoderStream]) -> list[Tensor]:
    """Streams that are over -> the remaining samples [n] of each; silence follows the last
    frame."""
    done: list[list[Tensor]] = [[] for _ in streams]
    remaining = [stream.pending_frames for stream in streams]
    for stream in streams:
        stream.add(stream.mel.new_full((stream.mel.shape[0], stream.plan.right_frames), LOG_FLOOR))
    while any(remaining):
        parts = {i: streams[i].plan.part(left) for i, left in enumerate(remaining) if left}
        _run_windows(streams, parts, done)
        remaining = [left - parts.get(i, 0) for i, left in enumerate(remaining)]
    return [_joined(pieces, streams[0].mel) for pieces in done]


def _run_windows(
    streams: Sequence[VocoderStream], frames: Mapping[int, int], done: list[list[Tensor]]
) -> None:
    """The next frames of some streams (index -> count), windows of one length in one run."""
    windows = {i: streams[i].window(count) for i, count in frames.items()}
    for length in sorted({window.shape[1] for window in windows.values()}):
        members = [i for i, window in windows.items() if window.shape[1] == length]
        waves = streams[0].generator(torch.stack([windows[i] for i in members]))[:, 0]
        for i, wave in zip(members, waves, strict=True):
            done[i].append(streams[i].take(wave, frames[i]))


def _joined(pieces: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(pieces) if pieces else like.new_zeros(0)


def whole_wave(generator: nn.Module, mel: Tensor, context_frames: int) -> Tensor:
    """[num_mels, frames] -> [frames * hop_size] in one run with silence around it: what a stream is
    measured against"""
    padded = torch.nn.functional.pad(mel, (context_frames, context_frames), value=LOG_FLOOR)
    with torch.inference_mode():
        wave = generator(padded[None])[0, 0]
    edge = context_frames * (len(wave) // padded.shape[1])
    return wave[edge : len(wave) - edge]


class WindowVocoder:
    """Speaks replies with a generator that is run on windows of the mel, at a `cost`."""

    def __init__(
        self, generator: Generator, mel: MelSpec, plan: WindowPlan, device: torch.device, cost: Cost
    ) -> None:
        self.mel, self.plan, self.tally = mel, plan, Tally(cost.weight_bytes)
        self.generator = Tallied(generator, cost, self.tally)
        self._device = device

    def open(self) -> VocoderStream:
        spec = self.mel
        return VocoderStream(self.generator, spec.num_mels, spec.hop_size, self.plan, self._device)

    def speak_together(self, streams: Sequence[VocoderStream]) -> list[Tensor]:
        return speak_together(streams)

    def flush_together(self, streams: Sequence[VocoderStream]) -> list[Tensor]:
        return flush_together(streams)
