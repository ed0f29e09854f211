"""The networks of the nano codec: mel -> codes by finite scalar quantisation, and codes -> mel.

Both are stacks of ConvNeXt blocks. The encoder sees both sides; the decoder is causal but for one
code of look-ahead in its first block, so that it can run as a stream. A folder holds both with
their configuration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.files import CONFIG_NAME, filled, read_config, unusable, write

LOOK_AHEAD_CODES = 1


@dataclass(frozen=True)
class FsqConfig:
    """Sizes of encoder and decoder. `blocks` are (at the frame rate, at the code rate)."""

    mel: MelSpec
    frames_per_code: int
    levels: tuple[int, ...]
    mel_mean: float
    mel_scale: float
    kernel_size: int
    mlp_ratio: int
    encoder_dim: int
    encoder_blocks: tuple[int, int]
    decoder_dim: int
    decoder_blocks: tuple[int, int]

    @property
    def num_codes(self) -> int:
        return math.prod(self.levels)

    @property
    def samples_per_code(self) -> int:
        return self.frames_per_code * self.mel.hop_size


class Block(nn.Module):
    """Depthwise convolution, norm, MLP, residual; `look_ahead` of its taps lie in the future."""

    def __init__(self, dim: int, kernel_size: int, mlp_ratio: int, look_ahead: int) -> None:
        super().__init__()
        self.look_ahead = look_ahead
        self.look_back = kernel_size - 1 - look_ahead
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, dim * mlp_ratio)
        self.narrow = nn.Linear(dim * mlp_ratio, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, dim, steps] -> the same; zeros stand before the start and after the end."""
        return self.forward_padded(pad(x, (self.look_back, self.look_ahead)))

    def forward_padded(self, x: Tensor) -> Tensor:
        """[batch, dim, look_back + steps + look_ahead] -> [batch, dim, steps]"""
        steps = x.shape[-1] - self.look_back - self.look_ahead
        hidden = self.norm(self.depthwise(x).transpose(1, 2))
        hidden = self.narrow(nn.functional.gelu(self.widen(hidden)))
        return x[..., self.look_back : self.look_back + steps] + hidden.transpose(1, 2)


class Encoder(nn.Module):
    """Log-mel -> one point per code, which `quantise` turns into a code."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        dim, side = config.encoder_dim, (config.kernel_size - 1) // 2
        at_frames, at_codes = config.encoder_blocks
        self.embed = nn.Linear(config.mel.num_mels, dim)
        self.frame_blocks = nn.Sequential(
            *(Block(dim, config.kernel_size, config.mlp_ratio, side) for _ in range(at_frames))
        )
        self.shrink = nn.Linear(dim * config.frames_per_code, dim)
        self.code_blocks = nn.Sequential(
            *(Block(dim, config.kernel_size, config.mlp_ratio, side) for _ in range(at_codes))
        )
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, len(config.levels))

    def forward(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> [batch, frames / frames_per_code, len(levels)]"""
        x = self.embed(((mel - self.config.mel_mean) / self.config.mel_scale).transpose(1, 2))
        x = self.frame_blocks(x.transpose(1, 2)).transpose(1, 2)
        batch, frames, dim = x.shape
        x = self.shrink(
            x.reshape(
                batch, frames // self.config.frames_per_code, dim * self.config.frames_per_code
            )
        )
        x = self.code_blocks(x.transpose(1, 2)).transpose(1, 2)
        return self.project(self.norm(x))


class Decoder(nn.Module):
    """Quantised points -> log-mel."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.decoder_dim
        at_frames, at_codes = config.decoder_blocks
        self.embed = nn.Linear(len(config.levels), dim)
        self.code_blocks = nn.Sequential(
            *(
                Block(dim, config.kernel_size, config.mlp_ratio, LOOK_AHEAD_CODES if i == 0 else 0)
                for i in range(at_codes)
            )
        )
        self.expand = nn.Linear(dim, dim * config.frames_per_code)
        self.frame_blocks = nn.Sequential(
            *(Block(dim, config.kernel_size, config.mlp_ratio, 0) for _ in range(at_frames))
        )
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, config.mel.num_mels)

    def forward(self, points: Tensor) -> Tensor:
        """[batch, codes, len(levels)] -> [batch, num_mels, codes * frames_per_code]"""
        x = self.code_blocks(self.embed(points).transpose(1, 2))
        return self.finish(self.frame_blocks(self.to_frames(x)))

    def to_frames(self, x: Tensor) -> Tensor:
        """[batch, dim, codes] -> [batch, dim, codes * frames_per_code]; codes do not mix."""
        batch, dim, codes = x.shape
        return (
            self.expand(x.transpose(1, 2))
            .reshape(batch, codes * self.config.frames_per_code, dim)
            .transpose(1, 2)
        )

    def finish(self, x: Tensor) -> Tensor:
        """[batch, dim, frames] -> log-mel [batch, num_mels, frames]"""
        mel = self.project(self.norm(x.transpose(1, 2))).transpose(1, 2)
        return mel * self.config.mel_scale + self.config.mel_mean


class NanoFsq(nn.Module):
    """Encoder and decoder, as they lie together in one file."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def codes_of_mel(self, mel: Tensor) -> Tensor:
        """[batch, num_mels, frames] -> int64 [batch, frames / frames_per_code]."""
        return codes_of_points(quantise(self.encoder(mel), self.config.levels), self.config.levels)

    def mel_of_codes(self, codes: Tensor) -> Tensor:
        """int64 [batch, codes] -> [batch, num_mels, codes * frames_per_code]"""
        return self.decoder(points_of_codes(codes, self.config.levels))


