"""The flow on a GPU: conformer and all Euler steps in one CUDA graph per batch size.

The same mathematics as `network` beside it, in kernels that leave out the memory
traffic between small operations. A graph finds the streams' memories by offsets that are copied
into its inputs before it runs (`_meta`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.device import GRAPH_BATCHES, captured, open_lane
from moss_engine.codec.moss.flow.network import (
    BRANCHES,
    LOOK_BACK,
    MOST_CHUNKS,
    OUTSIDE,
    Chunk,
    FlowMemory,
    embedded,
    finished,
    linear,
    norm,
    num_convolutions,
    upsampled,
    waves_of,
)
from moss_engine.codec.moss.flow.weights import (
    CONFORMER_EPS,
    EPS,
    NUM_STEPS,
    ConformerBlock,
    FlowWeights,
    Stage,
)
from moss_engine.kernels.codec import conformer
from moss_engine.kernels.codec.flow import (
    CONTINUES,
    FIELDS,
    GOES_ON,
    Chunks,
    Field,
    Residual,
    Stream,
    Tails,
    Tiles,
    attend,
    convolve,
    convolve_activated,
    feed,
    join,
    query,
    settled,
)
from moss_engine.kernels.codec.flow import step as euler_step
from moss_engine.kernels.launch import shared_memory_bytes

_MOST_SHARED, SHARED_FOR_MANY = 150 << 10, 220 << 10
"""Bytes of shared memory that the largest program of a plan takes, and of that for many rows."""

_MANY = 1000  # rows
_TILES: dict[str, tuple[tuple[int, ...], ...]] = {
    # kernel by kernel as in `Plan`; those without columns are the library's products
    "float32": (
        (8, 32, 1, 8, 1), (8, 32, 1, 8, 1), (8, 32, 1, 8, 1), (8, 64, 1, 8, 1),
        (16, 16, 4, 8, 1), (8, 64, 8, 8, 1), (8, 64, 16, 8, 1),
    ),
    "up to 40 rows": (
        (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4),
        (16, 64, 8, 4), (16, 64, 8, 4), (8, 128, 8, 8),
    ),
    "up to 80 rows": (
        (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4),
        (16, 64, 4, 4), (16, 64, 8, 4), (8, 128, 8, 8),
    ),
    "up to 160 rows": (
        (16, 128, 1, 8), (16, 64, 1, 4), (8, 64, 1, 4), (16, 256, 1, 8),
        (32, 64, 2, 8, 3), (16, 64, 8, 4), (16, 128, 8, 8),
    ),
    "up to 320 rows": (
        (32, 128, 1, 8), (32, 64, 1, 4), (16, 128, 1, 8), (32, 256, 1, 8),
        (64, 64, 2, 8, 3), (32, 64, 8, 4), (32, 128, 8, 8),
    ),
    "more rows": (
        (32, 128, 1, 8), (32, 64, 1, 4), (32, 128, 1, 8), (8, 0, 1, 4),
        (64, 64, 1, 4, 3), (64, 128, 4, 8), (32, 128, 4, 8),
    ),
    "many rows": (
        (64, 256, 1, 8), (64, 128, 1, 8), (64, 256, 1, 8), (8, 0, 1, 4),
        (128, 64, 1, 8, 3), (0, 0, 1, 0), (8, 0, 1, 4),
    ),
    "little memory, up to 80 rows": (
        (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4), (8, 64, 1, 4),
        (16, 64, 8, 4), (16, 64, 8, 4), (8, 64, 8, 8),
    ),
    "little memory, more rows": (
        (32, 64, 1, 4), (32, 64, 1, 4), (32, 64, 1, 4), (32, 64, 1, 4),
        (64, 64, 1, 4), (64, 64, 4, 8), (32, 64, 4, 8),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The tiles of every kernel.

    `convolve` is for convolutions, `wide` for those with wide inputs, `second` for the second one
    of a stage; the others are a transformer's.
    """

    convolve: Tiles
    wide: Tiles
    second: Tiles
    query: Tiles
    attend: Tiles
    join: Tiles
    feed: Tiles


