"""Codes -> mel, whole or chunk by chunk, in a voice.

Both give the same mel for weights that were trained with chunks (`encode_whole` and `solve` with
`chunk_codes`), as long as a reply is no longer than the window that its memory keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.moss.flow.encoder import LOOK_BACK, encode_chunk, encode_whole
from moss_engine.codec.moss.flow.estimator import ChunkRows, WholeRows, solve
from moss_engine.codec.moss.flow.memory import FlowMemory
from moss_engine.codec.moss.flow.weights import NOISE_FRAMES, NUM_STEPS, FlowWeights

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
