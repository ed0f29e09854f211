"""HiFT's sizes (`flow/config.yaml`), the tensors of its checkpoint (`hift.pt`), and these arranged
for inference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.device import Affine
from moss_engine.codec.files import Take, find, read_sizes, read_yaml, taken_shapes

_DILATIONS = ((1, 3, 5), (1, 3, 5), (1, 3, 5))


@dataclass(frozen=True)
class HiftConfig:
    """mel -> wave with a source of harmonics. The defaults are the published codec's."""

    num_mels: int = 80
    channels: int = 512
    num_harmonics: int = 8
    sample_rate_hz: int = 24_000
    sine_amplitude: float = 0.1
    noise_amplitude: float = 0.003
    voiced_hz: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernels: tuple[int, ...] = (16, 11, 7)
    n_fft: int = 16
    hop: int = 4
    kernels: tuple[int, ...] = (3, 7, 11)
    dilations: tuple[tuple[int, ...], ...] = _DILATIONS
    source_kernels: tuple[int, ...] = (7, 7, 11)
    source_dilations: tuple[tuple[int, ...], ...] = _DILATIONS
    slope: float = 0.1
    limit: float = 0.99
    pitch_channels: int = 512

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_rates) * self.hop

    @property
    def source_strides(self) -> tuple[int, ...]:
        """By how much each level sees the source's spectrum coarser than it is."""
        rates = self.upsample_rates
        return tuple(math.prod(rates[i + 1 :]) for i in range(len(rates)))


_FIELDS = {
    "num_mels": "in_channels", "channels": "base_channels", "num_harmonics": "nb_harmonics",
    "sample_rate_hz": "sampling_rate", "sine_amplitude": "nsf_alpha",
    "noise_amplitude": "nsf_sigma", "voiced_hz": "nsf_voiced_threshold",
    "upsample_rates": "upsample_rates", "upsample_kernels": "upsample_kernel_sizes",
    "kernels": "resblock_kernel_sizes", "dilations": "resblock_dilation_sizes",
    "source_kernels": "source_resblock_kernel_sizes",
    "source_dilations": "source_resblock_dilation_sizes", "slope": "lrelu_slope",
    "limit": "audio_limit",
}  # fmt: skip
_NESTED = {
    "n_fft": ("istft_params", "n_fft"), "hop": ("istft_params", "hop_len"),
    "pitch_channels": ("f0_predictor", "cond_channels"),
}  # fmt: skip


def read_hift_config(path: Path) -> HiftConfig:
    """HiFT's part of a `config.yaml`; a field that is absent there has the published value. Raises
    CheckpointError."""
    tree = find(read_yaml(path), ("hift",))
    places = {name: (key,) for name, key in _FIELDS.items()} | _NESTED
    config = read_sizes(tree, places, HiftConfig(), path)
    levels = {
        len(config.upsample_rates),
        len(config.upsample_kernels),
        len(config.source_kernels),
        len(config.source_dilations),
    }
    wrong = []
    if len(levels) > 1 or len(config.kernels) != len(config.dilations):
        wrong.append("lists of different lengths")
    if config.hop > config.n_fft:
        wrong.append(f"a hop of {config.hop}, more than its n_fft of {config.n_fft}")
    if config.channels % 2 ** len(config.upsample_rates):
        wrong.append(f"{config.channels} channels, too few to be halved at every level")
    if wrong:
        raise CheckpointError(f"{path} gives HiFT {' and '.join(wrong)}; fetch the codec again.")
    return config