def plan_of(rows: int, dtype: torch.dtype, shared_bytes: int) -> Plan:
    """The plan for `rows` rows on a GPU with `shared_bytes` of shared memory for a program.

    Programs are smaller in float32, which takes twice the room, and on GeForce cards, which have
    99 KB of shared memory.
    """
    if dtype == torch.float32:
        name = "float32"
    elif shared_bytes < _MOST_SHARED:
        name = f"little memory, {'up to 80' if rows <= 80 else 'more'} rows"
    elif rows >= _MANY and shared_bytes >= SHARED_FOR_MANY:
        name = "many rows"
    else:
        most = next((most for most in (40, 80, 160, 320) if rows <= most), None)
        name = f"up to {most} rows" if most else "more rows"
    return Plan(*(Tiles(*sizes) for sizes in _TILES[name]))


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
    chunk as they are upsampled, unless it continues the one of the row before (`Field.link`).
    Returns mu [streams, chunk * ratio, mels] and the next `before`.
    """
    ratio = weights.config.ratio
    x = embedded(weights, windows)
    x = _blocks(weights, weights.encoder.blocks, x, anchor, meta, positions, Field.low_rows, ratio)
    continues = (meta[:, Field.link, None, None] & CONTINUES.value) != 0
    before = torch.where(continues, x[:, -2:].roll(1, 0), before)
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
    streams, count, width = x.shape
    dtype = weights.dtype
    waves = waves_of(positions[:, None] + torch.arange(count, device=x.device), width).flatten(0, 1)
    x = x.flatten(0, 1)
    for i, block in enumerate(blocks):
        qkv = linear(norm(x, block.norm_attention, CONFORMER_EPS).to(dtype), block.qkv)
        conformer.keep(qkv, waves, anchor, meta, i, count, at, ratio)
        heads, size = block.bias_position.shape
        position_queries = qkv[:, :width].view(-1, heads, size) + block.bias_position
        position_scores = torch.matmul(position_queries.transpose(0, 1), block.position)
        seen = conformer.attend(
            qkv, block.bias_content, position_scores, waves, anchor, meta, i, count, at, ratio
        )
        x = x + linear(seen, block.out)
        hidden = F.silu(linear(norm(x, block.norm_ffn, CONFORMER_EPS).to(dtype), block.first))
        x = x + linear(hidden, block.second)
    return x.view(streams, count, width)


def solve(weights: FlowWeights, chunks: Chunks, plan: Plan, noise: Tensor, fixed: Tensor) -> Tensor:
    """noise [streams, frames, mels], fixed [streams, frames, 3 * mels] -> mel like noise"""
    estimator, guidance = weights.estimator, weights.config.guidance
    streams, frames, mels = noise.shape
    branches = torch.stack([torch.cat([noise, fixed], -1), F.pad(noise, (0, fixed.shape[-1]))], 1)
    inputs = branches.flatten(0, 2)  # the mels in them move on
    for step in range(NUM_STEPS):
        y = last_convolution(weights, chunks, plan, inputs, step)
        euler_step(
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
    channels, groups = len(stage.second.weight), len(chunks.meta) * BRANCHES
    y = convolve_activated(
        both[..., :channels],
        stage.first_norm.weight,
        stage.first_norm.bias,
        stage.time[step],
        stage.second.weight,
        stage.second.bias,
        EPS,
        chunks,
        tails,
        plan.second,
    )
    stream = Stream(y[0], y[1:])
    residual = Residual(stage.second_norm.weight, stage.second_norm.bias, both[..., channels:])
    for number, block in enumerate(stage.transformers, layer):
        before, after, out = block.norm_attention, block.norm_ffn, block.out
        of_query = before.weight, before.bias, block.query, EPS, chunks, number, plan.query
        x, queries = query(stream, residual, *of_query)
        attended, lse = attend(queries.view(groups, -1, channels), chunks, number, plan.attend)
        stream = Stream(x, join(attended, lse, out.weight, out.bias, plan.join))
        of_ffn = block.first.weight, block.first.bias, block.second.weight, block.second.bias
        stream = feed(stream, after.weight, after.bias, EPS, *of_ffn, plan.feed)
        residual = None
    return stream


def _behind(tails: Tails, count: int) -> Tails:
    return dataclasses.replace(tails, layer=tails.layer + count)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a run, one row a chunk: `first` int64 [rows], chunks' first codes, `before` as in
    `encode`."""

    anchor: Tensor
    meta: Tensor
    first: Tensor
    windows: Tensor
    before: Tensor
    speaker: Tensor
    condition: Tensor

    @staticmethod
    def empty(weights: FlowWeights, rows: int, chunk_codes: int) -> _Inputs:
        config, like = weights.config, weights.noise

        def ids(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.int64, device=like.device)

        anchor = torch.zeros(16, dtype=weights.dtype, device=like.device)
        return _Inputs(
            anchor,
            ids(FIELDS),
            ids(),
            ids(LOOK_BACK + chunk_codes + config.look_ahead),
            like.new_zeros(rows, 2, config.width),
            like.new_zeros(rows, config.num_mels),
            like.new_zeros(rows, chunk_codes * config.ratio, config.num_mels),
        )


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    given: _Inputs
    results: tuple[Tensor, Tensor]


