"""The flow's chunks on a GPU: conformer and the estimator's ten steps in one CUDA graph for each number of streams.

The same mathematics as `flow_encoder` and `flow_estimator`, in kernels that leave out the memory traffic between small
operations. A graph finds the streams' memories by places that are written into it before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.cuda_encoder import encode
from moss_engine.codec.flow import OUTSIDE, Chunk
from moss_engine.codec.flow_encoder import LOOK_BACK, linear, norm
from moss_engine.codec.flow_memory import BRANCHES, FlowMemory, num_convolutions
from moss_engine.codec.flow_weights import EPS, NUM_STEPS, FlowWeights, Stage

if TYPE_CHECKING:
    from moss_engine.runtime.kernels.flow_attention import Attention

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of streams that graphs are made for; others run in the next larger one."""


@dataclass(frozen=True)
class _Inputs:
    """What a run reads: `first` int64 [streams] are the chunks' first codes, `before` as in `cuda_encoder.encode`."""

    anchor: Tensor
    meta: Tensor
    first: Tensor
    windows: Tensor
    before: Tensor
    speaker: Tensor
    condition: Tensor
    attention: Attention

    @staticmethod
    def empty(weights: FlowWeights, streams: int, chunk_codes: int) -> _Inputs:
        from moss_engine.runtime.kernels.flow_attention import Attention
        from moss_engine.runtime.kernels.flow_meta import FIELDS

        config, like = weights.config, weights.noise
        frames = chunk_codes * config.ratio

        def ids(*shape: int) -> Tensor:
            return torch.zeros(streams, *shape, dtype=torch.int64, device=like.device)

        anchor = torch.zeros(16, dtype=weights.dtype, device=like.device)
        return _Inputs(anchor, ids(FIELDS), ids(), ids(LOOK_BACK + chunk_codes + config.look_ahead),
                       like.new_zeros(streams, 2, config.width), like.new_zeros(streams, config.num_mels),
                       like.new_zeros(streams, frames, config.num_mels),
                       Attention(streams * BRANCHES, frames * config.estimator_heads, config.channels, like.device))


class CudaFlow:
    """`run_chunks` for one flow on a GPU, at most `max_together` streams at a time. Calls come from one thread at a
    time and run on its current CUDA stream; everything is captured when it is made (or nothing, without `graphs`)."""

    def __init__(self, weights: FlowWeights, chunk_codes: int, max_together: int, *, graphs: bool = True) -> None:
        self._counts = [*(count for count in COUNTS if count < max_together), max_together]
        self._idle = FlowMemory(weights, chunk_codes, 1)  # stands in for the streams that a graph has too many
        self._chunk_codes = chunk_codes
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, _Inputs, tuple[Tensor, Tensor]]] = {}
        if graphs:
            self._capture(weights)

    @torch.inference_mode()
    def __call__(self, weights: FlowWeights, chunks: Sequence[Chunk]) -> Tensor:
        """See `run_chunks`; the chunks have one length, at most `chunk_codes`."""
        count = next(count for count in self._counts if count >= len(chunks))
        codes = len(chunks[0].window) - LOOK_BACK - weights.config.look_ahead
        frames = codes * weights.config.ratio
        given = self._graphs[count][1] if self._graphs else _Inputs.empty(weights, count, self._chunk_codes)
        self._fill(given, chunks, frames)
        if self._graphs:
            graph, _, (mel, after) = self._graphs[count]
            graph.replay()
            mel, after = mel[: len(chunks), :frames].clone(), after[: len(chunks)].clone()
        else:
            mel, after = _run(weights, given)
        for chunk, last_codes in zip(chunks, after, strict=False):
            chunk.memory.next_codes = last_codes
            chunk.memory.advance(codes)
        return mel[: len(chunks), :frames]

    def _fill(self, given: _Inputs, chunks: Sequence[Chunk], frames: int) -> None:
        count = len(chunks)
        memories = [chunk.memory for chunk in chunks]
        idle = [self._idle] * (len(given.meta) - count)
        given.meta.copy_(_meta([*memories, *idle], frames, given.anchor))
        size = given.windows.shape[1]
        given.windows[:count] = torch.tensor([(*chunk.window, *[OUTSIDE] * (size - len(chunk.window)))
                                              for chunk in chunks])
        given.first[:count] = torch.tensor([memory.position for memory in memories])
        torch.stack([memory.last_codes for memory in memories], out=given.before[:count])
        torch.stack([chunk.voice.speaker for chunk in chunks], out=given.speaker[:count])
        given.condition.zero_()
        for rows, chunk in zip(given.condition, chunks, strict=False):
            if chunk.condition is not None:
                rows[:frames] = chunk.condition

    def _capture(self, weights: FlowWeights) -> None:
        device = weights.noise.device
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.inference_mode():
            for count in reversed(self._counts):
                given = _Inputs.empty(weights, count, self._chunk_codes)
                given.meta.copy_(_meta([self._idle] * count, self._chunk_codes * weights.config.ratio,
                                       given.anchor))
                stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(stream):
                    _run(weights, given)  # compiles kernels and chooses algorithms, which capture must not do
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    results = _run(weights, given)
                self._graphs[count] = (graph, given, results)


