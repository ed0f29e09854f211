"""The flow on a GPU: conformer and all Euler steps in one CUDA graph per batch size.

The same mathematics as `network` beside it, in kernels that leave out the memory
traffic between small operations. A graph finds the streams' memories by offsets that are copied
into its inputs before it runs (`_meta`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.device import GRAPH_BATCHES, open_lane
from moss_engine.codec.moss.flow.network import (
    BRANCHES,
    LOOK_BACK,
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
    FIELDS,
    Chunks,
    Field,
    Stream,
    Tails,
    Tiles,
    attend,
    convolve,
    convolve_bent,
    feed,
    first_query,
    join,
    query,
    settled,
)
from moss_engine.kernels.codec.flow import step as euler_step
from moss_engine.kernels.launch import shared_memory_bytes

_MOST_SHARED, SHARED_FOR_MANY = 150 << 10, 220 << 10
"""Bytes of shared memory that the largest program of a plan takes, and of that for many rows."""

_MANY = 1000  # rows
_FLOAT32 = {
    "convolve": (8, 32, 1, 8, 1),
    "wide": (8, 32, 1, 8, 1),
    "bend": (8, 32, 1, 8, 1),
    "query": (8, 64, 1, 8, 1),
    "attend": (16, 16, 4, 8, 1),
    "join": (8, 64, 8, 8, 1),
    "feed": (8, 64, 16, 8, 1),
}
_UP_TO_80_ROWS = {
    "convolve": (8, 64, 1, 4),
    "wide": (8, 64, 1, 4),
    "bend": (8, 64, 1, 4),
    "query": (8, 64, 1, 4),
    "attend": (16, 64, 8, 4),
    "join": (16, 64, 8, 4),
    "feed": (8, 128, 8, 8),
}
_UP_TO_80_ROWS_SMALL = {**_UP_TO_80_ROWS, "feed": (8, 64, 8, 8)}
_MORE_ROWS_SMALL = {
    "convolve": (32, 64, 1, 4),
    "wide": (32, 64, 1, 4),
    "bend": (32, 64, 1, 4),
    "query": (32, 64, 1, 4),
    "attend": (64, 64, 1, 4),
    "join": (64, 64, 4, 8),
    "feed": (32, 64, 4, 8),
}
_UP_TO_160_ROWS = {
    "convolve": (16, 128, 1, 8),
    "wide": (16, 64, 1, 4),
    "bend": (8, 64, 1, 4),
    "query": (8, 128, 1, 8),
    "attend": (32, 64, 2, 8, 3),
    "join": (16, 64, 8, 4),
    "feed": (16, 128, 8, 8),
}
_UP_TO_320_ROWS = {
    "convolve": (32, 128, 1, 8),
    "wide": (32, 64, 1, 4),
    "bend": (16, 128, 1, 8),
    "query": (32, 256, 1, 8),
    "attend": (64, 64, 2, 8, 3),
    "join": (32, 64, 8, 4),
    "feed": (32, 128, 8, 8),
}
_MORE_ROWS = {
    "convolve": (32, 128, 1, 8),
    "wide": (32, 64, 1, 4),
    "bend": (32, 128, 1, 8),
    "query": (32, 256, 1, 8),
    "attend": (64, 64, 1, 4, 3),
    "join": (64, 128, 4, 8),
    "feed": (32, 128, 4, 8),
}
_MANY_ROWS = {
    "convolve": (64, 256, 1, 8),
    "wide": (64, 128, 1, 8),
    "bend": (64, 256, 1, 8),
    "query": (8, 0, 1, 4),
    "attend": (128, 64, 1, 8, 2),
    "join": (0, 0, 1, 0),
    "feed": (8, 0, 1, 4),
}
"""Without columns: the library's products, which pay from so many rows on."""


@dataclass(frozen=True)
class Plan:
    """The tiles of every kernel.

    `convolve` is for convolutions, `wide` for those with wide inputs, `bend` for the second one of
    a stage; the others are a transformer's.
    """

    convolve: Tiles
    wide: Tiles
    bend: Tiles
    query: Tiles
    attend: Tiles
    join: Tiles
    feed: Tiles


def plan_of(rows: int, dtype: torch.dtype, shared_bytes: int) -> Plan:
    """The plan for `rows` rows on a GPU with `shared_bytes` of shared memory for a program.

    Programs are smaller in float32, which takes twice the room, and on GeForce cards, which have
    99 KB of shared memory.
    """
    is_small = shared_bytes < _MOST_SHARED
    if dtype == torch.float32:
        tiles = _FLOAT32
    elif is_small:
        tiles = _UP_TO_80_ROWS_SMALL if rows <= 80 else _MORE_ROWS_SMALL
    elif rows <= 80:
        tiles = _UP_TO_80_ROWS
    elif rows <= 320:
        tiles = _UP_TO_160_ROWS if rows <= 160 else _UP_TO_320_ROWS
    else:
        is_many = rows >= _MANY and shared_bytes >= SHARED_FOR_MANY
        tiles = _MANY_ROWS if is_many else _MORE_ROWS
    return Plan(**{name: Tiles(*sizes) for name, sizes in tiles.items()})