def quantise(raw: Tensor, levels: tuple[int, ...]) -> Tensor:
    """Round [..., len(levels)] to grid points in (-1, 1); gradients pass as through tanh.

    A level's bin is equally wide everywhere, so that raw values near N(0, 1) use all of them about
    equally.
    """
    count = torch.tensor(levels, dtype=torch.float32, device=raw.device)
    smooth = torch.tanh(0.85 * raw.float())
    index = ((smooth + 1) / 2 * count).floor().clamp_min(0).minimum(count - 1)
    return smooth + ((2 * index + 1) / count - 1 - smooth).detach()


def codes_of_points(points: Tensor, levels: tuple[int, ...]) -> Tensor:
    """Grid points [..., len(levels)] -> int64 codes [...]; the first level varies fastest."""
    count = torch.tensor(levels, device=points.device)
    index = ((points + 1) / 2 * count - 0.5).round().long()
    return (index * _strides(levels, points.device)).sum(-1)


def points_of_codes(codes: Tensor, levels: tuple[int, ...]) -> Tensor:
    """int64 codes [...] -> float32 grid points [..., len(levels)]"""
    count = torch.tensor(levels, device=codes.device)
    index = codes[..., None] // _strides(levels, codes.device) % count
    return (2 * index + 1) / count - 1


def _strides(levels: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([math.prod(levels[:i]) for i in range(len(levels))], device=device)


FSQ_TYPE = "nano-fsq"
_EXAMPLE = FsqConfig(
    mel=MOSS_MEL,
    frames_per_code=1,
    levels=(1,),
    mel_mean=1.0,
    mel_scale=1.0,
    kernel_size=1,
    mlp_ratio=1,
    encoder_dim=1,
    encoder_blocks=(1, 1),
    decoder_dim=1,
    decoder_blocks=(1, 1),
)
INT8_MIN_VALUES = 16_384
"""Smaller matrices stay float16: the quantiser's own projection is delicate."""


def load_fsq(folder: Path, device: torch.device | str = "cpu") -> NanoFsq:
    """The nano codec's networks in float32, ready to run; raises CheckpointError."""
    config = fsq_config_of(read_config(folder), folder)
    return filled(lambda: NanoFsq(config), folder, device)


def save_fsq(folder: Path, fsq: NanoFsq, *, int8: bool = True) -> None:
    """Write matrices as int8 rows and the rest as float16, or everything as float32."""
    config = {"type": FSQ_TYPE, **dataclasses.asdict(fsq.config)}
    tensors = {name: tensor.half() if int8 else tensor for name, tensor in fsq.state_dict().items()}
    rows = [
        name
        for name, tensor in tensors.items()
        if tensor.dim() == 2 and tensor.numel() >= INT8_MIN_VALUES
    ]
    write(
        folder,
        config,
        {**tensors, **{n: fsq.state_dict()[n].float() for n in rows}},
        rows if int8 else [],
    )


def fsq_config_of(config: Mapping[str, Any], folder: Path) -> FsqConfig:
    """FsqConfig of a config.json; CheckpointError names a missing, unknown or unusable field."""
    if config["type"] != FSQ_TYPE:
        raise CheckpointError(
            f"{folder} holds a codec of type {config['type']!r}; name a folder of one of type "
            f"{FSQ_TYPE!r}."
        )
    values = {key: value for key, value in config.items() if key != "type"}
    if wrong := unusable(values, dataclasses.asdict(_EXAMPLE)):
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export it again."
        )
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return FsqConfig(**{**values, **tuples, "mel": MelSpec(**values["mel"])})