def _meta(memories: Sequence[FlowMemory], valid: int, anchor: Tensor) -> Tensor:
    """int64 [streams, FIELDS], as `flow_meta.Field` says, for chunks of `valid` frames"""
    from moss_engine.runtime.kernels.flow_meta import FIELDS, Field

    start, size = anchor.data_ptr(), anchor.element_size()

    def place(tensor: Tensor) -> int:
        elements, rest = divmod(tensor.data_ptr() - start, size)
        assert not rest and not elements % 16, "tensors begin at multiples of 16 elements"
        return elements

    rows = []
    for memory in memories:
        row = [0] * FIELDS
        row[Field.notes], row[Field.capacity], row[Field.slot] = place(memory.notes), memory.capacity, memory.slot
        row[Field.seen] = memory.capacity if memory.frames >= memory.capacity else memory.slot + valid
        row[Field.valid], row[Field.tails], row[Field.parity] = valid, place(memory.tails), memory.parity
        row[Field.low_rows], row[Field.low_waves] = place(memory.low.rows), place(memory.low.waves)
        row[Field.high_rows], row[Field.high_waves] = place(memory.high.rows), place(memory.high.waves)
        past = memory.prompt
        if past is not None and past.frames:
            row[Field.prompt_notes], row[Field.prompt_frames] = place(past.notes), past.frames
            row[Field.low_past_rows], row[Field.low_past_waves] = place(past.low.rows), place(past.low.waves)
            row[Field.high_past_rows], row[Field.high_past_waves] = place(past.high.rows), place(past.high.waves)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def _run(weights: FlowWeights, given: _Inputs) -> tuple[Tensor, Tensor]:
    """-> mel [streams, frames, mels] and the last codes before the upsampling [streams, 2, width]"""
    around, after = encode(weights, given.anchor, given.meta, given.first, given.windows, given.before)
    frames = around.shape[1]
    at = given.first[:, None] * weights.config.ratio + torch.arange(frames, device=around.device)
    fixed = torch.cat([around, given.speaker[:, None].expand_as(around), given.condition], -1)
    return _solve(weights, given, weights.noise[at % len(weights.noise)], fixed), after


def _solve(weights: FlowWeights, given: _Inputs, noise: Tensor, fixed: Tensor) -> Tensor:
    """As `flow_estimator.solve`."""
    guidance = weights.config.guidance
    streams, frames, mels = noise.shape
    fixed = torch.stack([fixed, torch.zeros_like(fixed)], 1)
    x = noise
    for step in range(NUM_STEPS):
        inputs = torch.cat([x[:, None].expand(-1, BRANCHES, -1, -1), fixed], -1).flatten(0, 2)
        moves = _velocity(weights, given, inputs, step, frames)
        moves = moves.view(streams, BRANCHES, frames, mels)
        # x + stride * ((1 + g) * with - g * without)
        x = torch.lerp(moves[:, 1], moves[:, 0], 1 + guidance).mul_(weights.strides[step]).add_(x)
    return x


def _velocity(weights: FlowWeights, given: _Inputs, inputs: Tensor, step: int, frames: int) -> Tensor:
    """inputs [rows, input channels] -> float32 [rows, mels]"""
    from moss_engine.runtime.kernels.flow import window

    estimator, kind, config = weights.estimator, weights.dtype, weights.config
    convolutions = num_convolutions(config)
    tail_size = max(config.input_channels, 2 * config.channels)
    copy, place = NUM_STEPS * convolutions, step * convolutions
    anchor, meta = given.anchor, given.meta
    layer = step * config.num_stages * config.transformers
    x, delta, skipped = inputs, None, inputs
    for stage in estimator.stages:
        if stage is estimator.stages[-1]:
            x, delta = torch.cat([x if delta is None else x + delta, skipped], -1), None
        windows = window(x, delta, anchor, meta, place, copy, tail_size, frames, kind)
        x, delta = _stage(stage, given, windows, step, layer, place + 1, copy, tail_size, frames)
        place, layer = place + 2, layer + config.transformers
        if stage.after is not None:
            skipped = x + delta
            x = linear(window(skipped, None, anchor, meta, place, copy, tail_size, frames, kind), stage.after)
            delta, place = None, place + 1
    y = linear(window(x, delta, anchor, meta, place, copy, tail_size, frames, kind), estimator.final)
    y = F.mish(norm(y, estimator.final_norm, EPS))
    return linear(y.to(kind), estimator.project).float()


def _stage(stage: Stage, given: _Inputs, windows: Tensor, step: int, layer: int, place: int, copy: int, tail_size: int,
           frames: int) -> tuple[Tensor, Tensor]:
    """-> x float32 [rows, channels], and what is to be added to it"""
    from moss_engine.runtime.kernels.flow import mish_note, mish_window, norm_feed, norm_query

    channels, anchor, meta = stage.second.weight.shape[0], given.anchor, given.meta
    both = linear(windows, stage.first)
    hidden = mish_window(both[:, :channels], stage.first_norm.weight, stage.first_norm.bias, stage.time[step], EPS,
                         anchor, meta, place, copy, tail_size, frames)
    delta = None
    for i, block in enumerate(stage.transformers):
        gain, shift = block.norm_attention.weight, block.norm_attention.bias
        if delta is None:
            x, noted = mish_note(linear(hidden, stage.second), stage.second_norm.weight, stage.second_norm.bias,
                                 both[:, channels:], gain, shift, EPS, anchor, meta, layer, frames)
            query = F.linear(noted, block.query)
        else:
            x, query = norm_query(x, delta, gain, shift, EPS, block.query, anchor, meta, layer + i, frames)
        mixed = given.attention(query.view(meta.shape[0] * BRANCHES, -1, channels), anchor, meta, layer + i, frames)
        added = linear(mixed.view(len(x), -1), block.out)
        x, hidden = norm_feed(x, added, block.norm_ffn.weight, block.norm_ffn.bias, EPS, block.first.weight,
                              block.first.bias)
        delta = linear(hidden, block.second)
    assert delta is not None, "a stage has transformers"
    return x, delta
