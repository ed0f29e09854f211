"""HiFT on a GPU: one CUDA graph for each number of windows, for the first window of a reply and for those within it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.codec.cuda_flow import COUNTS
from moss_engine.codec.hift import PITCH_REACH, window_wave
from moss_engine.codec.hift_stream import LEFT_FRAMES, OVERLAP_FRAMES
from moss_engine.codec.hift_weights import HiftWeights


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CudaHift:
    """`window_wave` for one HiFT on a GPU. Windows of `chunk_frames` new frames are captured when it is made, up to
    `max_together` at a time; others, the last of each reply, run kernel by kernel. Calls come from one thread at a time
    and run on its current CUDA stream."""

    def __init__(self, weights: HiftWeights, chunk_frames: int, max_together: int) -> None:
        self._counts = [*(count for count in COUNTS if count < max_together), max_together]
        self._graphs: dict[tuple[int, int, int], _Graph] = {}
        past = OVERLAP_FRAMES + LEFT_FRAMES
        device = weights.window.device
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.backends.cudnn.flags(benchmark=True), torch.inference_mode():
            for frames, known in ((past + chunk_frames, past - PITCH_REACH), (chunk_frames, 0)):
                for count in reversed(self._counts):
                    self._capture(weights, (count, frames, known), pool, stream)

    @torch.inference_mode()
    def __call__(self, weights: HiftWeights, mel: Tensor, known_pitch: Tensor, known_phase: Tensor, noise: Tensor, *,
                 first: bool, last: bool) -> tuple[Tensor, Tensor, Tensor]:
        """See `window_wave`."""
        count, frames, known = len(mel), mel.shape[2], known_pitch.shape[1]
        room = next((room for room in self._counts if room >= count), 0)
        graph = self._graphs.get((room, frames, known))
        if graph is None or last or first != (known == 0):
            return window_wave(weights, mel, known_pitch, known_phase, noise, first=first, last=last)
        for place, values in zip(graph.inputs, (mel, known_pitch, known_phase, noise), strict=True):
            place[:count].copy_(values)
        graph.graph.replay()
        wave, pitch, phase = (output[:count].clone() for output in graph.outputs)
        return wave, pitch, phase

    def _capture(self, weights: HiftWeights, shape: tuple[int, int, int], pool: tuple[int, int],
                 stream: torch.cuda.Stream) -> None:
        inputs = _inputs(weights, *shape)
        first = shape[2] == 0
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            window_wave(weights, *inputs, first=first, last=False)  # chooses algorithms and compiles kernels
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            outputs = window_wave(weights, *inputs, first=first, last=False)
        self._graphs[shape] = _Graph(graph, inputs, outputs)


def _inputs(weights: HiftWeights, count: int, frames: int, known: int) -> tuple[Tensor, ...]:
    config, like = weights.config, weights.window
    harmonics = config.num_harmonics + 1
    return (like.new_zeros(count, config.num_mels, frames), like.new_zeros(count, known),
            like.new_zeros(count, known, harmonics, dtype=torch.float64),
            like.new_zeros(count, frames * config.samples_per_frame, harmonics))
