"""The flow's conformer: codes -> mu [frames, mels], the prior mean of the mel; and the memory that
a reply's flow keeps between chunks.

Attention looks at relative positions through sines and cosines. A score of the query at i for the
key at j, sum a sin(w (i - j)) + b cos(w (i - j)), is a product of a query turned by i with the
sines and cosines of j alone; so keys stay what they are while the queries move on.

A voice's prompt is run once; its memory is then only read. A reply adds a ring of its last
`num_chunks * chunk_codes` codes. The estimator's attention compares normed rows with normed rows
(`weights.Transformer`), so that one row of `channels` values stands for keys and values of all
heads. It has no positions: the order within a ring does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.device import Affine
from moss_engine.codec.moss.flow.weights import (
    CONFORMER_EPS,
    EPS,
    NUM_STEPS,
    ConformerBlock,
    FlowConfig,
    FlowWeights,
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

    @property
    def num_bytes(self) -> int:
        tensors = (self.notes, self.low.rows, self.high.rows, self.tails)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def num_convolutions(config: FlowConfig) -> int:
    """Convolutions of the estimator that look back: two a stage, first, last and final."""
    return 2 * config.num_stages + 3


LOOK_BACK = 2
"""Codes before a chunk that its look-ahead convolutions read again."""


def encode_whole(weights: FlowWeights, codes: Tensor, chunk_codes: int | None) -> Tensor:
    """int64 [codes] -> [codes * ratio, mels] in one run. With `chunk_codes`, a code sees no later
    chunk, but for the look-ahead; without, all see all."""
    config, encoder = weights.config, weights.encoder
    outside = codes.new_full((LOOK_BACK,), -1), codes.new_full((config.look_ahead,), -1)
    x = embedded(weights, torch.cat([outside[0], codes, outside[1]])[None])
    x = _blocks_whole(encoder.blocks, x, chunk_codes, weights)
    x = upsampled(weights, x, x.new_zeros(1, 2, config.width))
    x = _blocks_whole(
        encoder.up_blocks, x, chunk_codes * config.ratio if chunk_codes else None, weights
    )
    return finished(weights, x)[0]


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


def _blocks_whole(
    blocks: Sequence[ConformerBlock], x: Tensor, chunk: int | None, weights: FlowWeights
) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    mask = None
    if chunk is not None:
        mask = positions[None, :] // chunk > positions[:, None] // chunk  # what may not be seen
    waves = waves_of(positions, weights.config.width, weights.noise.dtype)
    for block in blocks:
        query, key, value = _projected(block, x, weights)
        x = x + _attended(block, query[0], key[0], value[0], waves, waves, mask)[None]
        x = _fed(block, x, weights)
    return x


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
            mixed.append(_attended(block, query[n], rows[0], rows[1], own[n], seen[n], None))
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
    block: ConformerBlock,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own: Tensor,
    seen: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """query [n, width]; key, value [keys, width]; waves [n, width], [keys, width] -> [n, width]"""
    heads, size = block.bias_content.shape
    query, key, value = (t.view(len(t), heads, size).transpose(0, 1) for t in (query, key, value))
    asked = torch.matmul(query + block.bias_position[:, None], block.position).to(
        own.dtype
    )  # [heads, n, width]
    sine, cosine = asked.chunk(2, -1)
    own_sine, own_cosine = own.chunk(2, -1)
    turned = torch.cat(
        [cosine * own_sine - sine * own_cosine, sine * own_sine + cosine * own_cosine], -1
    )
    content = torch.matmul(query + block.bias_content[:, None], key.transpose(-1, -2)).to(own.dtype)
    scores = (content + torch.matmul(turned, seen.t())) / math.sqrt(size)
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
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