def encode(
    weights: FlowWeights,
    anchor: Tensor,
    meta: Tensor,
    positions: Tensor,
    windows: Tensor,
    before: Tensor,
    chained: bool = False,
) -> tuple[Tensor, Tensor]:
    """The next chunk of each stream, whose first codes are at positions int64 [streams].

    Windows are those of `encode_chunk`; before [streams, 2, width] holds the two codes before the
    chunk as they are upsampled, but for those chunks of the second half that are `chained` to those
    of the first. Returns mu [streams, chunk * ratio, mels] and the next `before`.
    """
    ratio = weights.config.ratio
    x = embedded(weights, windows)
    x = _blocks(weights, weights.encoder.blocks, x, anchor, meta, positions, Field.low_rows, ratio)
    if chained:
        before = torch.cat([before[: len(x) // 2], x[: len(x) // 2, -2:]])
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
        asking = qkv[:, :width].view(-1, heads, size) + block.bias_position
        asked = torch.matmul(asking.transpose(0, 1), block.position)
        seen = conformer.attend(
            qkv, block.bias_content, asked, waves, anchor, meta, i, count, at, ratio
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
        stream = feed(
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
    assert stream is not None, "a stage has transformers"
    return stream


def _behind(tails: Tails, count: int) -> Tails:
    return dataclasses.replace(tails, layer=tails.layer + count)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a run: `first` int64 [streams], chunks' first codes, `before` as in `encode`."""

    anchor: Tensor
    meta: Tensor
    first: Tensor
    windows: Tensor
    before: Tensor
    speaker: Tensor
    condition: Tensor
    chained: bool

    @staticmethod
    def empty(
        weights: FlowWeights, streams: int, chunk_codes: int, chained: bool = False
    ) -> _Inputs:
        """With `chained` as many streams more, for the chunks behind theirs."""
        config, like = weights.config, weights.noise
        streams, frames = streams * (1 + chained), chunk_codes * config.ratio

        def ids(*shape: int) -> Tensor:
            return torch.zeros(streams, *shape, dtype=torch.int64, device=like.device)

        anchor = torch.zeros(16, dtype=weights.dtype, device=like.device)
        return _Inputs(
            anchor,
            ids(FIELDS),
            ids(),
            ids(LOOK_BACK + chunk_codes + config.look_ahead),
            like.new_zeros(streams, 2, config.width),
            like.new_zeros(streams, config.num_mels),
            like.new_zeros(streams, frames, config.num_mels),
            chained,
        )


MOST_CHAINED = 8
"""Streams that are run two chunks at a time."""


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    given: _Inputs
    results: tuple[Tensor, Tensor]


class CudaFlow:
    """`run_chunks` for one flow on a GPU, at most `max_together` streams at a time. Calls come from
    one thread at a time and run on its current CUDA stream; everything is captured when it is made
    (or nothing, without `graphs`)."""

    def __init__(
        self, weights: FlowWeights, chunk_codes: int, max_together: int, *, graphs: bool = True
    ) -> None:
        self._counts = [*(count for count in GRAPH_BATCHES if count < max_together), max_together]
        # stands in for the streams that a graph has too many
        self._idle = FlowMemory(weights, chunk_codes, 2)
        self._chunk_codes = chunk_codes
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        if graphs:
            self._capture(weights)

    @torch.inference_mode()
    def __call__(self, weights: FlowWeights, chunks: Sequence[Chunk]) -> Tensor:
        """See `run_chunks`; the chunks have one length, at most `chunk_codes`. Those with another
        behind them are run with it, some at a time."""
        if chunks[0].behind is None:
            return self._run(weights, chunks)
        most = max(count for count in self._counts if count <= MOST_CHAINED)
        parts = [chunks[at : at + most] for at in range(0, len(chunks), most)]
        return torch.cat([self._run(weights, part, chained=True) for part in parts])

    def _run(
        self, weights: FlowWeights, chunks: Sequence[Chunk], *, chained: bool = False
    ) -> Tensor:
        count = next(count for count in self._counts if count >= len(chunks))
        codes = len(chunks[0].window) - LOOK_BACK - weights.config.look_ahead
        frames = codes * weights.config.ratio
        graph = self._graphs.get((count, chained))
        given = graph.given if graph else _Inputs.empty(weights, count, self._chunk_codes, chained)
        self._fill(given, chunks, frames)
        if graph:
            graph.graph.replay()
            mel, after = (result.clone() for result in graph.results)
        else:
            mel, after = _run(weights, given)
        mel, after = mel.unflatten(0, (-1, count)), after[-count:]
        for chunk, last_codes in zip(chunks, after, strict=False):
            chunk.memory.next_codes = last_codes
            chunk.memory.advance(codes * len(mel))
        return mel[:, : len(chunks), :frames].transpose(0, 1).flatten(1, 2)

    def _fill(self, given: _Inputs, chunks: Sequence[Chunk], frames: int) -> None:
        memories = [chunk.memory for chunk in chunks]
        room = len(given.meta) // (1 + given.chained)
        all_memories = memories + [self._idle] * (room - len(chunks))
        given.meta.copy_(_meta(all_memories, frames, given.anchor, chained=given.chained))
        size = given.windows.shape[1]
        windows = [chunk.window for chunk in chunks]
        behind = [chunk.behind for chunk in chunks if chunk.behind is not None]
        for at, some in ((0, windows), (room, behind)):
            given.windows[at : at + len(some)] = torch.tensor(
                [(*window, *[OUTSIDE] * (size - len(window))) for window in some]
            ).view(-1, size)
        first = torch.tensor([memory.position for memory in memories])
        speakers = torch.stack([chunk.voice.speaker for chunk in chunks])
        for turn in range(1 + given.chained):
            here = slice(turn * room, turn * room + len(chunks))
            given.first[here] = first + turn * self._chunk_codes
            given.speaker[here] = speakers
        torch.stack([memory.last_codes for memory in memories], out=given.before[: len(chunks)])
        given.condition.zero_()
        for rows, chunk in zip(given.condition, chunks, strict=False):
            if chunk.condition is not None:
                rows[:frames] = chunk.condition

    def _capture(self, weights: FlowWeights) -> None:
        device = weights.noise.device
        pool, stream = torch.cuda.graph_pool_handle(), open_lane(device)
        assert stream is not None, "graphs are of a GPU"
        sizes = [(count, False) for count in reversed(self._counts)]
        sizes += [(count, True) for count in reversed(self._counts) if count <= MOST_CHAINED]
        with torch.cuda.device(device), torch.inference_mode():
            for count, chained in sizes:
                given = _Inputs.empty(weights, count, self._chunk_codes, chained)
                frames = self._chunk_codes * weights.config.ratio
                idle = [self._idle] * count
                given.meta.copy_(_meta(idle, frames, given.anchor, chained=chained))
                stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(stream):
                    # compiles kernels and chooses algorithms, which capture must not do
                    _run(weights, given)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    results = _run(weights, given)
                self._graphs[count, chained] = _Graph(graph, given, results)


def _meta(
    memories: Sequence[FlowMemory], valid: int, anchor: Tensor, *, chained: bool = False
) -> Tensor:
    """int64 [streams, FIELDS], as `Field` says, for chunks of `valid` frames; with `chained` also
    for those behind them, which are streams of their own."""
    start, size = anchor.data_ptr(), anchor.element_size()

    def place(tensor: Tensor) -> int:
        elements, rest = divmod(tensor.data_ptr() - start, size)
        assert not rest and not elements % 16, "tensors begin at multiples of 16 elements"
        return elements

    rows = []
    for memory in memories:
        is_full, past = memory.frames >= memory.capacity, memory.prompt
        row = {
            Field.notes: place(memory.notes),
            Field.capacity: memory.capacity,
            Field.slot: memory.slot,
            Field.seen: memory.capacity if is_full else memory.slot + valid,
            Field.valid: valid,
            Field.tails: place(memory.tails),
            Field.parity: memory.parity,
            Field.low_rows: place(memory.low.rows),
            Field.low_waves: place(memory.low.waves),
            Field.high_rows: place(memory.high.rows),
            Field.high_waves: place(memory.high.waves),
        }
        if past is not None and past.frames:
            row |= {
                Field.prompt_notes: place(past.notes),
                Field.prompt_frames: past.frames,
                Field.low_past_rows: place(past.low.rows),
                Field.low_past_waves: place(past.low.waves),
                Field.high_past_rows: place(past.high.rows),
                Field.high_past_waves: place(past.high.waves),
            }
        rows.append([row.get(field, 0) for field in Field])
    found = torch.tensor(rows, dtype=torch.int64)
    if not chained:
        return found
    behind = found.clone()
    behind[:, [Field.slot, Field.seen]] += valid
    found[:, Field.behind], behind[:, Field.behind] = -1, len(memories)
    return torch.cat([found, behind])


def _run(weights: FlowWeights, given: _Inputs) -> tuple[Tensor, Tensor]:
    """-> mel [streams, frames, mels], and [streams, 2, width] for the next chunk's upsampling"""
    mu, after = encode(
        weights, given.anchor, given.meta, given.first, given.windows, given.before, given.chained
    )
    frames = mu.shape[1]
    at = given.first[:, None] * weights.config.ratio + torch.arange(frames, device=mu.device)
    fixed = torch.cat([mu, given.speaker[:, None].expand_as(mu), given.condition], -1)
    chunks = Chunks(given.anchor, given.meta, frames, given.chained)
    plan = plan_of(len(given.meta) * BRANCHES * frames, weights.dtype, shared_memory_bytes())
    return solve(weights, chunks, plan, weights.noise[at % len(weights.noise)], fixed), after
