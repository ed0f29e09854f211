"""BigVGAN on a GPU: half precision, fused activations, and a CUDA graph for each number and length
of windows."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from moss_engine.api.errors import MissingPackageError
from moss_engine.codec.device import captured

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of windows that graphs are made for; others run in the next larger one."""


class FusedGenerator(nn.Module):
    """A BigVGAN generator, built and filled, for inference on a GPU: the same function in fewer
    passes over memory.

    Signals are channels-last, as convolutions on tensor cores want them; each activation is one
    kernel, which also adds up what comes before it: bias and residual. Raises MissingPackageError
    without Triton.
    """

    def __init__(self, generator: Any) -> None:
        super().__init__()
        if importlib.util.find_spec("triton") is None:
            raise MissingPackageError(
                "The vocoder on a GPU needs the package triton, which CUDA builds of PyTorch "
                "bring along; install it with `pip install triton`, or use --device cpu."
            )
        self._pre = _Convolution(generator.conv_pre)
        self._ups = nn.ModuleList(_Convolution(up) for ups in generator.ups for up in ups)
        self._blocks = nn.ModuleList(_Block(block) for block in generator.resblocks)
        self._num_kernels: int = generator.num_kernels
        self._activation = _Activation(generator.activation_post)
        self._post = _Convolution(generator.conv_post)
        self._tanh: bool = generator.use_tanh_at_final
        assert all(len(ups) == 1 for ups in generator.ups), (
            "BigVGAN upsamples by one convolution a stage"
        )

    def forward(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> [batch, 1, frames * hop_size] in [-1, 1]"""
        x = self._pre.with_bias(mel[:, :, None].contiguous(memory_format=torch.channels_last))
        for stage, up in enumerate(self._ups):
            assert isinstance(up, _Convolution)
            x = up.with_bias(x)
            mixed = torch.empty_like(x, memory_format=torch.channels_last)
            for index in range(self._num_kernels):
                block = self._blocks[stage * self._num_kernels + index]
                assert isinstance(block, _Block)
                block.add_to(mixed, x, 1 / self._num_kernels, first=index == 0)
            x = mixed
        wave = self._post.with_bias(self._activation(x))[:, :, 0]
        return wave.tanh() if self._tanh else wave.clamp(-1, 1)


class _Convolution(nn.Module):
    """A one-dimensional convolution as a two-dimensional one of height 1; `bias` is float32 and
    added by others."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self._transposed = isinstance(convolution, nn.ConvTranspose1d)
        self._stride, self._padding = (1, convolution.stride[0]), (0, convolution.padding[0])
        self._dilation = (1, convolution.dilation[0])
        assert convolution.groups == 1 and not any(getattr(convolution, "output_padding", (0,)))
        self.weight = nn.Parameter(convolution.weight.detach()[:, :, None], requires_grad=False)
        bias = convolution.bias
        self._bias = None if bias is None else bias.detach().float()

    @property
    def bias(self) -> Tensor | None:
        if self._bias is not None and self._bias.device != self.weight.device:
            self._bias = self._bias.to(self.weight.device)
        return self._bias

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, 1, samples] -> the same form, without the bias"""
        if not self.weight.is_contiguous(memory_format=torch.channels_last):
            self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)
        run = conv_transpose2d if self._transposed else conv2d
        y = run(x, self.weight, stride=self._stride, padding=self._padding, dilation=self._dilation)
        return y.contiguous(memory_format=torch.channels_last)

    def with_bias(self, x: Tensor) -> Tensor:
        y = self(x)
        return y if self.bias is None else y + self.bias[:, None, None].to(y.dtype)


class _Activation(nn.Module):
    """The package's `Activation1d` with trained weights; its constants stay float32 whatever the
    network is cast to."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        snake, up, down = activation.act, activation.upsample, activation.downsample.lowpass
        frequency = snake.alpha.detach().float()
        magnitude = getattr(snake, "beta", snake.alpha).detach().float()
        if snake.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        assert up.stride == down.stride == 2 and (up.pad_left, down.pad_left) == (15, 5), (
            "BigVGAN resamples by 2"
        )
        self._constants = (
            (up.ratio * up.filter).float().flatten().contiguous(),
            down.filter.float().flatten(),
            (frequency / math.pi).contiguous(),
            (1.0 / (magnitude + snake.no_div_by_zero)).contiguous(),
        )

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        total: Tensor | None = None,
    ) -> Tensor:
        """Of x + bias + add [batch, channels, 1, samples], which is also written to `total`."""
        from moss_engine.kernels.codec.snake import SnakeConstants, activate

        if self._constants[0].device != x.device:
            self._constants = tuple(constant.to(x.device) for constant in self._constants)
        return activate(x, SnakeConstants(*self._constants), bias, add, total)