def hift_shapes(config: HiftConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of `hift.pt` once weight norm is folded: name -> shape."""
    return taken_shapes(lambda take, device: _pack(take, config, device))


_SPELLINGS = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
"""The names of length and direction in newer and older files."""


@dataclass(frozen=True)
class ResidualBlock:
    """Per dilation: Snake, dilated convolution, Snake, convolution. Snakes are [channels]."""

    dilations: tuple[int, ...]
    first: tuple[Affine, ...]
    first_snakes: tuple[Tensor, ...]
    second: tuple[Affine, ...]
    second_snakes: tuple[Tensor, ...]


@dataclass(frozen=True)
class Level:
    up: Affine
    source_down: Affine
    source_block: ResidualBlock
    blocks: tuple[ResidualBlock, ...]


@dataclass(frozen=True)
class HiftWeights:
    """`forward` [n_fft + 2, n_fft] and `inverse` [n_fft, n_fft + 2] are windowed Fourier bases:
    real parts, then imaginary parts."""

    config: HiftConfig
    pre: Affine
    levels: tuple[Level, ...]
    post: Affine
    source: Affine
    pitch: tuple[Affine, ...]
    pitch_out: Affine
    window: Tensor
    forward: Tensor
    inverse: Tensor


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with every weight as one tensor, from either spelling of weight norm; other
    tensors stay.

    Raises CheckpointError for half a pair.
    """
    folded = dict(tensors)
    for length_end, direction_end in _SPELLINGS:
        names = {
            name.removesuffix(end)
            for name in tensors
            for end in (length_end, direction_end)
            if name.endswith(end)
        }
        for name in names:
            try:
                length, direction = folded.pop(name + length_end), folded.pop(name + direction_end)
            except KeyError as missing:
                raise CheckpointError(
                    f"The vocoder's file lacks {missing}; fetch the codec again."
                ) from None
            norm = torch.linalg.vector_norm(
                direction.double(), dim=tuple(range(1, direction.dim())), keepdim=True
            )
            folded[f"{name}.weight"] = (direction.double() / norm * length.double()).to(
                direction.dtype
            )
    return folded


def pack_hift(
    tensors: Mapping[str, Tensor], config: HiftConfig, device: torch.device
) -> HiftWeights:
    """From checked, folded tensors, in float32."""
    return _pack(lambda name, _: tensors[name], config, device)


def _pack(take: Take, config: HiftConfig, device: torch.device) -> HiftWeights:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.to(device, torch.float32)

    def affine(name: str, shape: tuple[int, ...], outputs: int | None = None) -> Affine:
        bias = (shape[0] if outputs is None else outputs,)
        return Affine(wide(take(f"{name}.weight", shape)), wide(take(f"{name}.bias", bias)))

    def block(name: str, size: int, kernel: int, dilations: tuple[int, ...]) -> ResidualBlock:
        def convolutions(half: int) -> tuple[Affine, ...]:
            shape = (size, size, kernel)
            return tuple(affine(f"{name}.convs{half}.{i}", shape) for i in range(len(dilations)))

        def snakes(half: int) -> tuple[Tensor, ...]:
            names = (f"{name}.activations{half}.{i}.alpha" for i in range(len(dilations)))
            return tuple(wide(take(name, (size,))) for name in names)

        return ResidualBlock(dilations, convolutions(1), snakes(1), convolutions(2), snakes(2))

    def level(i: int) -> Level:
        size, stride = config.channels >> (i + 1), config.source_strides[i]
        down = (size, bins, 1 if stride == 1 else 2 * stride)
        sizes = zip(config.kernels, config.dilations, strict=True)
        return Level(
            affine(f"ups.{i}", (2 * size, size, config.upsample_kernels[i]), size),
            affine(f"source_downs.{i}", down),
            block(
                f"source_resblocks.{i}", size, config.source_kernels[i], config.source_dilations[i]
            ),
            tuple(
                block(f"resblocks.{i * len(config.kernels) + j}", size, kernel, dilations)
                for j, (kernel, dilations) in enumerate(sizes)
            ),
        )

    def pitch(i: int) -> Affine:
        inputs = config.num_mels if i == 0 else config.pitch_channels
        shape = (config.pitch_channels, inputs, 3)
        return _as_product(affine(f"f0_predictor.condnet.{2 * i}", shape))

    bins, num_levels = config.n_fft + 2, len(config.upsample_rates)
    window = torch.hann_window(config.n_fft, dtype=torch.float64)
    forward, inverse = _fourier(config.n_fft, window)
    return HiftWeights(
        config,
        affine("conv_pre", (config.channels, config.num_mels, 7)),
        tuple(map(level, range(num_levels))),
        affine("conv_post", (bins, config.channels >> num_levels, 7)),
        affine("m_source.l_linear", (1, config.num_harmonics + 1)),
        tuple(map(pitch, range(5))),
        affine("f0_predictor.classifier", (1, config.pitch_channels)),
        *map(wide, (window, forward, inverse)),
    )


def _as_product(convolution: Affine) -> Affine:
    """[outputs, inputs, taps] -> [outputs, taps * inputs]"""
    return Affine(convolution.weight.transpose(1, 2).flatten(1).contiguous(), convolution.bias)


def _fourier(size: int, window: Tensor) -> tuple[Tensor, Tensor]:
    identity = torch.eye(size, dtype=torch.float64)
    # [size, bins]: the transform of every single sample
    spectrum = torch.fft.rfft(identity * window)
    forward = torch.cat([spectrum.real, spectrum.imag], 1).t().contiguous()
    bins = size // 2 + 1
    parts = torch.cat(
        [torch.eye(bins, dtype=torch.float64) + 0j, 1j * torch.eye(bins, dtype=torch.float64)]
    )
    inverse = torch.fft.irfft(parts, n=size) * window
    return forward, inverse.t().contiguous()