class CudaFlow:
    """`run_chunks` for one flow on a GPU, of `max_together` windows at most or those of one stream.
    Calls come from one thread at a time and run on its current CUDA stream; everything is captured
    when it is made (or nothing, without `graphs`)."""

    def __init__(
        self, weights: FlowWeights, chunk_codes: int, max_together: int, *, graphs: bool = True
    ) -> None:
        most = max(MOST_CHUNKS, max_together)
        self._counts = [*(count for count in GRAPH_BATCHES if count < most), most]
        # stands in for the rows that a graph has too many
        self._idle = FlowMemory(weights, chunk_codes, 2)
        self._chunk_codes = chunk_codes
        self._graphs: dict[int, _Graph] = {}
        if graphs:
            self._capture(weights)

    @torch.inference_mode()
    def __call__(self, weights: FlowWeights, chunks: Sequence[Chunk]) -> list[Tensor]:
        """See `run_chunks`; windows have at most `chunk_codes` codes."""
        rows = [_Row(chunk, turn) for chunk in chunks for turn in range(len(chunk.windows))]
        count = next(count for count in self._counts if count >= len(rows))
        graph = self._graphs.get(count)
        given = graph.given if graph else _Inputs.empty(weights, count, self._chunk_codes)
        around = LOOK_BACK + weights.config.look_ahead
        codes = [len(row.window) - around for row in rows]
        self._fill(given, rows, codes)
        if graph:
            graph.graph.replay()
            mel, after = (result.clone() for result in graph.results)
        else:
            mel, after = _run(weights, given)
        mels, at = [], 0
        for chunk in chunks:
            end = at + len(chunk.windows)
            frames = sum(codes[at:end]) * weights.config.ratio
            mels.append(mel[at:end].flatten(0, 1)[:frames])
            chunk.memory.next_codes = after[end - 1]
            chunk.memory.advance(sum(codes[at:end]))
            at = end
        return mels

    def _fill(self, given: _Inputs, rows: Sequence[_Row], codes: Sequence[int]) -> None:
        """Everything that a run is given, in few copies, since the GPU waits for the host here."""
        count, size, ratio = len(rows), given.windows.shape[1], self._idle.config.ratio
        frames = self._chunk_codes * ratio
        meta = [
            _meta(row.memory, given.anchor, ratio * length, row.turn * frames, row.link)
            for row, length in zip(rows, codes, strict=True)
        ]
        idle = _meta(self._idle, given.anchor, frames)
        _send([*meta, *[idle] * (len(given.meta) - count)], given.meta)
        given.condition.zero_()
        if not rows:
            return
        first = [row.memory.position + row.turn * self._chunk_codes for row in rows]
        _send(first, given.first[:count])
        windows = [(*row.window, *[OUTSIDE] * (size - len(row.window))) for row in rows]
        _send(windows, given.windows[:count])
        torch.stack([row.chunk.voice.speaker for row in rows], out=given.speaker[:count])
        torch.stack([row.memory.last_codes for row in rows], out=given.before[:count])
        for place, row, length in zip(given.condition, rows, codes, strict=False):
            if row.turn == 0 and row.chunk.condition is not None:
                place[: length * ratio] = row.chunk.condition

    def _capture(self, weights: FlowWeights) -> None:
        device = weights.noise.device
        pool, stream = torch.cuda.graph_pool_handle(), open_lane(device)
        assert stream is not None, "graphs are of a GPU"
        with torch.cuda.device(device), torch.inference_mode():
            for count in reversed(self._counts):
                given = _Inputs.empty(weights, count, self._chunk_codes)
                self._fill(given, [], [])
                graph, results = captured(partial(_run, weights, given), stream, pool)
                self._graphs[count] = _Graph(graph, given, results)


