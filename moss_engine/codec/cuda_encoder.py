"""The flow's conformer for the next chunk of some streams on a GPU, as `flow_encoder.encode_chunk`, in a form that a
CUDA graph can hold: rings are found by the addresses in `meta`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.flow_encoder import embedded, finished, linear, norm, upsampled
from moss_engine.codec.flow_weights import CONFORMER_EPS, ConformerBlock, FlowWeights


def encode(weights: FlowWeights, anchor: Tensor, meta: Tensor, positions: Tensor, windows: Tensor, before: Tensor,
           ) -> tuple[Tensor, Tensor]:
    """positions int64 [streams] of the first codes, windows as in `encode_chunk`, before [streams, 2, width] the
    two codes before the chunk as they are upsampled -> [streams, chunk * ratio, mels], and the chunk's last two codes.
    """
    from moss_engine.runtime.kernels.flow_meta import Field

    ratio = weights.config.ratio
    x = embedded(weights, windows)
    x = _blocks(weights, weights.encoder.blocks, x, anchor, meta, positions, Field.low_rows, ratio)
    after = torch.cat([before, x], 1)[:, -2:]
    x = upsampled(weights, x, before)
    x = _blocks(weights, weights.encoder.up_blocks, x, anchor, meta, positions * ratio, Field.high_rows, 1)
    return finished(weights, x), after


def _blocks(weights: FlowWeights, blocks: Sequence[ConformerBlock], x: Tensor, anchor: Tensor, meta: Tensor,
            positions: Tensor, at: int, ratio: int) -> Tensor:
    from moss_engine.runtime.kernels.conformer import attend, keep

    streams, count, width = x.shape
    kind = weights.dtype
    waves = waves_of(positions[:, None] + torch.arange(count, device=x.device), width).flatten(0, 1)
    x = x.flatten(0, 1)
    for i, block in enumerate(blocks):
        qkv = linear(norm(x, block.norm_attention, CONFORMER_EPS).to(kind), block.qkv)
        keep(qkv, waves, anchor, meta, i, count, at, ratio)
        heads, size = block.bias_position.shape
        query = qkv[:, :width].view(-1, heads, size) + block.bias_position
        asked = torch.matmul(query.transpose(0, 1), block.position)
        x = x + linear(attend(qkv, block.bias_content, asked, waves, anchor, meta, i, count, at, ratio), block.out)
        hidden = F.silu(linear(norm(x, block.norm_ffn, CONFORMER_EPS).to(kind), block.first))
        x = x + linear(hidden, block.second)
    return x.view(streams, count, width)


def waves_of(positions: Tensor, width: int) -> Tensor:
    """int64 [...] -> float32 [..., width]: sines, then cosines, of every rate"""
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
                      * -(math.log(10_000) / width))
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)
