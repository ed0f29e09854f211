"""The flow on a GPU: conformer and all Euler steps in one CUDA graph per batch size.

The same mathematics as `encoder` and `estimator` beside it, in kernels that leave out the memory
traffic between small operations. A graph finds the streams' memories by offsets that are copied
into its inputs before it runs (`_meta`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.codec.lane import GRAPH_BATCHES, open_lane
from moss_engine.codec.moss.flow.cuda_encoder import encode
from moss_engine.codec.moss.flow.cuda_estimator import solve
from moss_engine.codec.moss.flow.cuda_plan import plan_of
from moss_engine.codec.moss.flow.decoder import OUTSIDE, Chunk
from moss_engine.codec.moss.flow.encoder import LOOK_BACK
from moss_engine.codec.moss.flow.memory import BRANCHES, FlowMemory
from moss_engine.codec.moss.flow.weights import FlowWeights


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

    @staticmethod
    def empty(weights: FlowWeights, streams: int, chunk_codes: int) -> _Inputs:
        from moss_engine.kernels.codec.flow_meta import FIELDS

        config, like = weights.config, weights.noise
        frames = chunk_codes * config.ratio

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
        )


class CudaFlow:
    """`run_chunks` for one flow on a GPU, at most `max_together` streams at a time. Calls come from
    one thread at a time and run on its current CUDA stream; everything is captured when it is made
    (or nothing, without `graphs`)."""

    def __init__(
        self, weights: FlowWeights, chunk_codes: int, max_together: int, *, graphs: bool = True
    ) -> None:
        self._counts = [*(count for count in GRAPH_BATCHES if count < max_together), max_together]
        self._idle = FlowMemory(
            weights, chunk_codes, 1
        )  # stands in for the streams that a graph has too many
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
        given = (
            self._graphs[count][1]
            if self._graphs
            else _Inputs.empty(weights, count, self._chunk_codes)
        )
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
        given.windows[:count] = torch.tensor(
            [(*chunk.window, *[OUTSIDE] * (size - len(chunk.window))) for chunk in chunks]
        )
        given.first[:count] = torch.tensor([memory.position for memory in memories])
        torch.stack([memory.last_codes for memory in memories], out=given.before[:count])
        torch.stack([chunk.voice.speaker for chunk in chunks], out=given.speaker[:count])
        given.condition.zero_()
        for rows, chunk in zip(given.condition, chunks, strict=False):
            if chunk.condition is not None:
                rows[:frames] = chunk.condition

    def _capture(self, weights: FlowWeights) -> None:
        device = weights.noise.device
        pool, stream = torch.cuda.graph_pool_handle(), open_lane(device)
        assert stream is not None, "graphs are of a GPU"
        with torch.cuda.device(device), torch.inference_mode():
            for count in reversed(self._counts):
                given = _Inputs.empty(weights, count, self._chunk_codes)
                given.meta.copy_(
                    _meta(
                        [self._idle] * count, self._chunk_codes * weights.config.ratio, given.anchor
                    )
                )
                stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(stream):
                    _run(
                        weights, given
                    )  # compiles kernels and chooses algorithms, which capture must not do
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    results = _run(weights, given)
                self._graphs[count] = (graph, given, results)


def _meta(memories: Sequence[FlowMemory], valid: int, anchor: Tensor) -> Tensor:
    """int64 [streams, FIELDS], as `flow_meta.Field` says, for chunks of `valid` frames"""
    from moss_engine.kernels.codec.flow_meta import FIELDS, Field

    start, size = anchor.data_ptr(), anchor.element_size()

    def place(tensor: Tensor) -> int:
        elements, rest = divmod(tensor.data_ptr() - start, size)
        assert not rest and not elements % 16, "tensors begin at multiples of 16 elements"
        return elements

    rows = []
    for memory in memories:
        row = [0] * FIELDS
        row[Field.notes], row[Field.capacity], row[Field.slot] = (
            place(memory.notes),
            memory.capacity,
            memory.slot,
        )
        row[Field.seen] = (
            memory.capacity if memory.frames >= memory.capacity else memory.slot + valid
        )
        row[Field.valid], row[Field.tails], row[Field.parity] = (
            valid,
            place(memory.tails),
            memory.parity,
        )
        row[Field.low_rows], row[Field.low_waves] = place(memory.low.rows), place(memory.low.waves)
        row[Field.high_rows], row[Field.high_waves] = (
            place(memory.high.rows),
            place(memory.high.waves),
        )
        past = memory.prompt
        if past is not None and past.frames:
            row[Field.prompt_notes], row[Field.prompt_frames] = place(past.notes), past.frames
            row[Field.low_past_rows], row[Field.low_past_waves] = (
                place(past.low.rows),
                place(past.low.waves),
            )
            row[Field.high_past_rows], row[Field.high_past_waves] = (
                place(past.high.rows),
                place(past.high.waves),
            )
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def _run(weights: FlowWeights, given: _Inputs) -> tuple[Tensor, Tensor]:
    """-> mel [streams, frames, mels], and [streams, 2, width] for the next chunk's upsampling"""
    from moss_engine.kernels.codec.flow_meta import Chunks
    from moss_engine.kernels.launch import shared_memory_bytes

    mu, after = encode(weights, given.anchor, given.meta, given.first, given.windows, given.before)
    frames = mu.shape[1]
    at = given.first[:, None] * weights.config.ratio + torch.arange(frames, device=mu.device)
    fixed = torch.cat([mu, given.speaker[:, None].expand_as(mu), given.condition], -1)
    chunks = Chunks(given.anchor, given.meta, frames)
    plan = plan_of(len(given.meta) * BRANCHES * frames, weights.dtype, shared_memory_bytes())
    return solve(weights, chunks, plan, weights.noise[at % len(weights.noise)], fixed), after
