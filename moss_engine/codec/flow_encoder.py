"""The flow's conformer: codes -> what the mel should be around, [frames, mels], whole or chunk by chunk.

Attention looks at relative positions through sines and cosines. A score of the query at i for the key at j,
sum a sin(w (i - j)) + b cos(w (i - j)), is a product of a query turned by i with the sines and cosines of j alone; so
keys stay what they are while the queries move on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.flow_memory import FlowMemory, LayerRing
from moss_engine.codec.flow_weights import CONFORMER_EPS, EPS, Affine, ConformerBlock, FlowWeights

LOOK_BACK = 2
"""Codes before a chunk that its look-ahead convolutions read again."""


def encode_whole(weights: FlowWeights, codes: Tensor, chunk_codes: int | None) -> Tensor:
    """int64 [codes] -> [codes * ratio, mels] in one run. With `chunk_codes`, a code sees no later chunk, but for the
    look-ahead; without, all see all."""
    config, encoder = weights.config, weights.encoder
    outside = codes.new_full((LOOK_BACK,), -1), codes.new_full((config.look_ahead,), -1)
    x = _embedded(weights, torch.cat([outside[0], codes, outside[1]])[None])
    x = _blocks_whole(encoder.blocks, x, chunk_codes, weights)
    x = _upsampled(weights, x, x.new_zeros(1, 2, config.width))
    x = _blocks_whole(encoder.up_blocks, x, chunk_codes * config.ratio if chunk_codes else None, weights)
    return _finished(weights, x)[0]


def encode_chunk(weights: FlowWeights, memories: Sequence[FlowMemory], windows: Tensor) -> Tensor:
    """The next chunk of each stream: int64 [streams, 2 + chunk + look-ahead] -> [streams, chunk * ratio, mels].

    A window holds the two codes before the chunk, the chunk, and the codes behind it; -1 where there is none.
    """
    encoder, ratio = weights.encoder, weights.config.ratio
    x = _embedded(weights, windows)
    x = _blocks_chunk(encoder.blocks, x, [(m.low, m.prompt and m.prompt.low, m.position, m.slot // ratio)
                                          for m in memories], weights)
    hidden = x
    x = _upsampled(weights, x, torch.stack([memory.last_codes for memory in memories]))
    for memory, rows in zip(memories, hidden, strict=True):
        memory.next_codes = torch.cat([memory.last_codes, rows])[-2:]
    x = _blocks_chunk(encoder.up_blocks, x, [(m.high, m.prompt and m.prompt.high, m.position * ratio, m.slot)
                                             for m in memories], weights)
    return _finished(weights, x)


def _embedded(weights: FlowWeights, windows: Tensor) -> Tensor:
    """[streams, 2 + n + look-ahead] -> [streams, n, width], having looked ahead"""
    encoder, config = weights.encoder, weights.config
    ahead = config.look_ahead
    x = norm(linear(encoder.table[windows.clamp_min(0)], encoder.embed), encoder.embed_norm, EPS)
    x = x * math.sqrt(config.width) * (windows >= 0)[..., None]
    count = windows.shape[1] - ahead
    taps = torch.cat([x[:, i : i + count] for i in range(ahead + 1)], -1)
    seen = F.leaky_relu(linear(taps.to(weights.dtype), encoder.look_ahead)) * (windows[:, :count, None] >= 0)
    taps = torch.cat([seen[:, i : i + count - LOOK_BACK] for i in range(LOOK_BACK + 1)], -1)
    return x[:, LOOK_BACK:count] + linear(taps, encoder.after_look_ahead)


def _upsampled(weights: FlowWeights, x: Tensor, before: Tensor) -> Tensor:
    """[streams, n, width] -> [streams, n * ratio, width]; `before` [streams, 2, width] are the two codes before"""
    encoder, config = weights.encoder, weights.config
    wide = torch.cat([before, x], 1).repeat_interleave(config.ratio, 1)
    count = x.shape[1] * config.ratio
    taps = torch.cat([wide[:, i : i + count] for i in range(2 * config.ratio + 1)], -1)
    x = linear(linear(taps.to(weights.dtype), encoder.upsample), encoder.up_embed)
    return norm(x, encoder.up_embed_norm, EPS) * math.sqrt(config.width)


def _finished(weights: FlowWeights, x: Tensor) -> Tensor:
    x = norm(x, weights.encoder.norm, EPS)
    return linear(x.to(weights.dtype), weights.encoder.project).to(weights.noise.dtype)


def _blocks_whole(blocks: Sequence[ConformerBlock], x: Tensor, chunk: int | None, weights: FlowWeights) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    mask = None
    if chunk is not None:
        mask = positions[None, :] // chunk > positions[:, None] // chunk  # what may not be seen
    waves = _waves(positions, weights)
    for block in blocks:
        query, key, value = _projected(block, x, weights)
        x = x + _attended(block, query[0], key[0], value[0], waves, waves, mask)[None]
        x = _fed(block, x, weights)
    return x


def _blocks_chunk(blocks: Sequence[ConformerBlock], x: Tensor,
                  streams: Sequence[tuple[LayerRing, LayerRing | None, int, int]], weights: FlowWeights) -> Tensor:
    """`streams` holds for each one its ring, its prompt's, its position and the slot of its next row."""
    count = x.shape[1]
    own = torch.arange(count, device=x.device)
    keys = []
    for ring, prompt, position, slot in streams:
        ring.positions[slot : slot + count] = own + position
        # a shorter last chunk leaves old rows behind it, which are too far away to be seen
        ring.filled = slot + count if ring.filled <= slot + count else ring.filled
        seen = ring.view()[1] if prompt is None else torch.cat([prompt.view()[1], ring.view()[1]])
        keys.append((_waves(own + position, weights), _waves(seen, weights)))
    for i, block in enumerate(blocks):
        query, key, value = _projected(block, x, weights)
        mixed = []
        for n, (ring, prompt, _, slot) in enumerate(streams):
            ring.rows[i, 0, slot : slot + count] = key[n]
            ring.rows[i, 1, slot : slot + count] = value[n]
            rows = ring.view()[0][i]
            if prompt is not None:
                rows = torch.cat([prompt.view()[0][i], rows], 1)
            mixed.append(_attended(block, query[n], rows[0], rows[1], *keys[n], None))
        x = _fed(block, x + torch.stack(mixed), weights)
    return x