class _Block(nn.Module):
    """A residual block of either form: layers of one or two activations and convolutions, each
    adding to its input."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        pairs = (
            zip(block.convs1, block.convs2, strict=True)
            if hasattr(block, "convs1")
            else zip(block.convs)
        )
        activations = iter(block.activations)
        self._layers = nn.ModuleList(
            nn.ModuleList(
                nn.ModuleList((_Activation(next(activations)), _Convolution(convolution)))
                for convolution in pair
            )
            for pair in pairs
        )

    def add_to(self, mixed: Tensor, x: Tensor, scale: float, *, first: bool) -> None:
        """mixed = scale * block(x) for the first block of a stage, and that much more of it for the
        others."""
        from moss_engine.kernels.codec.snake import mix

        pending: Tensor | None = None  # the last convolution's result, not yet added to x
        bias: Tensor | None = None  # of that convolution
        for layer in cast("list[list[tuple[_Activation, _Convolution]]]", self._layers):
            inner: Tensor | None = None
            for activation, convolution in layer:
                if inner is None and pending is None:
                    y = activation(x)
                elif inner is None:
                    total = torch.empty_like(x, memory_format=torch.channels_last)
                    y, x = activation(pending, bias, x, total), total
                else:
                    y = activation(inner, bias)
                inner, bias = convolution(y), convolution.bias
            pending = inner
        assert pending is not None and bias is not None, (
            "BigVGAN's blocks have layers, and their convolutions a bias"
        )
        mix(mixed, pending, bias, x, scale, adds_up=not first)


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    mel: Tensor
    wave: Tensor


class CudaVocoder:
    """Log-mel float32 [batch, num_mels, frames] -> samples float32 [batch, 1, frames * hop_size].

    `frames` must be one of `lengths`, the batch at most `max_together`. Everything is captured when
    it is made; calls come from one thread at a time, and run on its current CUDA stream.
    """

    def __init__(
        self,
        network: nn.Module,
        num_mels: int,
        lengths: Sequence[int],
        max_together: int,
        device: torch.device,
    ) -> None:
        # graphs use its memory without holding it
        self._network = network = network.to(device, torch.float16)
        counts = [*(count for count in COUNTS if count < max_together), max_together]
        memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self._counts = counts
        self._graphs: dict[tuple[int, int], _Graph] = {}
        # the largest first: the smaller ones find their memory in the pool
        quick = torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=4)
        with torch.cuda.device(device), quick, torch.inference_mode():
            for frames in sorted(lengths, reverse=True):
                for count in reversed(counts):
                    mel = torch.zeros(count, num_mels, frames, device=device).half()
                    graph, wave = captured(partial(network, mel), stream, memory)
                    self._graphs[count, frames] = _Graph(graph, mel, wave)

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        batch, _, frames = mel.shape
        graph = self._graphs[next(count for count in self._counts if count >= batch), frames]
        graph.mel[:batch].copy_(mel)
        graph.graph.replay()
        return graph.wave[:batch].to(torch.float32, copy=True)
