"""HiFT's sizes, and the tensors that its checkpoint must hold: the facts of `flow/config.yaml` and
`hift.pt`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.yaml_file import find, read_yaml

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


MOST, MOST_LEVELS = 1 << 20, 16  # of any network that could be meant
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
    found = {name: find(tree, place) for name, place in places.items()}
    values = {name: _frozen(value) for name, value in found.items() if value is not None}
    for name, value in values.items():
        if not _like(value, getattr(HiftConfig(), name)):
            raise CheckpointError(
                f"{path} has {name} {value!r} for HiFT, which is unusable; fetch the codec again."
            )
    config = HiftConfig(**values)
    levels = {
        len(config.upsample_rates),
        len(config.upsample_kernels),
        len(config.source_kernels),
        len(config.source_dilations),
    }
    if len(levels) > 1 or len(config.kernels) != len(config.dilations):
        raise CheckpointError(
            f"{path} gives HiFT lists of different lengths; fetch the codec again."
        )
    if config.hop > config.n_fft:
        raise CheckpointError(
            f"{path} gives HiFT a hop of {config.hop}, more than its n_fft of {config.n_fft}; "
            "fetch the codec again."
        )
    if config.channels % 2 ** len(config.upsample_rates):
        raise CheckpointError(
            f"{path} gives HiFT {config.channels} channels, too few to be halved at every level; "
            "fetch the codec again."
        )
    return config


def _frozen(value: Any) -> Any:
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list) else value


def _like(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return (
            isinstance(value, tuple)
            and 0 < len(value) <= MOST_LEVELS
            and all(_like(inner, default[0]) for inner in value)
        )
    kinds = (int,) if isinstance(default, int) else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value <= MOST


def hift_shapes(config: HiftConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of `hift.pt` once weight norm is folded: name -> shape."""
    bins, pitch = config.n_fft + 2, config.pitch_channels
    shapes: dict[str, tuple[int, ...]] = {}
    _conv(shapes, "conv_pre", config.num_mels, config.channels, 7)
    size = config.channels
    for i, (kernel, stride) in enumerate(
        zip(config.upsample_kernels, config.source_strides, strict=True)
    ):
        shapes[f"ups.{i}.weight"], shapes[f"ups.{i}.bias"] = (size, size // 2, kernel), (size // 2,)
        size //= 2
        _conv(shapes, f"source_downs.{i}", bins, size, 1 if stride == 1 else 2 * stride)
        _block(
            shapes,
            f"source_resblocks.{i}",
            size,
            config.source_kernels[i],
            config.source_dilations[i],
        )
        for j, (width, dilations) in enumerate(zip(config.kernels, config.dilations, strict=True)):
            _block(shapes, f"resblocks.{i * len(config.kernels) + j}", size, width, dilations)
    _conv(shapes, "conv_post", size, bins, 7)
    shapes["m_source.l_linear.weight"] = (1, config.num_harmonics + 1)
    shapes["m_source.l_linear.bias"] = (1,)
    for i in range(5):
        _conv(
            shapes, f"f0_predictor.condnet.{2 * i}", config.num_mels if i == 0 else pitch, pitch, 3
        )
    shapes["f0_predictor.classifier.weight"], shapes["f0_predictor.classifier.bias"] = (
        (1, pitch),
        (1,),
    )
    return shapes


def _block(
    shapes: dict[str, tuple[int, ...]],
    name: str,
    size: int,
    kernel: int,
    dilations: tuple[int, ...],
) -> None:
    for i in range(len(dilations)):
        for half in (1, 2):
            _conv(shapes, f"{name}.convs{half}.{i}", size, size, kernel)
            shapes[f"{name}.activations{half}.{i}.alpha"] = (size,)


def _conv(
    shapes: dict[str, tuple[int, ...]], name: str, inputs: int, outputs: int, kernel: int
) -> None:
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs, kernel), (outputs,)
