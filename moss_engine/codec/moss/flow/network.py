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
memory keeps. All activations are [rows, frames, channels], a row being one stream with or one
without conditions.
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

    Beside them the waves of every slot's position, [slots, width].
    """

    rows: Tensor
    waves: Tensor

    def seen(self, block: int, parts: Sequence[slice]) -> Tensor:
        """Keys and values of one block in these slots: [2, n, width]."""
        return torch.cat([self.rows[block, :, part] for part in parts], 1)

    def seen_waves(self, parts: Sequence[slice]) -> Tensor:
        """[n, width]"""
        return torch.cat([self.waves[part] for part in parts])


MOST_CHUNKS = 4
"""Chunks of one stream in a run: enough for a prompt's last and a reply's first two."""


class FlowMemory:
    """One stream of codes. `position` counts the codes that were run, prompt included.

    `notes` [steps, layers, 2, slots, channels] are the normed rows that the estimator's attention
    saw, `tails` [2, steps, convolutions, 2, 2, inputs] the last two rows before each of its
    convolutions: of the two copies, one is read while the other is written. `last_codes` [2, width]
    are the last two codes before the upsampling, `next_codes` those after the chunk that is being
    run. `prompt` is the memory of the voice that this one continues.
    """

    def __init__(
        self,
        weights: FlowWeights,
        chunk_codes: int,
        num_chunks: int,
        prompt: FlowMemory | None = None,
    ) -> None:
        config, device = weights.config, weights.noise.device
        self.config, self.chunk_codes, self.num_chunks = config, chunk_codes, num_chunks
        self.prompt = prompt
        frames, codes = num_chunks * chunk_codes * config.ratio, num_chunks * chunk_codes
        layers = config.num_stages * config.transformers

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=weights.dtype)

        self.notes = zeros(NUM_STEPS, layers, BRANCHES, frames, config.channels)
        self.low = LayerRing(
            zeros(config.num_blocks, 2, codes, config.width), zeros(codes, config.width)
        )
        self.high = LayerRing(
            zeros(config.num_up_blocks, 2, frames, config.width), zeros(frames, config.width)
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
        return self.notes.shape[3]

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

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Of notes, tails, and rows and waves of both conformers, which stay where they are."""
        low, high = self.low, self.high
        tensors = (self.notes, self.tails, low.rows, low.waves, high.rows, high.waves)
        return tuple(tensor.data_ptr() for tensor in tensors)


def num_convolutions(config: FlowConfig) -> int:
    """Convolutions of the estimator that look back: two a stage, first, last and final."""
    return 2 * config.num_stages + 3


LOOK_BACK = 2
"""Codes before a chunk that its look-ahead convolutions read again."""


def encode_chunk(weights: FlowWeights, memories: Sequence[FlowMemory], windows: Tensor) -> Tensor:
    """The next chunk of each stream: int64 [streams, 2 + chunk + look-ahead] -> mu.

    mu is [streams, chunk * ratio, mels].

    A window holds the two codes before the chunk, the chunk, and the codes behind it; -1 where
    there is none.
    """
    encoder, ratio = weights.encoder, weights.config.ratio
    x = embedded(weights, windows)
    pasts = [_Past.of(memory, memory.low, ratio, x.shape[1]) for memory in memories]
    x = _blocks_chunk(encoder.blocks, x, pasts, weights)
    hidden = x
    x = upsampled(weights, x, torch.stack([memory.last_codes for memory in memories]))
    for memory, rows in zip(memories, hidden, strict=True):
        memory.next_codes = torch.cat([memory.last_codes, rows])[-2:]
    pasts = [_Past.of(memory, memory.high, 1, x.shape[1]) for memory in memories]
    x = _blocks_chunk(encoder.up_blocks, x, pasts, weights)
    return finished(weights, x)


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


