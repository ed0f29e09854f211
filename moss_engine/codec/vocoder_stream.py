"""Streaming a non-causal vocoder: run it on overlapping windows of the mel and keep each window's middle.

A window is [left context | chunk | right context]. With contexts at least as long as the network's support, the joined
chunks are the samples of one run over the whole mel with silence around it; nothing is faded or scaled at the joins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.mel import LOG_FLOOR

ACTIVATION_REACH = 5


@dataclass(frozen=True)
class WindowPlan:
    """Frames of each chunk in turn (the last repeats), and of context around it; `support_frames` of it are exact."""

    chunk_frames: tuple[int, ...]
    left_frames: int
    right_frames: int

    def __post_init__(self) -> None:
        assert self.chunk_frames and min(self.chunk_frames) > 0, "a chunk needs frames"
        assert self.left_frames >= 0 and self.right_frames >= 0, "context cannot be negative"

    def chunk(self, index: int) -> int:
        return self.chunk_frames[min(index, len(self.chunk_frames) - 1)]


def support_frames(config: Mapping[str, Any]) -> int:
    """Frames on either side of a frame that can change its samples, for a BigVGAN config.

    Composed backwards from the output through every layer's reach: 3 samples for the outer convolutions,
    ACTIVATION_REACH for an anti-aliased activation, the longest residual block of each stage, the transposed kernels.
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
    """Mel frames in, final samples out, for one reply."""

    def __init__(
        self, generator: nn.Module, num_mels: int, hop_size: int, plan: WindowPlan, device: torch.device
    ) -> None:
        self._generator, self._hop, self._plan = generator, hop_size, plan
        # the left context and everything that is not final yet
        self._mel = torch.full((num_mels, plan.left_frames), LOG_FLOOR, device=device)
        self._num_chunks = 0

    @torch.inference_mode()
    def push(self, mel: Tensor) -> Tensor:
        """float32 [num_mels, frames] -> the samples [n] that became final"""
        self._mel = torch.cat([self._mel, mel], dim=1)
        done = []
        while self.missing_frames <= 0:
            done.append(self._run(self._plan.chunk(self._num_chunks)))
            self._num_chunks += 1
        return torch.cat(done) if done else self._mel.new_zeros(0)

    @torch.inference_mode()
    def flush(self) -> Tensor:
        """-> the remaining samples; silence follows the last frame."""
        remaining = self._pending
        if not remaining:
            return self._mel.new_zeros(0)
        silence = self._mel.new_full((self._mel.shape[0], self._plan.right_frames), LOG_FLOOR)
        self._mel = torch.cat([self._mel, silence], dim=1)
        return self._run(remaining)

    @property
    def missing_frames(self) -> int:
        """Frames that must still be pushed before more samples become final."""
        return self._plan.chunk(self._num_chunks) + self._plan.right_frames - self._pending

    @property
    def _pending(self) -> int:
        return self._mel.shape[1] - self._plan.left_frames

    def _run(self, frames: int) -> Tensor:
        left, right = self._plan.left_frames, self._plan.right_frames
        wave = self._generator(self._mel[None, :, : left + frames + right])[0, 0]
        self._mel = self._mel[:, frames:]
        return wave[left * self._hop : (left + frames) * self._hop]


def whole_wave(generator: nn.Module, mel: Tensor, context_frames: int) -> Tensor:
    """[num_mels, frames] -> [frames * hop_size] in one run with silence around it: what a stream is measured against"""
    padded = torch.nn.functional.pad(mel, (context_frames, context_frames), value=LOG_FLOOR)
    with torch.inference_mode():
        wave = generator(padded[None])[0, 0]
    edge = context_frames * (len(wave) // padded.shape[1])
    return wave[edge : len(wave) - edge]
