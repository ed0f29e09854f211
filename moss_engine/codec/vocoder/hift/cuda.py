"""HiFT on a GPU: half precision and fused activations, and CUDA graphs for each number of windows,
for the first two windows of a reply and for those within it, and for a few last ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, leaky_relu, linear, pad

from moss_engine.codec.device import GRAPH_BATCHES, Affine, captured, open_lane
from moss_engine.codec.vocoder.hift.generator import (
    KEPT_FRAMES,
    MAX_MAGNITUDE,
    PITCH_REACH,
    window_wave,
)
from moss_engine.codec.vocoder.hift.weights import HiftWeights, ResidualBlock

_LAST_COUNTS = (1, 4)
"""Windows that end replies, whose lengths differ: few of one length meet."""
_MULTIPLE = 8
"""Tensor cores take so many channels at a time; the spectrum's are filled up with zeros."""


@dataclass(frozen=True)
class _Convolution:
    """weight [outputs, inputs, 1, taps], channels-last; bias float32."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(
        affine: Affine, dtype: torch.dtype, *, inputs: int = 0, outputs: int = 0
    ) -> _Convolution:
        """With `inputs` and `outputs` more channels that are zero."""
        weight = pad(affine.weight, (0, 0, 0, inputs, 0, outputs))[:, :, None].to(dtype)
        return _Convolution(
            weight.contiguous(memory_format=torch.channels_last),
            pad(affine.bias, (0, outputs)).float(),
        )

    def __call__(
        self, x: Tensor, padding: int, dilation: int = 1, stride: int = 1, *, biased: bool = False
    ) -> Tensor:
        """[batch, inputs, 1, samples] -> the same form, without the bias unless `biased`"""
        y = conv2d(
            x, self.weight, stride=(1, stride), padding=(0, padding), dilation=(1, dilation)
        ).contiguous(memory_format=torch.channels_last)
        return y + self.bias[:, None, None].to(y.dtype) if biased else y


@dataclass(frozen=True)
class _Block:
    """`generator._block` with its sums in the activations."""

    dilations: tuple[int, ...]
    first: tuple[_Convolution, ...]
    first_frequencies: tuple[Tensor, ...]
    second: tuple[_Convolution, ...]
    second_frequencies: tuple[Tensor, ...]

    @staticmethod
    def of(block: ResidualBlock, dtype: torch.dtype) -> _Block:
        return _Block(
            block.dilations,
            tuple(_Convolution.of(affine, dtype) for affine in block.first),
            tuple(snake.flatten().float() for snake in block.first_snakes),
            tuple(_Convolution.of(affine, dtype) for affine in block.second),
            tuple(snake.flatten().float() for snake in block.second_snakes),
        )

    def add_to(self, mixed: Tensor, x: Tensor, scale: float, *, adds_up: bool) -> None:
        """mixed (+)= scale * block(x)"""
        from moss_engine.kernels.codec.snake import hift_snake, mix

        pending, bias = x, None
        for i, dilation in enumerate(self.dilations):
            first, second = self.first[i], self.second[i]
            reach = (first.weight.shape[-1] - 1) // 2
            add = None if bias is None else x
            bent, x = hift_snake(pending, self.first_frequencies[i], bias, add)
            hidden = first(bent, reach * dilation, dilation)
            bent, _ = hift_snake(hidden, self.second_frequencies[i], first.bias)
            pending, bias = second(bent, reach), second.bias
        assert bias is not None, "a block has dilations"
        mix(mixed, pending, bias, x, scale, adds_up=adds_up)


@dataclass(frozen=True)
class _Level:
    up: _Convolution
    source_down: _Convolution
    source_block: _Block
    blocks: tuple[_Block, ...]


class FusedShape:
    """`generator.shaped` for one HiFT in `dtype`, in fewer passes over memory: signals are
    channels-last, as convolutions on tensor cores want them, and each activation is one kernel,
    which also adds up what comes before it. Spectra are made in float32."""

    def __init__(self, weights: HiftWeights, dtype: torch.dtype = torch.float16) -> None:
        self._dtype = dtype
        self._missing = -len(weights.forward) % _MULTIPLE
        self._forward = pad(weights.forward[:, 0], (0, 0, 0, self._missing))
        self._pre = _Convolution.of(weights.pre, dtype)
        self._levels = [
            _Level(
                _Convolution.of(level.up, dtype),
                _Convolution.of(level.source_down, dtype, inputs=self._missing),
                _Block.of(level.source_block, dtype),
                tuple(_Block.of(block, dtype) for block in level.blocks),
            )
            for level in weights.levels
        ]
        self._post = _Convolution.of(weights.post, torch.float32, outputs=self._missing)

    def __call__(self, weights: HiftWeights, mel: Tensor, source: Tensor) -> Tensor:
        """See `shaped`."""
        config, dtype = weights.config, self._dtype
        half = config.n_fft // 2
        windows = pad(source[:, None], (half, half), mode="reflect")[:, 0].unfold(
            1, config.n_fft, config.hop
        )
        spectrum = _channels_last(linear(windows, self._forward).transpose(1, 2).to(dtype))
        x = self._pre(_channels_last(mel.to(dtype)), 3, biased=True)
        for i, level in enumerate(self._levels):
            kernel, rate = config.upsample_kernels[i], config.upsample_rates[i]
            x = conv_transpose2d(
                leaky_relu(x, config.slope),
                level.up.weight,
                stride=(1, rate),
                padding=(0, (kernel - rate) // 2),
            )
            if i == len(self._levels) - 1:
                x = torch.cat([x[..., 1:2], x], -1)  # a reflection
            x = (x + level.up.bias[:, None, None].to(dtype)).contiguous(
                memory_format=torch.channels_last
            )
            stride = config.source_strides[i]
            seen = level.source_down(
                spectrum, 0 if stride == 1 else stride // 2, stride=stride, biased=True
            )
            level.source_block.add_to(x, seen, 1.0, adds_up=True)
            mixed = torch.empty_like(x)
            for number, block in enumerate(level.blocks):
                block.add_to(mixed, x, 1 / len(level.blocks), adds_up=number > 0)
            x = mixed
        x = self._post(leaky_relu(x.float()), 3, biased=True)[:, : len(weights.forward), 0]
        return _wave(weights, x).clamp(-config.limit, config.limit)


def _channels_last(x: Tensor) -> Tensor:
    """[batch, channels, samples] -> [batch, channels, 1, samples]"""
    return x[:, :, None].contiguous(memory_format=torch.channels_last)


def _wave(weights: HiftWeights, x: Tensor) -> Tensor:
    """Logs of magnitudes, and phases [batch, n_fft + 2, frames] -> [batch, (frames - 1) * hop]"""
    config = weights.config
    bins, half = config.n_fft // 2 + 1, config.n_fft // 2
    magnitude, phase = x[:, :bins].exp().clamp_max(MAX_MAGNITUDE), x[:, bins:].sin()
    parts = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1).transpose(1, 2)
    summed = _overlapped(linear(parts, weights.inverse[:, 0].t()), config.hop)
    square = weights.window.square().expand(1, x.shape[-1], -1)
    wave = summed / _overlapped(square, config.hop).clamp_min(1e-11)
    return wave[:, half : half + (x.shape[-1] - 1) * config.hop]


def _overlapped(frames: Tensor, hop: int) -> Tensor:
    """[batch, frames, size], each `hop` samples behind the last -> their sum [batch, samples]"""
    count = -(-frames.shape[2] // hop)
    parts = pad(frames, (0, count * hop - frames.shape[2])).unflatten(2, (count, hop)).unbind(2)
    return (
        torch.stack([pad(part, (0, 0, k, count - 1 - k)) for k, part in enumerate(parts)])
        .sum(0)
        .flatten(1)
    )


@dataclass(frozen=True)
class _Shape:
    """Of so many windows of so many frames, of which `known` have a settled pitch."""

    count: int
    frames: int
    known: int
    is_first: bool
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
    new frames, up to four at a time; others run kernel by kernel. Calls come from one thread at a
    time and run on its current CUDA stream."""

    def __init__(
        self, weights: HiftWeights, chunk_frames: int, last_frames: Iterable[int], max_together: int
    ) -> None:
        self._counts = [*(count for count in GRAPH_BATCHES if count < max_together), max_together]
        self._last_counts = [count for count in _LAST_COUNTS if count <= max_together]
        self._shape = FusedShape(weights)
        self._graphs: dict[_Shape, _Graph] = {}
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
                self._capture(weights, shape, pool, stream)
            for frames in last_frames:
                for count in self._last_counts:
                    shape = _Shape(count, KEPT_FRAMES + frames, known, False, True)
                    self._capture(weights, shape, pool, stream)

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
        counts = self._last_counts if last else self._counts
        room = next((room for room in counts if room >= count), counts[-1])
        graph = self._graphs.get(_Shape(room, frames, known, first, last))
        if graph is None:
            return window_wave(
                weights,
                mel,
                known_pitch,
                known_phase,
                noise,
                first=first,
                last=last,
                shape=self._shape,
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
        how: Any = {"first": shape.is_first, "last": shape.is_last, "shape": self._shape}
        run = partial(window_wave, weights, *inputs, **how)
        graph, outputs = captured(run, stream, pool)
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
