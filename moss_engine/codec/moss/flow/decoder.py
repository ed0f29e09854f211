"""Codes -> mel, whole or chunk by chunk, in a voice: the conformer's mu, then Euler steps along the
estimator's velocity field.

Whole and chunked give the same mel for weights that were trained with chunks (`encode_whole` and
`solve` with `chunk_codes`), as long as a reply is no longer than the window that its memory keeps.
`Rows` says what a frame may look back at: a whole run has everything at hand (`WholeRows`), a chunk
has its streams' memories (`ChunkRows`). All activations are [rows, frames, channels], a row being
one stream with or one without conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.moss.flow.encoder import (
    BRANCHES,
    LOOK_BACK,
    FlowMemory,
    encode_chunk,
    encode_whole,
    linear,
    norm,
)
from moss_engine.codec.moss.flow.weights import (
    EPS,
    NOISE_FRAMES,
    NUM_STEPS,
    FlowWeights,
    Stage,
    Transformer,
)

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


OUTSIDE = -1
"""Stands for a code before the first or behind the last one."""


@dataclass(frozen=True)
class FlowVoice:
    """A voice for the flow: codes int64 [T], mel [T * ratio, mels], speaker embedding [mels]."""

    codes: Tensor
    mel: Tensor
    speaker: Tensor


@dataclass(frozen=True)
class Chunk:
    """One stream's next codes.

    `window` holds the two codes before them, the codes, and the look-ahead (OUTSIDE where there is
    none); `condition` [frames, mels] is the prompt's mel, or None behind it.
    """

    memory: FlowMemory
    voice: FlowVoice
    window: tuple[int, ...]
    condition: Tensor | None


def flow_voice(
    weights: FlowWeights, codes: Sequence[int], mel: Tensor, speaker: Tensor
) -> FlowVoice:
    """From codes [T], mel [mels, T * ratio] and the speaker's vector [speaker_dim]."""
    device, wide = weights.noise.device, weights.noise.dtype
    assert mel.shape == (weights.config.num_mels, len(codes) * weights.config.ratio), (
        "mel and codes of one voice"
    )
    direction = F.normalize(speaker.to(device, wide), dim=0)
    projected = F.linear(direction, weights.speaker.weight, weights.speaker.bias)
    return FlowVoice(
        torch.tensor(codes, dtype=torch.int64, device=device),
        mel.t().to(device, wide).contiguous(),
        projected,
    )


@torch.inference_mode()
def whole_mel(
    weights: FlowWeights, voice: FlowVoice, codes: Sequence[int], chunk_codes: int | None
) -> Tensor:
    """[codes] -> [mels, codes * ratio] in one run.

    `chunk_codes` is for weights that were trained with chunks, None for others.
    """
    device, ratio = weights.noise.device, weights.config.ratio
    reply = torch.tensor(codes, dtype=torch.int64, device=device)
    mu = encode_whole(weights, torch.cat([voice.codes, reply]), chunk_codes)
    frames, prompt = len(mu), len(voice.mel)
    condition = F.pad(voice.mel, (0, 0, 0, frames - prompt))
    rows = WholeRows(frames, chunk_codes * ratio if chunk_codes else None, device)
    noise = noise_of(weights, 0, frames)
    mel = solve(
        weights, [rows] * NUM_STEPS, noise[None], mu[None], voice.speaker[None], condition[None]
    )
    return mel[0, prompt:].t()


@torch.inference_mode()
def run_chunks(weights: FlowWeights, chunks: Sequence[Chunk]) -> Tensor:
    """The next mel frames of some streams, all of one length: [streams, frames, mels]. Their
    memories move on."""
    memories = [chunk.memory for chunk in chunks]
    windows = torch.tensor(
        [chunk.window for chunk in chunks], dtype=torch.int64, device=weights.noise.device
    )
    mu = encode_chunk(weights, memories, windows)
    frames, ratio = mu.shape[1], weights.config.ratio
    noise = torch.stack([noise_of(weights, memory.position * ratio, frames) for memory in memories])
    condition = torch.stack(
        [
            mu.new_zeros(mu.shape[1:]) if chunk.condition is None else chunk.condition
            for chunk in chunks
        ]
    )
    speaker = torch.stack([chunk.voice.speaker for chunk in chunks])
    rows = [ChunkRows(memories, step) for step in range(NUM_STEPS)]
    mel = solve(weights, rows, noise, mu, speaker, condition)
    for memory in memories:
        memory.advance(frames // ratio)
    return mel


def noise_of(weights: FlowWeights, first: int, frames: int) -> Tensor:
    """[frames, mels] of the fixed noise, which begins anew every 300 s."""
    at = torch.arange(first, first + frames, device=weights.noise.device) % NOISE_FRAMES
    return weights.noise[at]


def prompt_memory(
    weights: FlowWeights,
    voice: FlowVoice,
    chunk_codes: int,
    run: Callable[[FlowWeights, Sequence[Chunk]], Tensor] = run_chunks,
) -> FlowMemory:
    """The memory of a voice's prompt without its last chunk, whose look-ahead is the reply itself.

    The prompt's codes are a multiple of `chunk_codes`, at least one chunk. `run` does what
    `run_chunks` does.
    """
    codes, ratio = voice.codes.tolist(), weights.config.ratio
    assert codes and len(codes) % chunk_codes == 0, f"{len(codes)} prompt codes are no whole chunks"
    memory = FlowMemory(weights, chunk_codes, len(codes) // chunk_codes - 1)
    padded = [OUTSIDE] * LOOK_BACK + codes
    for first in range(0, len(codes) - chunk_codes, chunk_codes):
        window = padded[first : first + LOOK_BACK + chunk_codes + weights.config.look_ahead]
        condition = voice.mel[first * ratio : (first + chunk_codes) * ratio]
        run(weights, [Chunk(memory, voice, tuple(window), condition)])
    return memory
