"""The flow's estimator for the next chunk of some streams on a GPU, as `flow_estimator.solve`, in kernels that leave
out the memory traffic between small operations; streams' memories are found by the places in `meta`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.flow_memory import BRANCHES, num_convolutions
from moss_engine.codec.flow_weights import EPS, NUM_STEPS, FlowWeights, Stage

if TYPE_CHECKING:
    from moss_engine.runtime.kernels.flow_block import Stream
    from moss_engine.runtime.kernels.flow_convolution import Tails
    from moss_engine.runtime.kernels.flow_meta import Chunks, Tiles

_MOST_SHARED = 150 << 10
"""Bytes of shared memory that the largest program of a plan takes."""


@dataclass(frozen=True)
class Plan:
    """How every kernel's work is cut: of the convolutions, the wide ones among them, the second ones of a stage, and of
    a transformer's kernels."""

    convolve: Tiles
    wide: Tiles
    bend: Tiles
    query: Tiles
    attend: Tiles
    join: Tiles
    feed: Tiles


def plan_of(rows: int, dtype: torch.dtype, shared_bytes: int) -> Plan:
    """For so many rows on a GPU whose programs have so much shared memory. A program's share of float32, which takes
    twice the room, and its share on GeForce cards is smaller, so that 99 KB are enough."""
    from moss_engine.runtime.kernels.flow_meta import Tiles

    if dtype == torch.float32:
        narrow, thin = Tiles(8, 64, 1, 8, 1), Tiles(8, 32, 1, 8, 1)
        return Plan(convolve=thin, wide=thin, bend=thin, query=narrow, attend=Tiles(16, 16, 4, 8, 1),
                    join=Tiles(8, 64, 8, 8, 1), feed=Tiles(8, 64, 16, 8, 1))
    is_small = shared_bytes < _MOST_SHARED
    if rows <= 80:
        narrow = Tiles(8, 64, 1, 4)
        return Plan(convolve=narrow, wide=narrow, bend=narrow, query=narrow, attend=Tiles(16, 64, 8, 4),
                    join=Tiles(16, 64, 8, 4), feed=Tiles(8, 64 if is_small else 128, 8, 8))
    if is_small:
        middle = Tiles(32, 64, 1, 4)
        return Plan(convolve=middle, wide=middle, bend=middle, query=middle, attend=Tiles(64, 64, 1, 4),
                    join=Tiles(64, 64, 4, 8), feed=Tiles(32, 64, 4, 8))
    if rows <= 160:
        return Plan(convolve=Tiles(16, 128, 1, 8), wide=Tiles(16, 64, 1, 4), bend=Tiles(8, 64, 1, 4),
                    query=Tiles(8, 128, 1, 8), attend=Tiles(32, 64, 2, 8, 3), join=Tiles(16, 64, 8, 4),
                    feed=Tiles(16, 128, 8, 8))
    return Plan(convolve=Tiles(32, 128, 1, 8), wide=Tiles(32, 64, 1, 4), bend=Tiles(32, 128, 1, 8),
                query=Tiles(32, 256, 1, 8), attend=Tiles(64, 64, 1, 4, 3), join=Tiles(64, 128, 4, 8),
                feed=Tiles(32, 128, 4, 8))


def solve(weights: FlowWeights, chunks: Chunks, plan: Plan, noise: Tensor, fixed: Tensor) -> Tensor:
    """noise [streams, frames, mels], fixed [streams, frames, 3 * mels] -> mel [streams, frames, mels]"""
    from moss_engine.runtime.kernels.flow_step import step as take_step

    estimator, guidance = weights.estimator, weights.config.guidance
    streams, frames, mels = noise.shape
    branches = torch.stack([torch.cat([noise, fixed], -1), F.pad(noise, (0, fixed.shape[-1]))], 1)
    inputs = branches.flatten(0, 2)  # the mels in them move on
    for step in range(NUM_STEPS):
        y = last_convolution(weights, chunks, plan, inputs, step)
        take_step(y, estimator.final_norm.weight, estimator.final_norm.bias, EPS, estimator.project.weight,
                  estimator.project.bias, inputs, weights.strides[step], guidance, frames)
    return inputs.view(streams, BRANCHES, frames, -1)[:, 0, :, :mels]


def last_convolution(weights: FlowWeights, chunks: Chunks, plan: Plan, inputs: Tensor, step: int) -> Tensor:
    """inputs float32 [rows, input channels] -> parts [parts, rows, channels]"""
    from moss_engine.runtime.kernels.flow_block import settled
    from moss_engine.runtime.kernels.flow_convolution import Tails, convolve

    estimator, config = weights.estimator, weights.config
    convolutions = num_convolutions(config)
    tails = Tails(step * convolutions, NUM_STEPS * convolutions, max(config.input_channels, 2 * config.channels))
    layer = step * config.num_stages * config.transformers
    stream, skipped = settled(inputs), inputs
    for stage in estimator.stages:
        if stage is estimator.stages[-1]:
            stream = settled(torch.cat([stream.total(), skipped], -1))
        tiles = plan.convolve if stream.x.shape[1] == config.channels else plan.wide
        both = convolve(stream, stage.first.weight, stage.first.bias, chunks, tails, tiles)
        stream = _stage(stage, chunks, plan, both, step, layer, _behind(tails, 1))
        tails, layer = _behind(tails, 2), layer + config.transformers
        if stage.after is not None:
            skipped = stream.total()
            after = convolve(settled(skipped), stage.after.weight, stage.after.bias, chunks, tails, plan.convolve)
            stream, tails = settled(after.sum(0, dtype=torch.float32)), _behind(tails, 1)
    return convolve(stream, estimator.final.weight, estimator.final.bias, chunks, tails, plan.convolve)


def _stage(stage: Stage, chunks: Chunks, plan: Plan, both: Tensor, step: int, layer: int, tails: Tails) -> Stream:
    """both [parts, rows, 2 * channels]: the first convolution and the straight path"""
    from moss_engine.runtime.kernels.flow_attention import attend
    from moss_engine.runtime.kernels.flow_block import Stream, feed, first_query, join, query
    from moss_engine.runtime.kernels.flow_convolution import convolve_bent

    channels, groups = len(stage.second.weight), len(chunks.meta) * BRANCHES
    y = convolve_bent(both[..., :channels], stage.first_norm.weight, stage.first_norm.bias, stage.time[step],
                      stage.second.weight, stage.second.bias, EPS, chunks, tails, plan.bend)
    stream = None
    for number, block in enumerate(stage.transformers, layer):
        gain, shift = block.norm_attention.weight, block.norm_attention.bias
        if stream is None:
            x, asked = first_query(y, stage.second_norm.weight, stage.second_norm.bias, both[..., channels:], gain,
                                   shift, block.query, EPS, chunks, number, plan.query)
        else:
            x, asked = query(stream, gain, shift, block.query, EPS, chunks, number, plan.query)
        mixed, tops = attend(asked.view(groups, -1, channels), chunks, number, plan.attend)
        stream = Stream(x, join(mixed, tops, block.out.weight, block.out.bias, plan.join))
        stream = feed(stream, block.norm_ffn.weight, block.norm_ffn.bias, EPS, block.first.weight, block.first.bias,
                      block.second.weight, block.second.bias, plan.feed)
    assert stream is not None, "a stage has transformers"
    return stream


def _behind(tails: Tails, count: int) -> Tails:
    return dataclasses.replace(tails, layer=tails.layer + count)
