"""BigVGAN on a GPU: half precision, fused activations, and a CUDA graph for each number and length
of windows."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.api.errors import MissingPackageError
from moss_engine.codec.device import Affine, Convolution, Format, Graph
from moss_engine.codec.vocoder.bigvgan import snake_of

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of windows that graphs are made for; others run in the next larger one."""


class FusedGenerator:
    """A BigVGAN generator, built and filled, for inference on its GPU in `dtype`: the same function
    in fewer passes over memory (`Format.fused`). Raises MissingPackageError without Triton.
    """

    def __init__(self, generator: Any, dtype: torch.dtype = torch.float16) -> None:
        if importlib.util.find_spec("triton") is None:
            raise MissingPackageError(
                "The vocoder on a GPU needs the package triton, which CUDA builds of PyTorch "
                "bring along; install it with `pip install triton`, or use --device cpu."
            )
        assert all(len(ups) == 1 for ups in generator.ups), (
            "BigVGAN upsamples by one convolution a stage"
        )
        self._form = form = Format(dtype, fused=True)
        self._pre = _Convolution(generator.conv_pre, form)
        self._ups = [_Convolution(ups[0], form) for ups in generator.ups]
        self._blocks = [_Block(block, form) for block in generator.resblocks]
        self._num_kernels: int = generator.num_kernels
        self._activation = _Activation(generator.activation_post)
        self._post = _Convolution(generator.conv_post, form)
        self._tanh: bool = generator.use_tanh_at_final

    def __call__(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> float32 [batch, 1, frames * hop_size] in [-1, 1]"""
        x = self._pre.run(self._form.of(mel[:, :, None].to(self._form.dtype)))
        for stage, up in enumerate(self._ups):
            x = up.run(x)
            mixed = torch.empty_like(x, memory_format=torch.channels_last)
            for index in range(self._num_kernels):
                block = self._blocks[stage * self._num_kernels + index]
                block.add_to(mixed, x, 1 / self._num_kernels, first=index == 0)
            x = mixed
        wave = self._post.run(self._activation(x))[:, :, 0]
        return (wave.tanh() if self._tanh else wave.clamp(-1, 1)).float()


class _Convolution(Convolution):
    """One of the package, as it is set."""

    def __init__(self, module: Any, form: Format) -> None:
        assert module.groups == 1 and not any(getattr(module, "output_padding", (0,)))
        self._has_bias = module.bias is not None
        self._settings = module.padding, module.stride, module.dilation
        self._transposed = isinstance(module, nn.ConvTranspose1d)
        bias = module.bias.detach() if self._has_bias else torch.zeros(0)
        super().__init__(Affine(module.weight.detach(), bias), form)

    def run(self, x: Tensor, *, biased: bool = True) -> Tensor:
        """[batch, channels, 1, samples] -> the same form"""
        (padding,), (stride,), (dilation,) = self._settings
        if self._transposed:
            return self.transposed(x, padding, stride)
        return self(x, padding, dilation, stride, biased=biased and self._has_bias)


class _Activation:
    """The package's `Activation1d` with trained weights; its constants stay float32 whatever the
    network is cast to."""

    def __init__(self, activation: Any) -> None:
        up, down = activation.upsample, activation.downsample.lowpass
        frequency, magnitude = snake_of(activation)
        assert up.stride == down.stride == 2 and (up.pad_left, down.pad_left) == (15, 5), (
            "BigVGAN resamples by 2"
        )
        self._constants = (
            (up.ratio * up.filter).float().flatten().contiguous(),
            down.filter.float().flatten(),
            (frequency / math.pi).contiguous(),
            magnitude.contiguous(),
        )

    def __call__(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        total: Tensor | None = None,
    ) -> Tensor:
        """Of x + bias + add [batch, channels, 1, samples], which is also written to `total`."""
        from moss_engine.kernels.codec.snake import SnakeConstants, activate

        return activate(x, SnakeConstants(*self._constants), bias, add, total)


class _Block:
    """A residual block of either form: layers of one or two activations and convolutions, each
    adding to its input."""

    def __init__(self, block: Any, form: Format) -> None:
        pairs = (
            zip(block.convs1, block.convs2, strict=True)
            if hasattr(block, "convs1")
            else zip(block.convs)
        )
        activations = iter(block.activations)
        self._layers = [
            [(_Activation(next(activations)), _Convolution(module, form)) for module in pair]
            for pair in pairs
        ]

    def add_to(self, mixed: Tensor, x: Tensor, scale: float, *, first: bool) -> None:
        """mixed = scale * block(x) for the first block of a stage, and that much more of it for the
        others."""
        from moss_engine.kernels.codec.snake import mix

        pending: Tensor | None = None  # the last convolution's result, not yet added to x
        bias: Tensor | None = None  # of that convolution
        for layer in self._layers:
            inner: Tensor | None = None
            for activation, convolution in layer:
                if inner is None and pending is None:
                    y = activation(x)
                elif inner is None:
                    total = torch.empty_like(x, memory_format=torch.channels_last)
                    y, x = activation(pending, bias, x, total), total
                else:
                    y = activation(inner, bias)
                inner, bias = convolution.run(y, biased=False), convolution.bias
            pending = inner
        assert pending is not None and bias is not None, (
            "BigVGAN's blocks have layers, and their convolutions a bias"
        )
        mix(mixed, pending, bias, x, scale, adds_up=not first)


class CudaVocoder:
    """Log-mel float32 [batch, num_mels, frames] -> samples float32 [batch, 1, frames * hop_size].

    `frames` must be one of `lengths`, the batch at most `max_together`. Everything is captured when
    it is made; calls come from one thread at a time, and run on its current CUDA stream.
    """

    def __init__(
        self,
        network: FusedGenerator,
        num_mels: int,
        lengths: Sequence[int],
        max_together: int,
        device: torch.device,
    ) -> None:
        self._network = network  # graphs use its memory without holding it
        counts = [*(count for count in COUNTS if count < max_together), max_together]
        memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self._counts = counts
        self._graphs: dict[tuple[int, int], Graph] = {}
        # the largest first: the smaller ones find their memory in the pool
        quick = torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=4)
        with torch.cuda.device(device), quick, torch.inference_mode():
            for frames in sorted(lengths, reverse=True):
                for count in reversed(counts):
                    mel = torch.zeros(count, num_mels, frames, device=device).half()
                    graph = Graph(lambda mel: (network(mel),), (mel,), stream, memory)
                    self._graphs[count, frames] = graph

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        batch, _, frames = mel.shape
        (wave,) = self._graphs[next(count for count in self._counts if count >= batch), frames](mel)
        return wave
