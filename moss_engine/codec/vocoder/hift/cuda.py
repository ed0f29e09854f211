"""HiFT on a GPU: half precision, and CUDA graphs for each number of windows, for the first two
windows of a reply and for those within it, and for a few last ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moss_engine.codec.device import GRAPH_BATCHES, Graph, open_lane
from moss_engine.codec.vocoder.hift.generator import KEPT_FRAMES, PITCH_REACH, window_wave
from moss_engine.codec.vocoder.hift.network import HiftNetwork
from moss_engine.codec.vocoder.hift.weights import HiftWeights

_LAST_COUNTS = (1, 4)
"""Windows that end replies, whose lengths differ: few of one length meet."""


@dataclass(frozen=True)
class _Shape:
    """Of so many windows of so many frames, of which `known` have a settled pitch."""

    count: int
    frames: int
    known: int
    is_first: bool
    is_last: bool


class CudaHift:
    """`window_wave` for one HiFT on a GPU. Windows of `chunk_frames` new frames are captured when
    it is made, up to `max_together` at a time, and those that end a reply with one of `last_frames`
    new frames, up to four at a time; others run kernel by kernel. Calls come from one thread at a
    time and run on its current CUDA stream."""

    def __init__(
        self, weights: HiftWeights, chunk_frames: int, last_frames: Iterable[int], max_together: int
    ) -> None:
        self._counts = [*(count for count in GRAPH_BATCHES if count < max_together), max_together]
        self._last_counts = [count for count in _LAST_COUNTS if count <= max_together]
        self._weights = weights
        self._network = HiftNetwork(weights, torch.float16, fused=True)
        self._graphs: dict[_Shape, Graph] = {}
        device = weights.window.device
        pool, stream = torch.cuda.graph_pool_handle(), open_lane(device)
        assert stream is not None, "graphs are of a GPU"
        known = KEPT_FRAMES - PITCH_REACH
        places = [  # frames before the window, those of them with a settled pitch, is it the first
            (KEPT_FRAMES, known, False),
            (chunk_frames, chunk_frames - PITCH_REACH, True),
            (0, 0, True),
        ]
        assert chunk_frames < KEPT_FRAMES, "a reply's second window begins with its first frame"
        shapes = [
            _Shape(count, past + chunk_frames, settled, is_first, False)
            for past, settled, is_first in places
            for count in reversed(self._counts)
        ]
        quick = torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=4)
        with torch.cuda.device(device), quick, torch.inference_mode():
            for shape in shapes:
                self._capture(shape, pool, stream)
            for frames in last_frames:
                for count in self._last_counts:
                    shape = _Shape(count, KEPT_FRAMES + frames, known, False, True)
                    self._capture(shape, pool, stream)

    @torch.inference_mode()
    def __call__(
        self,
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
        counts = self._last_counts if last else self._counts
        room = next((room for room in counts if room >= count), counts[-1])
        graph = self._graphs.get(_Shape(room, frames, known, first, last))
        if graph is None:
            return window_wave(
                self._weights,
                self._network,
                mel,
                known_pitch,
                known_phase,
                noise,
                first=first,
                last=last,
            )
        given = mel, known_pitch, known_phase, noise
        results = [
            graph(*(values[at : at + room] for values in given)) for at in range(0, count, room)
        ]
        wave, pitch, phase = (torch.cat(parts) for parts in zip(*results, strict=True))
        return wave, pitch, phase

    def _capture(self, shape: _Shape, pool: Any, stream: torch.cuda.Stream) -> None:
        inputs = _inputs(self._weights, shape.count, shape.frames, shape.known)
        first, last = shape.is_first, shape.is_last
        run = partial(window_wave, self._weights, self._network, first=first, last=last)
        self._graphs[shape] = Graph(run, inputs, stream, pool)


def _inputs(weights: HiftWeights, count: int, frames: int, known: int) -> tuple[Tensor, ...]:
    config, like = weights.config, weights.window
    harmonics = config.num_harmonics + 1
    return (
        like.new_zeros(count, config.num_mels, frames),
        like.new_zeros(count, known),
        like.new_zeros(count, known, harmonics, dtype=torch.float64),
        like.new_zeros(count, frames * config.samples_per_frame, harmonics),
    )
