"""The flow's estimator: the velocity field of the mel, and the Euler steps that follow it.

`Rows` says what a frame may look back at: a whole run has everything at hand (`WholeRows`), a chunk
has its streams' memories (`ChunkRows`). All activations are [rows, frames, channels], a row being
one stream with or one without conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.moss.flow.encoder import linear, norm
from moss_engine.codec.moss.flow.memory import BRANCHES, FlowMemory
from moss_engine.codec.moss.flow.weights import EPS, NUM_STEPS, FlowWeights, Stage, Transformer

TAPS = 3


class Rows(Protocol):
    """Where the rows of a layer look back to. Layers of both kinds are numbered in the order they
    run."""

    def window(self, layer: int, x: Tensor) -> Tensor:
        """[rows, frames, inputs] -> [rows, frames, 3 * inputs]: with two predecessors."""
        ...

    def attend(self, layer: int, noted: Tensor, query: Tensor) -> Tensor:
        """noted [rows, frames, channels], query [rows, frames * heads, channels] -> mixtures."""
        ...


def solve(
    weights: FlowWeights,
    rows: Sequence[Rows],
    noise: Tensor,
    mu: Tensor,
    speaker: Tensor,
    condition: Tensor,
) -> Tensor:
    """Euler steps from noise to the mel: all [streams, frames, mels], speaker [streams, mels].

    `rows` has one view of the past for every step.
    """
    guidance = weights.config.guidance
    fixed = torch.cat([mu, speaker[:, None].expand_as(mu), condition], -1)
    fixed = torch.stack([fixed, torch.zeros_like(fixed)], 1).flatten(0, 1)
    x = noise
    for step in range(NUM_STEPS):
        inputs = torch.cat([x.repeat_interleave(BRANCHES, 0), fixed], -1)
        moves = velocity(weights, rows[step], inputs, step).unflatten(0, (-1, BRANCHES))
        x = x + weights.strides[step] * ((1 + guidance) * moves[:, 0] - guidance * moves[:, 1])
    return x


def velocity(weights: FlowWeights, rows: Rows, inputs: Tensor, step: int) -> Tensor:
    """[rows, frames, input channels] -> [rows, frames, mels]"""
    estimator, dtype = weights.estimator, weights.dtype
    convolution = layer = 0
    x, skipped = inputs, inputs
    for stage in estimator.stages:
        if stage is estimator.stages[-1]:
            x = torch.cat([x, skipped], -1)
        x = _residual(stage, rows, convolution, x, step, dtype)
        convolution += 2
        for transformer in stage.transformers:
            x = _transformed(transformer, rows, layer, x, dtype)
            layer += 1
        if stage.after is not None:
            skipped = x
            x = linear(rows.window(convolution, x.to(dtype)), stage.after).to(inputs.dtype)
            convolution += 1
    x = linear(rows.window(convolution, x.to(dtype)), estimator.final)
    x = F.mish(norm(x, estimator.final_norm, EPS))
    return linear(x.to(dtype), estimator.project).to(inputs.dtype)


def _residual(
    stage: Stage, rows: Rows, convolution: int, x: Tensor, step: int, dtype: torch.dtype
) -> Tensor:
    hidden, straight = linear(rows.window(convolution, x.to(dtype)), stage.first).chunk(2, -1)
    hidden = F.mish(norm(hidden, stage.first_norm, EPS)) + stage.time[step]
    hidden = linear(rows.window(convolution + 1, hidden.to(dtype)), stage.second)
    return F.mish(norm(hidden, stage.second_norm, EPS)) + straight


def _transformed(
    block: Transformer, rows: Rows, layer: int, x: Tensor, dtype: torch.dtype
) -> Tensor:
    channels = x.shape[-1]
    noted = norm(x, block.norm_attention, EPS).to(dtype)
    query = F.linear(noted, block.query).unflatten(-1, (-1, channels)).flatten(1, 2)
    mixed = rows.attend(layer, noted, query).unflatten(1, (x.shape[1], -1)).flatten(2)
    x = x + linear(mixed, block.out)
    hidden = F.gelu(linear(norm(x, block.norm_ffn, EPS).to(dtype), block.first))
    return x + linear(hidden, block.second)


class WholeRows:
    """All frames at once. With `chunk_frames`, a frame's attention sees its own and earlier chunks;
    without, all."""

    def __init__(self, frames: int, chunk_frames: int | None, device: torch.device) -> None:
        self._seen = None
        if chunk_frames is not None:
            chunks = torch.arange(frames, device=device) // chunk_frames
            self._seen = chunks[:, None] >= chunks[None, :]

    def window(self, layer: int, x: Tensor) -> Tensor:
        return _side_by_side(F.pad(x, (0, 0, TAPS - 1, 0)))

    def attend(self, layer: int, noted: Tensor, query: Tensor) -> Tensor:
        seen = self._seen
        if seen is not None:
            seen = seen.repeat_interleave(query.shape[1] // noted.shape[1], 0)
        return F.scaled_dot_product_attention(query, noted, noted, attn_mask=seen, scale=1.0)


class ChunkRows:
    """The next chunk of some streams, at one step; their memories are read and written."""

    def __init__(self, memories: Sequence[FlowMemory], step: int) -> None:
        self._memories, self._step = memories, step

    def window(self, layer: int, x: Tensor) -> Tensor:
        size, step = x.shape[-1], self._step
        before = torch.cat([m.tails[m.parity, step, layer, :, :, :size] for m in self._memories])
        x = torch.cat([before, x], 1)
        for memory, rows in zip(self._memories, x.unflatten(0, (-1, BRANCHES)), strict=True):
            memory.tails[1 - memory.parity, step, layer, :, :, :size] = rows[:, 1 - TAPS :]
        return _side_by_side(x)

    def attend(self, layer: int, noted: Tensor, query: Tensor) -> Tensor:
        mixed, frames = [], noted.shape[1]
        for n, memory in enumerate(self._memories):
            own = slice(BRANCHES * n, BRANCHES * (n + 1))
            notes, slot = memory.notes[self._step, layer], memory.slot
            notes[:, slot : slot + frames] = noted[own]
            seen = [notes[:, part] for part in memory.parts(frames)]
            if memory.prompt is not None:
                seen.append(memory.prompt.notes[self._step, layer])
            seen = torch.cat(seen, 1)
            mixed.append(F.scaled_dot_product_attention(query[own], seen, seen, scale=1.0))
        return torch.cat(mixed)


def _side_by_side(x: Tensor) -> Tensor:
    """[rows, 2 + frames, inputs] -> [rows, frames, 3 * inputs]"""
    frames = x.shape[1] - (TAPS - 1)
    return torch.cat([x[:, i : i + frames] for i in range(TAPS)], -1)
