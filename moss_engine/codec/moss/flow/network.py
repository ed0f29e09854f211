"""Codes -> mel, chunk by chunk, in a voice: the conformer's mu [frames, mels], the prior
mean, then Euler steps along the estimator's velocity field; and what a flow keeps between chunks.

The conformer's attention looks at relative positions through sines and cosines. A score of the
query at i for the key at j, sum a sin(w (i - j)) + b cos(w (i - j)), is a product of a query turned
by i with the sines and cosines of j alone; so keys stay what they are while the queries move on.

A voice's prompt is run once; its memory is then only read. A reply adds a ring of its last
`num_chunks * chunk_codes` codes. The estimator's attention compares normed rows with normed rows
(`weights.Transformer`), so that one row of `channels` values stands for keys and values of all
heads. It has no positions: the order within a ring does not matter.

The mel is that of one run over all codes, as long as a reply is no longer than the window that its
memory keeps. One stream is run at a time. All activations of the estimator are [rows, frames,
channels]; one row is with conditions and one without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.device import Affine
from moss_engine.codec.moss.flow.weights import (
    CONFORMER_EPS,
    EPS,
    NOISE_FRAMES,
    NUM_STEPS,
    ConformerBlock,
    FlowConfig,
    FlowWeights,
    Stage,
    Transformer,
)

BRANCHES = 2
"""Every estimate is made with and without conditions."""


@dataclass(frozen=True)
class LayerRing:
    """Keys and values of one conformer, all blocks: [blocks, 2, slots, width].

    Beside them the waves of every slot's position, [slots, width]. A slot is of so many mel
    `frames`.
    """

    rows: Tensor
    waves: Tensor
    frames: int


TAPS = 3
MOST_CHUNKS = 4
"""Chunks of one stream in a run: enough for a prompt's last and a reply's first two."""


class FlowMemory:
    """One stream of codes. `position` counts the codes that were run, prompt included.

    `kv` [steps, layers, 2, slots, channels] are the normed rows that the estimator's attention saw,
    keys and values alike, `tails` [2, steps, convolutions, 2, 2, inputs] the last two rows before
    each of its convolutions: of the two copies, one is read while the other is written.
    `last_codes` [2, width] are the last two codes before the upsampling, `next_codes` those after
    the chunk that is being run. `prompt` is the memory of the voice that this one continues.
    """

    def __init__(
        self,
        weights: FlowWeights,
        chunk_codes: int,
        num_chunks: int,
        prompt: FlowMemory | None = None,
    ) -> None:
        config, device = weights.config, weights.noise.device
        self.config, self.chunk_codes = config, chunk_codes
        self.prompt = prompt
        frames, codes = num_chunks * chunk_codes * config.ratio, num_chunks * chunk_codes
        layers = config.num_stages * config.transformers

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=weights.dtype)

        self.kv = zeros(NUM_STEPS, layers, BRANCHES, frames, config.channels)
        width = config.width
        self.low = LayerRing(
            zeros(config.num_blocks, 2, codes, width), zeros(codes, width), config.ratio
        )
        self.high = LayerRing(
            zeros(config.num_up_blocks, 2, frames, width), zeros(frames, width), 1
        )
        if prompt is None:
            inputs = max(config.input_channels, 2 * config.channels)
            self.tails = zeros(2, NUM_STEPS, num_convolutions(config), BRANCHES, 2, inputs)
            self.last_codes = torch.zeros(2, config.width, device=device, dtype=weights.noise.dtype)
            self.position, self.parity = 0, 0
        else:
            self.tails, self.last_codes = prompt.tails.clone(), prompt.last_codes
            self.position, self.parity = prompt.position, prompt.parity
        self.next_codes = self.last_codes
        self.frames = 0

    @property
    def slot(self) -> int:
        """The first frame of the ring that the next chunk is written to."""
        return self.frames % self.capacity if self.capacity else 0

    @property
    def capacity(self) -> int:
        """Frames that the ring holds."""
        return self.kv.shape[3]

    @property
    def most_chunks(self) -> int:
        """Chunks that can be run in one go: a later one must not be written over what an earlier
        one looks back at."""
        room = (self.capacity - self.frames) // (self.chunk_codes * self.config.ratio)
        return max(1, min(MOST_CHUNKS, room))

    def parts(self, frames: int) -> list[slice]:
        """Where the ring's frames stand that a chunk of `frames` sees, its own included."""
        end = self.slot + self.chunk_codes * self.config.ratio
        own = [slice(0, self.slot + frames)]
        return (
            [*own, slice(end, None)]
            if self.frames >= self.capacity and end < self.capacity
            else own
        )

    def advance(self, codes: int) -> None:
        """A chunk has been run. Until then it can be run again: what it read is still there, what
        it wrote is not read."""
        self.last_codes = self.next_codes
        self.position += codes
        self.frames += codes * self.config.ratio
        self.parity = 1 - self.parity

    def window(self, step: int, layer: int, x: Tensor) -> Tensor:
        """[rows, frames, inputs] of the next chunk -> [rows, frames, 3 * inputs]: with two
        predecessors. Layers of either kind are numbered in the order they run."""
        size, frames = x.shape[-1], x.shape[1]
        x = torch.cat([self.tails[self.parity, step, layer, :, :, :size], x], 1)
        self.tails[1 - self.parity, step, layer, :, :, :size] = x[:, 1 - TAPS :]
        return torch.cat([x[:, i : i + frames] for i in range(TAPS)], -1)

    def attend(self, step: int, layer: int, own: Tensor, query: Tensor) -> Tensor:
        """The chunk's own normed rows [rows, frames, channels] are kept, and seen as what was kept
        before is: query [rows, frames * heads, channels] -> like query."""
        kv, frames = self.kv[step, layer], own.shape[1]
        kv[:, self.slot : self.slot + frames] = own
        seen = [kv[:, part] for part in self.parts(frames)]
        if self.prompt is not None:
            seen.append(self.prompt.kv[step, layer])
        rows = torch.cat(seen, 1)
        return F.scaled_dot_product_attention(query, rows, rows, scale=1.0)

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Of kv, tails, and rows and waves of both conformers, which stay where they are."""
        low, high = self.low, self.high
        tensors = (self.kv, self.tails, low.rows, low.waves, high.rows, high.waves)
        return tuple(tensor.data_ptr() for tensor in tensors)


def num_convolutions(config: FlowConfig) -> int:
    """Convolutions of the estimator that look back: two a stage, first, last and final."""
    return 2 * config.num_stages + 3


LOOK_BACK = 2
"""Codes before a chunk that its look-ahead convolutions read again."""


def encode_chunk(weights: FlowWeights, memory: FlowMemory, window: Tensor) -> Tensor:
    """The next chunk: int64 [2 + chunk + look-ahead] -> mu [chunk * ratio, mels].

    A window holds the two codes before the chunk, the chunk, and the codes behind it; -1 where
    there is none.
    """
    encoder, prompt = weights.encoder, memory.prompt
    x = embedded(weights, window[None])
    known = None if prompt is None else prompt.low
    x = _blocks_chunk(encoder.blocks, x, memory, memory.low, known, weights)
    memory.next_codes = torch.cat([memory.last_codes, x[0]])[-2:]
    x = upsampled(weights, x, memory.last_codes[None])
    known = None if prompt is None else prompt.high
    x = _blocks_chunk(encoder.up_blocks, x, memory, memory.high, known, weights)
    return finished(weights, x)[0]


def embedded(weights: FlowWeights, windows: Tensor) -> Tensor:
    """[streams, 2 + n + look-ahead] -> [streams, n, width], having looked ahead"""
    encoder, config = weights.encoder, weights.config
    ahead = config.look_ahead
    x = norm(linear(encoder.table[windows.clamp_min(0)], encoder.embed), encoder.embed_norm, EPS)
    x = x * math.sqrt(config.width) * (windows >= 0)[..., None]
    count = windows.shape[1] - ahead
    taps = torch.cat([x[:, i : i + count] for i in range(ahead + 1)], -1)
    seen = F.leaky_relu(linear(taps.to(weights.dtype), encoder.look_ahead)) * (
        windows[:, :count, None] >= 0
    )
    taps = torch.cat([seen[:, i : i + count - LOOK_BACK] for i in range(LOOK_BACK + 1)], -1)
    return x[:, LOOK_BACK:count] + linear(taps, encoder.after_look_ahead)


def upsampled(weights: FlowWeights, x: Tensor, before: Tensor) -> Tensor:
    """[streams, n, width] -> [streams, n * ratio, width]; `before` [streams, 2, width]."""
    encoder, config = weights.encoder, weights.config
    wide = torch.cat([before, x], 1).repeat_interleave(config.ratio, 1)
    count = x.shape[1] * config.ratio
    taps = torch.cat([wide[:, i : i + count] for i in range(2 * config.ratio + 1)], -1)
    x = linear(linear(taps.to(weights.dtype), encoder.upsample), encoder.up_embed)
    return norm(x, encoder.up_embed_norm, EPS) * math.sqrt(config.width)


def finished(weights: FlowWeights, x: Tensor) -> Tensor:
    x = norm(x, weights.encoder.norm, EPS)
    return linear(x.to(weights.dtype), weights.encoder.project).to(weights.noise.dtype)


def _blocks_chunk(
    blocks: Sequence[ConformerBlock],
    x: Tensor,
    memory: FlowMemory,
    ring: LayerRing,
    prompt: LayerRing | None,
    weights: FlowWeights,
) -> Tensor:
    """[1, n, width] -> the same; the ring gets the new keys and values"""
    count, frames = x.shape[1], ring.frames
    slot, position = memory.slot // frames, memory.position * memory.config.ratio // frames
    own = slice(slot, slot + count)
    parts = [
        slice(part.start // frames, part.stop and part.stop // frames)
        for part in memory.parts(count * frames)
    ]
    waves = waves_of(
        torch.arange(count, device=x.device) + position, weights.config.width, weights.noise.dtype
    )
    ring.waves[own] = waves
    before = [] if prompt is None else [prompt.waves]
    seen = torch.cat([*before, *(ring.waves[part] for part in parts)]).to(waves.dtype)
    for i, block in enumerate(blocks):
        query, key, value = _projected(block, x, weights)
        ring.rows[i, 0, own], ring.rows[i, 1, own] = key[0], value[0]
        before = [] if prompt is None else [prompt.rows[i]]
        keys, values = torch.cat([*before, *(ring.rows[i, :, part] for part in parts)], 1)
        x = _fed(block, x + _attended(block, query[0], keys, values, waves, seen), weights)
    return x


def waves_of(positions: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """int64 [...] -> [..., width] in `dtype`: sines, then cosines, of every rate."""
    rates = torch.exp(
        torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
        * -(math.log(10_000) / width)
    ).to(dtype)
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def _projected(
    block: ConformerBlock, x: Tensor, weights: FlowWeights
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = linear(
        norm(x, block.norm_attention, CONFORMER_EPS).to(weights.dtype), block.qkv
    ).chunk(3, -1)
    return query, key, value


def _attended(
    block: ConformerBlock, query: Tensor, key: Tensor, value: Tensor, own: Tensor, seen: Tensor
) -> Tensor:
    """query [n, width]; key, value [keys, width]; waves [n, width], [keys, width] -> [n, width]"""
    heads, size = block.bias_content.shape
    query, key, value = (t.view(len(t), heads, size).transpose(0, 1) for t in (query, key, value))
    # [heads, n, width]
    position_scores = torch.matmul(query + block.bias_position[:, None], block.position).to(
        own.dtype
    )
    sine, cosine = position_scores.chunk(2, -1)
    own_sine, own_cosine = own.chunk(2, -1)
    turned = torch.cat(
        [cosine * own_sine - sine * own_cosine, sine * own_sine + cosine * own_cosine], -1
    )
    content = torch.matmul(query + block.bias_content[:, None], key.transpose(-1, -2)).to(own.dtype)
    scores = (content + torch.matmul(turned, seen.t())) / math.sqrt(size)
    attended = (
        torch.matmul(scores.softmax(-1).to(value.dtype), value)
        .transpose(0, 1)
        .reshape(query.shape[1], -1)
    )
    return linear(attended, block.out)


def _fed(block: ConformerBlock, x: Tensor, weights: FlowWeights) -> Tensor:
    hidden = F.silu(linear(norm(x, block.norm_ffn, CONFORMER_EPS).to(weights.dtype), block.first))
    return x + linear(hidden, block.second)


def linear(x: Tensor, affine: Affine) -> Tensor:
    return F.linear(x, affine.weight, affine.bias)


def norm(x: Tensor, affine: Affine, eps: float) -> Tensor:
    """Layer norm in the width of its weights."""
    return F.layer_norm(
        x.to(affine.weight.dtype), affine.weight.shape, affine.weight, affine.bias, eps
    )


def solve(
    weights: FlowWeights,
    memory: FlowMemory,
    noise: Tensor,
    mu: Tensor,
    speaker: Tensor,
    condition: Tensor,
) -> Tensor:
    """Euler steps from noise to the mel: all [frames, mels], speaker [mels]."""
    guidance = weights.config.guidance
    fixed = torch.cat([mu, speaker.expand_as(mu), condition], -1)
    fixed = torch.stack([fixed, torch.zeros_like(fixed)])
    x = noise
    for step in range(NUM_STEPS):
        inputs = torch.cat([x.expand(BRANCHES, -1, -1), fixed], -1)
        with_conditions, without = velocity(weights, memory, inputs, step)
        x = x + weights.strides[step] * ((1 + guidance) * with_conditions - guidance * without)
    return x


def velocity(weights: FlowWeights, memory: FlowMemory, inputs: Tensor, step: int) -> Tensor:
    """[rows, frames, input channels] -> [rows, frames, mels]"""
    estimator, dtype = weights.estimator, weights.dtype
    convolution = layer = 0
    x, skipped = inputs, inputs
    for stage in estimator.stages:
        if stage is estimator.stages[-1]:
            x = torch.cat([x, skipped], -1)
        x = _residual(stage, memory, convolution, x, step, dtype)
        convolution += 2
        for transformer in stage.transformers:
            x = _transformed(transformer, memory, layer, x, step, dtype)
            layer += 1
        if stage.after is not None:
            skipped = x
            x = linear(memory.window(step, convolution, x.to(dtype)), stage.after).to(inputs.dtype)
            convolution += 1
    x = linear(memory.window(step, convolution, x.to(dtype)), estimator.final)
    x = F.mish(norm(x, estimator.final_norm, EPS))
    return linear(x.to(dtype), estimator.project).to(inputs.dtype)


def _residual(
    stage: Stage, memory: FlowMemory, convolution: int, x: Tensor, step: int, dtype: torch.dtype
) -> Tensor:
    hidden, straight = linear(memory.window(step, convolution, x.to(dtype)), stage.first).chunk(
        2, -1
    )
    hidden = F.mish(norm(hidden, stage.first_norm, EPS)) + stage.time[step]
    hidden = linear(memory.window(step, convolution + 1, hidden.to(dtype)), stage.second)
    return F.mish(norm(hidden, stage.second_norm, EPS)) + straight


def _transformed(
    block: Transformer, memory: FlowMemory, layer: int, x: Tensor, step: int, dtype: torch.dtype
) -> Tensor:
    channels = x.shape[-1]
    normed = norm(x, block.norm_attention, EPS).to(dtype)
    query = F.linear(normed, block.query).unflatten(-1, (-1, channels)).flatten(1, 2)
    attended = memory.attend(step, layer, normed, query).unflatten(1, (x.shape[1], -1)).flatten(2)
    x = x + linear(attended, block.out)
    hidden = F.gelu(linear(norm(x, block.norm_ffn, EPS).to(dtype), block.first))
    return x + linear(hidden, block.second)


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
    """One stream's next codes: a chunk, and those behind it that are run in the same go.

    Each of the `windows` holds the two codes before its chunk, the chunk, and the look-ahead
    (OUTSIDE where there is none); all chunks but the last are whole. `condition` [frames, mels] is
    the prompt's mel for the first one, or None behind the prompt.
    """

    memory: FlowMemory
    voice: FlowVoice
    windows: tuple[tuple[int, ...], ...]
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
def run_chunks(weights: FlowWeights, chunks: Sequence[Chunk]) -> list[Tensor]:
    """The next mel frames of some streams, each [frames, mels]. Their memories move on."""
    return [
        torch.cat(
            [
                _next_mel(weights, chunk, window, None if turn else chunk.condition)
                for turn, window in enumerate(chunk.windows)
            ]
        )
        for chunk in chunks
    ]


def _next_mel(
    weights: FlowWeights, chunk: Chunk, window: tuple[int, ...], condition: Tensor | None
) -> Tensor:
    """[frames, mels] of one window"""
    memory, device = chunk.memory, weights.noise.device
    mu = encode_chunk(weights, memory, torch.tensor(window, device=device))
    first, frames = memory.position * memory.config.ratio, len(mu)
    # the fixed noise begins anew every 300 s
    noise = weights.noise[torch.arange(first, first + frames, device=device) % NOISE_FRAMES]
    condition = torch.zeros_like(mu) if condition is None else condition
    mel = solve(weights, memory, noise, mu, chunk.voice.speaker, condition)
    memory.advance(frames // memory.config.ratio)
    return mel


def prompt_memory(
    weights: FlowWeights,
    voice: FlowVoice,
    chunk_codes: int,
    run: Callable[[FlowWeights, Sequence[Chunk]], Sequence[Tensor]] = run_chunks,
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
        run(weights, [Chunk(memory, voice, (tuple(window),), condition)])
    return memory
