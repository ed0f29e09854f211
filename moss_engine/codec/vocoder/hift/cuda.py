"""HiFT on a GPU: CUDA graphs for each number of windows, for the first window of a reply and for
those within it, and for the last one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moss_engine.codec.device import GRAPH_BATCHES, open_lane
from moss_engine.codec.vocoder.hift.generator import PITCH_REACH, window_wave
from moss_engine.codec.vocoder.hift.stream import KEPT_FRAMES
from moss_engine.codec.vocoder.hift.weights import HiftWeights


@dataclass(frozen=True)
class _Shape:
    """Of so many windows of so many frames; `known` of them have a settled pitch, none in the first
    of a reply."""

    count: int
    frames: int
    known: int
    is_last: bool


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs for these inputs, of which there may be fewer than there is room for"""
        count = len(given[0])
        for place, values in zip(self.inputs, given, strict=True):
            place[:count].copy_(values)
        self.graph.replay()
        return tuple(output[:count].clone() for output in self.outputs)


class CudaHift:
    """`window_wave` for one HiFT on a GPU. Windows of `chunk_frames` new frames are captured when
    it is made, up to `max_together` at a time, and those that end a reply with one of `last_frames`
    new frames, one at a time; others run kernel by kernel. Calls come from one thread at a time and
    run on its current CUDA stream."""

    def __init__(
        self, weights: HiftWeights, chunk_frames: int, last_frames: Iterable[int], max_together: int
    ) -> None:
        self._counts = [*(count for count in GRAPH_BATCHES if count < max_together), max_together]
        self._graphs: dict[_Shape, _Graph] = {}
        past, device = KEPT_FRAMES, weights.window.device
        known = past - PITCH_REACH
        pool, stream = torch.cuda.graph_pool_handle(), open_lane(device)
        assert stream is not None, "graphs are of a GPU"
        shapes = [
            _Shape(count, past + chunk_frames, known, False) for count in reversed(self._counts)
        ]
        shapes += [_Shape(count, chunk_frames, 0, False) for count in reversed(self._counts)]
        with torch.cuda.device(device), torch.inference_mode():
            for shape in shapes:
                self._capture(weights, shape, pool, stream)
            for frames in last_frames:
                self._capture(weights, _Shape(1, past + frames, known, True), pool, stream)

    @torch.inference_mode()
    def __call__(
        self,
        weights: HiftWeights,
        mel: Tensor,
        known_pitch: Tensor,
        known_phase: Tensor,
        noise: Tensor,
        *,
        first: bool,
        last: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `window_wave`."""
        count, frames, known = len(mel), mel.shape[2], known_pitch.shape[1]
        room = 1 if last else next((room for room in self._counts if room >= count), 0)
        graph = self._graphs.get(_Shape(room, frames, known, last))
        if graph is None or first != (known == 0):
            return window_wave(
                weights, mel, known_pitch, known_phase, noise, first=first, last=last
            )
        given = mel, known_pitch, known_phase, noise
        results = [
            graph([values[at : at + room] for values in given]) for at in range(0, count, room)
        ]
        wave, pitch, phase = (torch.cat(parts) for parts in zip(*results, strict=True))
        return wave, pitch, phase

    def _capture(
        self, weights: HiftWeights, shape: _Shape, pool: Any, stream: torch.cuda.Stream
    ) -> None:
        inputs = _inputs(weights, shape.count, shape.frames, shape.known)
        first = shape.known == 0
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            window_wave(
                weights, *inputs, first=first, last=shape.is_last
            )  # chooses algorithms and compiles kernels
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            outputs = window_wave(weights, *inputs, first=first, last=shape.is_last)
        self._graphs[shape] = _Graph(graph, inputs, outputs)


def _inputs(weights: HiftWeights, count: int, frames: int, known: int) -> tuple[Tensor, ...]:
    config, like = weights.config, weights.window
    harmonics = config.num_harmonics + 1
    return (
        like.new_zeros(count, config.num_mels, frames),
        like.new_zeros(count, known),
        like.new_zeros(count, known, harmonics, dtype=torch.float64),
        like.new_zeros(count, frames * config.samples_per_frame, harmonics),
    )
