"""HiFT's tensors, weight norm folded, arranged for the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.affine import Affine
from moss_engine.codec.vocoder.hift.config import HiftConfig

_SPELLINGS = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
"""The names of length and direction in newer and older files."""


@dataclass(frozen=True)
class ResidualBlock:
    """Per dilation: Snake, dilated convolution, Snake, convolution. Snakes are [1, channels, 1]."""

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
    """`forward` [n_fft + 2, 1, n_fft] and `inverse` of the same shape are windowed Fourier bases:
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
    tensors: Mapping[str, Tensor],
    config: HiftConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> HiftWeights:
    """From checked, folded tensors."""

    def affine(name: str) -> Affine:
        return Affine(
            tensors[f"{name}.weight"].to(device, dtype), tensors[f"{name}.bias"].to(device, dtype)
        )

    def block(name: str, dilations: tuple[int, ...]) -> ResidualBlock:
        count = range(len(dilations))
        snakes = [
            [
                tensors[f"{name}.activations{half}.{i}.alpha"]
                .to(device, dtype)[None, :, None]
                .contiguous()
                for i in count
            ]
            for half in (1, 2)
        ]
        return ResidualBlock(
            dilations,
            tuple(affine(f"{name}.convs1.{i}") for i in count),
            tuple(snakes[0]),
            tuple(affine(f"{name}.convs2.{i}") for i in count),
            tuple(snakes[1]),
        )

    kernels = len(config.kernels)
    levels = tuple(
        Level(affine(f"ups.{i}"), affine(f"source_downs.{i}"),
              block(f"source_resblocks.{i}", config.source_dilations[i]),
              tuple(block(f"resblocks.{i * kernels + j}",
              config.dilations[j]) for j in range(kernels)))
        for i in range(len(config.upsample_rates))
    )  # fmt: skip
    window = torch.hann_window(config.n_fft, dtype=torch.float64)
    forward, inverse = _fourier(config.n_fft, window)
    return HiftWeights(
        config, affine("conv_pre"), levels, affine("conv_post"), affine("m_source.l_linear"),
        tuple(_as_product(affine(f"f0_predictor.condnet.{2 * i}")) for i in range(5)),
        affine("f0_predictor.classifier"),
        window.to(device, dtype), forward.to(device, dtype), inverse.to(device, dtype),
    )  # fmt: skip


def _as_product(convolution: Affine) -> Affine:
    """[outputs, inputs, taps] -> [outputs, taps * inputs]"""
    return Affine(convolution.weight.transpose(1, 2).flatten(1).contiguous(), convolution.bias)


def _fourier(size: int, window: Tensor) -> tuple[Tensor, Tensor]:
    identity = torch.eye(size, dtype=torch.float64)
    spectrum = torch.fft.rfft(
        identity * window
    )  # [size, bins]: the transform of every single sample
    forward = torch.cat([spectrum.real, spectrum.imag], 1).t()[:, None].contiguous()
    bins = size // 2 + 1
    parts = torch.cat(
        [torch.eye(bins, dtype=torch.float64) + 0j, 1j * torch.eye(bins, dtype=torch.float64)]
    )
    inverse = torch.fft.irfft(parts, n=size) * window
    return forward, inverse[:, None].contiguous()