@dataclass(frozen=True)
class _Past:
    """One stream's view of one conformer: its ring and the prompt's, slots, first position."""

    ring: LayerRing
    prompt: LayerRing | None
    own: slice
    parts: tuple[slice, ...]
    position: int

    @staticmethod
    def of(memory: FlowMemory, ring: LayerRing, ratio: int, count: int) -> _Past:
        """`ratio` frames are one step."""
        past = memory.prompt
        prompt = None if past is None else past.low if ring is memory.low else past.high
        slot, position = memory.slot // ratio, memory.position * memory.config.ratio // ratio
        parts = tuple(
            slice(part.start // ratio, part.stop and part.stop // ratio)
            for part in memory.parts(count * ratio)
        )
        return _Past(ring, prompt, slice(slot, slot + count), parts, position)


def _blocks_chunk(
    blocks: Sequence[ConformerBlock], x: Tensor, pasts: Sequence[_Past], weights: FlowWeights
) -> Tensor:
    """[streams, n, width] -> the same; every stream's ring gets its new keys and values"""
    everything = [slice(None)]
    own, seen = [], []
    for past in pasts:
        positions = torch.arange(x.shape[1], device=x.device) + past.position
        waves = waves_of(positions, weights.config.width, weights.noise.dtype)
        past.ring.waves[past.own] = waves
        known = past.ring.seen_waves(past.parts)
        own.append(waves)
        seen.append(
            (known if past.prompt is None else torch.cat([past.prompt.waves, known])).to(
                waves.dtype
            )
        )
    for i, block in enumerate(blocks):
        query, key, value = _projected(block, x, weights)
        mixed = []
        for n, past in enumerate(pasts):
            past.ring.rows[i, 0, past.own], past.ring.rows[i, 1, past.own] = key[n], value[n]
            rows = past.ring.seen(i, past.parts)
            if past.prompt is not None:
                rows = torch.cat([past.prompt.seen(i, everything), rows], 1)
            mixed.append(_attended(block, query[n], rows[0], rows[1], own[n], seen[n]))
        x = _fed(block, x + torch.stack(mixed), weights)
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
    asked = torch.matmul(query + block.bias_position[:, None], block.position).to(own.dtype)
    sine, cosine = asked.chunk(2, -1)
    own_sine, own_cosine = own.chunk(2, -1)
    turned = torch.cat(
        [cosine * own_sine - sine * own_cosine, sine * own_sine + cosine * own_cosine], -1
    )
    content = torch.matmul(query + block.bias_content[:, None], key.transpose(-1, -2)).to(own.dtype)
    scores = (content + torch.matmul(turned, seen.t())) / math.sqrt(size)
    mixed = (
        torch.matmul(scores.softmax(-1).to(value.dtype), value)
        .transpose(0, 1)
        .reshape(query.shape[1], -1)
    )
    return linear(mixed, block.out)


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


TAPS = 3


def solve(
    weights: FlowWeights,
    rows: Sequence[ChunkRows],
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


def velocity(weights: FlowWeights, rows: ChunkRows, inputs: Tensor, step: int) -> Tensor:
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
    stage: Stage, rows: ChunkRows, convolution: int, x: Tensor, step: int, dtype: torch.dtype
) -> Tensor:
    hidden, straight = linear(rows.window(convolution, x.to(dtype)), stage.first).chunk(2, -1)
    hidden = F.mish(norm(hidden, stage.first_norm, EPS)) + stage.time[step]
    hidden = linear(rows.window(convolution + 1, hidden.to(dtype)), stage.second)
    return F.mish(norm(hidden, stage.second_norm, EPS)) + straight


def _transformed(
    block: Transformer, rows: ChunkRows, layer: int, x: Tensor, dtype: torch.dtype
) -> Tensor:
    channels = x.shape[-1]
    noted = norm(x, block.norm_attention, EPS).to(dtype)
    query = F.linear(noted, block.query).unflatten(-1, (-1, channels)).flatten(1, 2)
    mixed = rows.attend(layer, noted, query).unflatten(1, (x.shape[1], -1)).flatten(2)
    x = x + linear(mixed, block.out)
    hidden = F.gelu(linear(norm(x, block.norm_ffn, EPS).to(dtype), block.first))
    return x + linear(hidden, block.second)


class ChunkRows:
    """Where the rows of a layer look back to: the next chunk of some streams, at one step; their
    memories are read and written. Layers of both kinds are numbered in the order they run."""

    def __init__(self, memories: Sequence[FlowMemory], step: int) -> None:
        self._memories, self._step = memories, step

    def window(self, layer: int, x: Tensor) -> Tensor:
        """[rows, frames, inputs] -> [rows, frames, 3 * inputs]: with two predecessors."""
        size, step = x.shape[-1], self._step
        before = torch.cat([m.tails[m.parity, step, layer, :, :, :size] for m in self._memories])
        x = torch.cat([before, x], 1)
        for memory, rows in zip(self._memories, x.unflatten(0, (-1, BRANCHES)), strict=True):
            memory.tails[1 - memory.parity, step, layer, :, :, :size] = rows[:, 1 - TAPS :]
        return _side_by_side(x)

    def attend(self, layer: int, noted: Tensor, query: Tensor) -> Tensor:
        """noted [rows, frames, channels], query [rows, frames * heads, channels] -> mixtures."""
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
    memory, ratio = chunk.memory, weights.config.ratio
    mu = encode_chunk(weights, [memory], torch.tensor([window], device=weights.noise.device))
    frames = mu.shape[1]
    noise = noise_of(weights, memory.position * ratio, frames)[None]
    condition = torch.zeros_like(mu) if condition is None else condition[None]
    rows = [ChunkRows([memory], step) for step in range(NUM_STEPS)]
    mel = solve(weights, rows, noise, mu, chunk.voice.speaker[None], condition)
    memory.advance(frames // ratio)
    return mel[0]


def noise_of(weights: FlowWeights, first: int, frames: int) -> Tensor:
    """[frames, mels] of the fixed noise, which begins anew every 300 s."""
    at = torch.arange(first, first + frames, device=weights.noise.device) % NOISE_FRAMES
    return weights.noise[at]


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
