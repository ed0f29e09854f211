"""The flow's conformer on a GPU, as `encoder.encode_chunk`, in a form for CUDA graphs.

Streams' rings are found by the addresses in `meta`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.moss.flow.encoder import (
    embedded,
    finished,
    linear,
    norm,
    upsampled,
    waves_of,
)
from moss_engine.codec.moss.flow.weights import CONFORMER_EPS, ConformerBlock, FlowWeights


def encode(
    weights: FlowWeights,
    anchor: Tensor,
    meta: Tensor,
    positions: Tensor,
    windows: Tensor,
    before: Tensor,
) -> tuple[Tensor, Tensor]:
    """The next chunk of each stream, whose first codes are at positions int64 [streams].

    Windows are those of `encode_chunk`; before [streams, 2, width] holds the two codes before the
    chunk as they are upsampled. Returns mu [streams, chunk * ratio, mels] and the next `before`.
    """
    from moss_engine.kernels.codec.flow_meta import Field

    ratio = weights.config.ratio
    x = embedded(weights, windows)
    x = _blocks(weights, weights.encoder.blocks, x, anchor, meta, positions, Field.low_rows, ratio)
    after = torch.cat([before, x], 1)[:, -2:]
    x = upsampled(weights, x, before)
    x = _blocks(
        weights, weights.encoder.up_blocks, x, anchor, meta, positions * ratio, Field.high_rows, 1
    )
    return finished(weights, x), after


def _blocks(
    weights: FlowWeights,
    blocks: Sequence[ConformerBlock],
    x: Tensor,
    anchor: Tensor,
    meta: Tensor,
    positions: Tensor,
    at: int,
    ratio: int,
) -> Tensor:
    from moss_engine.kernels.codec.conformer import attend, keep

    streams, count, width = x.shape
    dtype = weights.dtype
    waves = waves_of(positions[:, None] + torch.arange(count, device=x.device), width).flatten(0, 1)
    x = x.flatten(0, 1)
    for i, block in enumerate(blocks):
        qkv = linear(norm(x, block.norm_attention, CONFORMER_EPS).to(dtype), block.qkv)
        keep(qkv, waves, anchor, meta, i, count, at, ratio)
        heads, size = block.bias_position.shape
        query = qkv[:, :width].view(-1, heads, size) + block.bias_position
        asked = torch.matmul(query.transpose(0, 1), block.position)
        x = x + linear(
            attend(qkv, block.bias_content, asked, waves, anchor, meta, i, count, at, ratio),
            block.out,
        )
        hidden = F.silu(linear(norm(x, block.norm_ffn, CONFORMER_EPS).to(dtype), block.first))
        x = x + linear(hidden, block.second)
    return x.view(streams, count, width)
