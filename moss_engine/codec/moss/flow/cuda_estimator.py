"""The flow's estimator on a GPU, as `estimator.solve`, in fused kernels.

Streams' memories are found by the places in `meta`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.moss.flow.cuda_plan import Plan
from moss_engine.codec.moss.flow.memory import BRANCHES, num_convolutions
from moss_engine.codec.moss.flow.weights import EPS, NUM_STEPS, FlowWeights, Stage, Transformer

if TYPE_CHECKING:
    from moss_engine.kernels.codec.flow_block import Stream
    from moss_engine.kernels.codec.flow_convolution import Tails
    from moss_engine.kernels.codec.flow_meta import Chunks


def solve(weights: FlowWeights, chunks: Chunks, plan: Plan, noise: Tensor, fixed: Tensor) -> Tensor:
    """noise [streams, frames, mels], fixed [streams, frames, 3 * mels] -> mel like noise"""
    from moss_engine.kernels.codec.flow_step import step as take_step

    estimator, guidance = weights.estimator, weights.config.guidance
    streams, frames, mels = noise.shape
    branches = torch.stack([torch.cat([noise, fixed], -1), F.pad(noise, (0, fixed.shape[-1]))], 1)
    inputs = branches.flatten(0, 2)  # the mels in them move on
    for step in range(NUM_STEPS):
        y = last_convolution(weights, chunks, plan, inputs, step)
        take_step(
            y,
            estimator.final_norm.weight,
            estimator.final_norm.bias,
            EPS,
            estimator.project.weight,
            estimator.project.bias,
            inputs,
            weights.strides[step],
            guidance,
            frames,
        )
    return inputs.view(streams, BRANCHES, frames, -1)[:, 0, :, :mels]


def last_convolution(
    weights: FlowWeights, chunks: Chunks, plan: Plan, inputs: Tensor, step: int
) -> Tensor:
    """inputs float32 [rows, input channels] -> parts [parts, rows, channels]"""
    from moss_engine.kernels.codec.flow_block import settled
    from moss_engine.kernels.codec.flow_convolution import Tails, convolve

    estimator, config = weights.estimator, weights.config
    convolutions = num_convolutions(config)
    tails = Tails(
        step * convolutions,
        NUM_STEPS * convolutions,
        max(config.input_channels, 2 * config.channels),
    )
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
            after = convolve(
                settled(skipped), stage.after.weight, stage.after.bias, chunks, tails, plan.convolve
            )
            stream, tails = settled(after.sum(0, dtype=torch.float32)), _behind(tails, 1)
    return convolve(
        stream, estimator.final.weight, estimator.final.bias, chunks, tails, plan.convolve
    )


def _stage(
    stage: Stage, chunks: Chunks, plan: Plan, both: Tensor, step: int, layer: int, tails: Tails
) -> Stream:
    """both [parts, rows, 2 * channels]: the first convolution and the straight path"""
    from moss_engine.kernels.codec.flow_attention import attend
    from moss_engine.kernels.codec.flow_block import Stream, first_query, join, query
    from moss_engine.kernels.codec.flow_convolution import convolve_bent

    channels, groups = len(stage.second.weight), len(chunks.meta) * BRANCHES
    y = convolve_bent(
        both[..., :channels],
        stage.first_norm.weight,
        stage.first_norm.bias,
        stage.time[step],
        stage.second.weight,
        stage.second.bias,
        EPS,
        chunks,
        tails,
        plan.bend,
    )
    norm, stream = stage.second_norm, None
    for number, block in enumerate(stage.transformers, layer):
        of_attention = (block.norm_attention.weight, block.norm_attention.bias, block.query, EPS)
        where = (chunks, number, plan.query)
        if stream is None:
            straight = both[..., channels:]
            x, asked = first_query(y, norm.weight, norm.bias, straight, *of_attention, *where)
        else:
            x, asked = query(stream, *of_attention, *where)
        mixed, tops = attend(asked.view(groups, -1, channels), chunks, number, plan.attend)
        stream = Stream(x, join(mixed, tops, block.out.weight, block.out.bias, plan.join))
        stream = _feed_forward(stream, block, plan)
    assert stream is not None, "a stage has transformers"
    return stream


def _feed_forward(stream: Stream, block: Transformer, plan: Plan) -> Stream:
    from moss_engine.kernels.codec.flow_block import feed

    return feed(
        stream,
        block.norm_ffn.weight,
        block.norm_ffn.bias,
        EPS,
        block.first.weight,
        block.first.bias,
        block.second.weight,
        block.second.bias,
        plan.feed,
    )


def _behind(tails: Tails, count: int) -> Tails:
    return dataclasses.replace(tails, layer=tails.layer + count)