class _Row(NamedTuple):
    """One window of a chunk."""

    chunk: Chunk
    turn: int

    @property
    def memory(self) -> FlowMemory:
        return self.chunk.memory

    @property
    def window(self) -> tuple[int, ...]:
        return self.chunk.windows[self.turn]

    @property
    def link(self) -> int:
        """As `Field` says."""
        goes_on = self.turn + 1 < len(self.chunk.windows)
        return CONTINUES.value * (self.turn > 0) + GOES_ON.value * goes_on


def _send(values: Sequence[Any], to: Tensor) -> None:
    """Integers to a tensor, on a GPU without a wait for it."""
    to.copy_(torch.tensor(values, dtype=to.dtype, pin_memory=to.is_cuda), non_blocking=True)


def _meta(
    memory: FlowMemory, anchor: Tensor, valid: int, ahead: int = 0, link: int = 0
) -> list[int]:
    """The columns of `Field` for a chunk of `valid` frames, the next one of its stream or one that
    comes `ahead` frames behind that in the same run."""
    start, size = anchor.data_ptr(), 16 * anchor.element_size()

    def places(past: FlowMemory) -> list[int]:
        assert not any((address - start) % size for address in past.addresses), (
            "tensors begin at multiples of 16 elements"
        )
        return [(address - start) // size * 16 for address in past.addresses]

    slot, past = memory.slot + ahead, memory.prompt
    assert slot + valid <= memory.capacity, "chunks of one run fit into the ring's rest"
    seen = memory.capacity if memory.frames >= memory.capacity else slot + valid
    kv, tails, low, low_waves, high, high_waves = places(memory)
    before, prompt_frames = [0] * 6, 0
    if past is not None and past.frames:
        before, prompt_frames = places(past), past.frames
    return [
        kv, memory.capacity, slot, seen, valid, before[0], prompt_frames, tails, memory.parity,
        low, low_waves, before[2], before[3], high, high_waves, before[4], before[5], link,
    ]  # fmt: skip


def _run(weights: FlowWeights, given: _Inputs) -> tuple[Tensor, Tensor]:
    """-> mel [rows, frames, mels], and [rows, 2, width] for the next chunk's upsampling"""
    mu, after = encode(weights, given.anchor, given.meta, given.first, given.windows, given.before)
    frames = mu.shape[1]
    at = given.first[:, None] * weights.config.ratio + torch.arange(frames, device=mu.device)
    fixed = torch.cat([mu, given.speaker[:, None].expand_as(mu), given.condition], -1)
    chunks = Chunks(given.anchor, given.meta, frames)
    plan = plan_of(len(given.meta) * BRANCHES * frames, weights.dtype, shared_memory_bytes())
    return solve(weights, chunks, plan, weights.noise[at % len(weights.noise)], fixed), after