def _waves(positions: Tensor, weights: FlowWeights) -> Tensor:
    """int64 [n] -> [n, width]: sines, then cosines, of every rate"""
    width = weights.config.width
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
                      * -(math.log(10_000) / width)).to(weights.noise.dtype)
    angles = positions[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def _projected(block: ConformerBlock, x: Tensor, weights: FlowWeights) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = linear(norm(x, block.norm_attention, CONFORMER_EPS).to(weights.dtype), block.qkv).chunk(3, -1)
    return query, key, value


def _attended(block: ConformerBlock, query: Tensor, key: Tensor, value: Tensor, own: Tensor, seen: Tensor,
              mask: Tensor | None) -> Tensor:
    """query [n, width]; key, value [keys, width]; waves [n, width], [keys, width] -> [n, width]"""
    heads, size = block.bias_content.shape
    query, key, value = (t.view(len(t), heads, size).transpose(0, 1) for t in (query, key, value))
    asked = torch.matmul(query + block.bias_position[:, None], block.position).to(own.dtype)  # [heads, n, width]
    sine, cosine = asked.chunk(2, -1)
    own_sine, own_cosine = own.chunk(2, -1)
    turned = torch.cat([cosine * own_sine - sine * own_cosine, sine * own_sine + cosine * own_cosine], -1)
    content = torch.matmul(query + block.bias_content[:, None], key.transpose(-1, -2)).to(own.dtype)
    scores = (content + torch.matmul(turned, seen.t())) / math.sqrt(size)
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
    mixed = torch.matmul(scores.softmax(-1).to(value.dtype), value).transpose(0, 1).reshape(query.shape[1], -1)
    return linear(mixed, block.out)


def _fed(block: ConformerBlock, x: Tensor, weights: FlowWeights) -> Tensor:
    hidden = F.silu(linear(norm(x, block.norm_ffn, CONFORMER_EPS).to(weights.dtype), block.first))
    return x + linear(hidden, block.second)


def linear(x: Tensor, affine: Affine) -> Tensor:
    return F.linear(x, affine.weight, affine.bias)


def norm(x: Tensor, affine: Affine, eps: float) -> Tensor:
    """Layer norm in the width of its weights."""
    return F.layer_norm(x.to(affine.weight.dtype), affine.weight.shape, affine.weight, affine.bias, eps)
