"""The flow's sizes (`flow/config.yaml`), the tensors of its checkpoint (`flow*.pt`), and these
arranged for inference: products of constant matrices, and all that depends on a step's time alone,
are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.device import Affine
from moss_engine.codec.files import find, read_yaml, unusable


@dataclass(frozen=True)
class FlowConfig:
    """Codes -> mel. The defaults are the published codec's.

    `ratio` mel frames belong to one code. `head_dim` belongs to the estimator, whose heads are
    wider than its channels; the conformer's heads share its `width`. `num_up_blocks` conformer
    blocks follow the upsampling.
    """

    vocab_size: int = 20_480
    width: int = 512
    num_heads: int = 8
    ffn_width: int = 2048
    num_blocks: int = 6
    num_up_blocks: int = 4
    ratio: int = 4
    look_ahead: int = 3
    num_mels: int = 80
    speaker_dim: int = 192
    channels: int = 256
    estimator_heads: int = 8
    head_dim: int = 64
    transformers: int = 4
    num_mid_blocks: int = 12
    guidance: float = 0.7
    code_rate_hz: float = 12.5

    @property
    def num_stages(self) -> int:
        """Stages of the estimator (a residual block and its transformers): down, middle, up."""
        return self.num_mid_blocks + 2

    @property
    def input_channels(self) -> int:
        """The estimator's input: noisy mel, encoder output, speaker and condition."""
        return 4 * self.num_mels


_FIELDS = {
    "vocab_size": ("flow", "vocab_size"),
    "width": ("flow", "encoder", "output_size"),
    "num_heads": ("flow", "encoder", "attention_heads"),
    "ffn_width": ("flow", "encoder", "linear_units"),
    "num_blocks": ("flow", "encoder", "num_blocks"),
    "ratio": ("flow", "token_mel_ratio"),
    "look_ahead": ("flow", "pre_lookahead_len"),
    "num_mels": ("flow", "output_size"),
    "speaker_dim": ("flow", "spk_embed_dim"),
    "estimator_heads": ("flow", "decoder", "estimator", "num_heads"),
    "head_dim": ("flow", "decoder", "estimator", "attention_head_dim"),
    "transformers": ("flow", "decoder", "estimator", "n_blocks"),
    "num_mid_blocks": ("flow", "decoder", "estimator", "num_mid_blocks"),
    "guidance": ("flow", "decoder", "cfm_params", "content", "inference_cfg_rate"),
    "code_rate_hz": ("flow", "input_frame_rate"),
}
"""Where each field stands in config.yaml; one that is absent there has the published value."""
_REMEDY = "use the published MOSS-Speech codec."
_FIXED = {
    ("flow", "encoder", "upsample_stride"): "ratio",
    ("flow", "encoder", "input_size"): "width",
    ("flow", "input_size"): "width",
    ("flow", "decoder", "estimator", "out_channels"): "num_mels",
    ("flow", "decoder", "estimator", "in_channels"): "input_channels",
}
_KINDS = {
    ("flow", "encoder", "input_layer"): "linear",
    ("flow", "encoder", "pos_enc_layer_type"): "rel_pos_espnet",
    ("flow", "encoder", "selfattention_layer_type"): "rel_selfattn",
    ("flow", "encoder", "use_cnn_module"): False,
    ("flow", "encoder", "macaron_style"): False,
    ("flow", "encoder", "normalize_before"): True,
    ("flow", "decoder", "estimator", "act_fn"): "gelu",
    ("flow", "decoder", "cfm_params", "content", "t_scheduler"): "cosine",
    ("flow", "decoder", "cfm_params", "content", "solver"): "euler",
}


def read_flow_config(path: Path) -> FlowConfig:
    """The flow section of a `config.yaml`; raises CheckpointError for another network."""
    tree = read_yaml(path)
    values: dict[str, Any] = {}
    for name, place in _FIELDS.items():
        value = find(tree, place)
        if value is not None:
            values[name] = value
    channels = find(tree, ("flow", "decoder", "estimator", "channels"))
    if channels is not None:
        if not isinstance(channels, list) or len(channels) != 1:
            raise CheckpointError(
                f"{path} has estimator channels {channels}, and only networks of one level are "
                f"known; {_REMEDY}"
            )
        values["channels"] = channels[0]
    config = FlowConfig(**values)
    _check_numbers(config, path)
    for place, name in _FIXED.items():
        found = find(tree, place)
        if found is not None and found != getattr(config, name):
            raise CheckpointError(
                f"{path} has {'.'.join(place)} {found}, but {name} {getattr(config, name)}; "
                "fetch the codec again."
            )
    for place, wanted in _KINDS.items():
        found = find(tree, place)
        if found is not None and found != wanted:
            raise CheckpointError(
                f"{path} has {'.'.join(place)} {found!r}, and this program runs {wanted!r} only; "
                f"{_REMEDY}"
            )
    return config


def _check_numbers(config: FlowConfig, path: Path) -> None:
    for name in unusable(vars(config), vars(FlowConfig())):
        raise CheckpointError(
            f"{path} has {name} {getattr(config, name)!r}, which is no size; fetch the codec again."
        )
    if config.width % (2 * config.num_heads):
        raise CheckpointError(
            f"{path} has a width of {config.width} that {config.num_heads} heads cannot share; "
            f"{_REMEDY}"
        )


def flow_shapes(config: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of `flow.pt` and of `flow-chunk-N.pt`: name -> shape."""
    width, mels = config.width, config.num_mels
    shapes: dict[str, tuple[int, ...]] = {"input_embedding.weight": (config.vocab_size, width)}
    _linear(shapes, "spk_embed_affine_layer", config.speaker_dim, mels)
    _linear(shapes, "encoder_proj", width, mels)
    for name in ("embed", "up_embed"):
        _linear(shapes, f"encoder.{name}.out.0", width, width)
        _norm(shapes, f"encoder.{name}.out.1", width)
    _conv(shapes, "encoder.pre_lookahead_layer.conv1", width, width, config.look_ahead + 1)
    _conv(shapes, "encoder.pre_lookahead_layer.conv2", width, width, 3)
    _conv(shapes, "encoder.up_layer.conv", width, width, 2 * config.ratio + 1)
    _norm(shapes, "encoder.after_norm", width)
    blocks = [f"encoder.encoders.{i}" for i in range(config.num_blocks)]
    for name in blocks + [f"encoder.up_encoders.{i}" for i in range(config.num_up_blocks)]:
        _conformer_shapes(shapes, name, config)
    _estimator_shapes(shapes, config)
    return shapes


def _conformer_shapes(shapes: dict[str, tuple[int, ...]], name: str, config: FlowConfig) -> None:
    width, heads = config.width, config.num_heads
    for part in ("linear_q", "linear_k", "linear_v", "linear_out"):
        _linear(shapes, f"{name}.self_attn.{part}", width, width)
    shapes[f"{name}.self_attn.linear_pos.weight"] = (width, width)
    for part in ("pos_bias_u", "pos_bias_v"):
        shapes[f"{name}.self_attn.{part}"] = (heads, width // heads)
    _linear(shapes, f"{name}.feed_forward.w_1", width, config.ffn_width)
    _linear(shapes, f"{name}.feed_forward.w_2", config.ffn_width, width)
    _norm(shapes, f"{name}.norm_mha", width)
    _norm(shapes, f"{name}.norm_ff", width)


def stage_names(config: FlowConfig) -> list[str]:
    """The estimator's stages in the order they run, without their common prefix."""
    return [
        "down_blocks.0",
        *(f"mid_blocks.{i}" for i in range(config.num_mid_blocks)),
        "up_blocks.0",
    ]


def _estimator_shapes(shapes: dict[str, tuple[int, ...]], config: FlowConfig) -> None:
    prefix, channels, time_dim = "decoder.estimator", config.channels, 4 * config.channels
    _linear(shapes, f"{prefix}.time_mlp.linear_1", config.input_channels, time_dim)
    _linear(shapes, f"{prefix}.time_mlp.linear_2", time_dim, time_dim)
    inputs = [config.input_channels, *[channels] * config.num_mid_blocks, 2 * channels]
    for stage, size in zip(stage_names(config), inputs, strict=True):
        name = f"{prefix}.{stage}"
        _linear(shapes, f"{name}.0.mlp.1", time_dim, channels)
        for part, part_inputs in (("block1", size), ("block2", channels)):
            _conv(shapes, f"{name}.0.{part}.block.0", part_inputs, channels, 3)
            _norm(shapes, f"{name}.0.{part}.block.2", channels)
        _conv(shapes, f"{name}.0.res_conv", size, channels, 1)
        for i in range(config.transformers):
            _transformer_shapes(shapes, f"{name}.1.{i}", config)
        if not stage.startswith("mid"):
            _conv(shapes, f"{name}.2", channels, channels, 3)
    _conv(shapes, f"{prefix}.final_block.block.0", channels, channels, 3)
    _norm(shapes, f"{prefix}.final_block.block.2", channels)
    _conv(shapes, f"{prefix}.final_proj", channels, config.num_mels, 1)


def _transformer_shapes(shapes: dict[str, tuple[int, ...]], name: str, config: FlowConfig) -> None:
    channels, inner = config.channels, config.estimator_heads * config.head_dim
    _norm(shapes, f"{name}.norm1", channels)
    for part in ("to_q", "to_k", "to_v"):
        shapes[f"{name}.attn1.{part}.weight"] = (inner, channels)
    _linear(shapes, f"{name}.attn1.to_out.0", inner, channels)
    _norm(shapes, f"{name}.norm3", channels)
    _linear(shapes, f"{name}.ff.net.0.proj", channels, 4 * channels)
    _linear(shapes, f"{name}.ff.net.2", 4 * channels, channels)


def _linear(shapes: dict[str, tuple[int, ...]], name: str, inputs: int, outputs: int) -> None:
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)


def _conv(
    shapes: dict[str, tuple[int, ...]], name: str, inputs: int, outputs: int, kernel: int
) -> None:
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs, kernel), (outputs,)


def _norm(shapes: dict[str, tuple[int, ...]], name: str, size: int) -> None:
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (size,), (size,)


NUM_STEPS = 10
"""Euler steps of one run."""
NOISE_FRAMES = 15_000
CONFORMER_EPS = 1e-12
EPS = 1e-5


@dataclass(frozen=True)
class ConformerBlock:
    """One block. `qkv` stacks the three projections.

    `position` [heads, width / heads, width] maps a query to the sines and cosines of positions.
    """

    norm_attention: Affine
    qkv: Affine
    bias_content: Tensor
    bias_position: Tensor
    position: Tensor
    out: Affine
    norm_ffn: Affine
    first: Affine
    second: Affine


@dataclass(frozen=True)
class EncoderWeights:
    """Codes -> mu, the prior mean of the mel."""

    table: Tensor
    embed: Affine
    embed_norm: Affine
    look_ahead: Affine
    after_look_ahead: Affine
    blocks: tuple[ConformerBlock, ...]
    upsample: Affine
    up_embed: Affine
    up_embed_norm: Affine
    up_blocks: tuple[ConformerBlock, ...]
    norm: Affine
    project: Affine


@dataclass(frozen=True)
class Transformer:
    """A transformer with its constant products folded.

    `query` [heads * channels, channels] maps a normed row to what every head compares with other
    normed rows, `out` [channels, heads * channels] maps their mixtures back.
    """

    norm_attention: Affine
    query: Tensor
    out: Affine
    norm_ffn: Affine
    first: Affine
    second: Affine


@dataclass(frozen=True)
class Stage:
    """Residual block and transformers. A convolution is a product with the three last rows side by
    side; `first` also holds the residual path, whose other taps are zero. `time` [steps, channels].
    """

    first: Affine
    first_norm: Affine
    time: Tensor
    second: Affine
    second_norm: Affine
    transformers: tuple[Transformer, ...]
    after: Affine | None


@dataclass(frozen=True)
class EstimatorWeights:
    stages: tuple[Stage, ...]
    final: Affine
    final_norm: Affine
    project: Affine


@dataclass(frozen=True)
class FlowWeights:
    """`strides` are the steps' lengths; `noise` [frames, mels] is shared."""

    config: FlowConfig
    encoder: EncoderWeights
    estimator: EstimatorWeights
    speaker: Affine
    strides: tuple[float, ...]
    noise: Tensor
    dtype: torch.dtype


def pack_flow(
    tensors: Mapping[str, Tensor], config: FlowConfig, device: torch.device, dtype: torch.dtype
) -> FlowWeights:
    """The tensors of a checked checkpoint on `device`: matrices in `dtype`, the rest in float32.

    With float64, everything is float64.
    """
    packer = _Packer(tensors, device, dtype)
    times, strides = euler_schedule(packer.wide)
    noise = fixed_noise(config.num_mels)[0].t().contiguous().to(device, packer.wide)
    return FlowWeights(
        config,
        packer.encoder(config),
        packer.estimator(config, times),
        packer.norm("spk_embed_affine_layer"),
        strides,
        noise,
        dtype,
    )


def fixed_noise(num_mels: int) -> Tensor:
    """float32 [1, mels, 15000]: the noise of all runs, independent of the global generator."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn([1, num_mels, NOISE_FRAMES], generator=generator)


def euler_schedule(dtype: torch.dtype) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and lengths of the steps: 1 - cos(t pi / 2), summed as the runs sum them."""
    span = 1 - torch.cos(torch.linspace(0, 1, NUM_STEPS + 1, dtype=dtype) * 0.5 * torch.pi)
    time, times, strides = span[0], [], []
    for following in span[1:]:
        stride = following - time
        times.append(float(time))
        strides.append(float(stride))
        time = time + stride
    return tuple(times), tuple(strides)


class _Packer:
    def __init__(
        self, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._tensors, self._device, self._dtype = tensors, device, dtype
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32

    def encoder(self, config: FlowConfig) -> EncoderWeights:
        name = "encoder"
        blocks = tuple(
            self._conformer(f"{name}.encoders.{i}", config) for i in range(config.num_blocks)
        )
        up_blocks = tuple(
            self._conformer(f"{name}.up_encoders.{i}", config) for i in range(config.num_up_blocks)
        )
        return EncoderWeights(
            table=self._kept("input_embedding.weight"),
            embed=self._linear(f"{name}.embed.out.0"), embed_norm=self.norm(f"{name}.embed.out.1"),
            look_ahead=self._conv(f"{name}.pre_lookahead_layer.conv1"),
            after_look_ahead=self._conv(f"{name}.pre_lookahead_layer.conv2"), blocks=blocks,
            upsample=self._conv(f"{name}.up_layer.conv"),
            up_embed=self._linear(f"{name}.up_embed.out.0"),
            up_embed_norm=self.norm(f"{name}.up_embed.out.1"),
            up_blocks=up_blocks, norm=self.norm(f"{name}.after_norm"),
            project=self._linear("encoder_proj"),
        )  # fmt: skip

    def estimator(self, config: FlowConfig, times: tuple[float, ...]) -> EstimatorWeights:
        name = "decoder.estimator"
        time = self._time_embedding(config, times)
        stages = tuple(
            self._stage(f"{name}.{stage}", config, time) for stage in stage_names(config)
        )
        return EstimatorWeights(
            stages,
            self._conv(f"{name}.final_block.block.0"),
            self.norm(f"{name}.final_block.block.2"),
            self._conv(f"{name}.final_proj"),
        )

    def norm(self, name: str) -> Affine:
        return Affine(
            self._wide(f"{name}.weight").to(self.wide), self._wide(f"{name}.bias").to(self.wide)
        )

    def _wide(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device).double()

    def _kept(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device, self._dtype)

    def _linear(self, name: str) -> Affine:
        return Affine(self._kept(f"{name}.weight"), self._kept(f"{name}.bias"))

    def _conv(self, name: str) -> Affine:
        """[outputs, inputs, taps] -> [outputs, taps * inputs]"""
        weight = self._kept(f"{name}.weight")
        return Affine(
            weight.transpose(1, 2).reshape(len(weight), -1).contiguous(), self._kept(f"{name}.bias")
        )

    def _conformer(self, name: str, config: FlowConfig) -> ConformerBlock:
        attention = f"{name}.self_attn"
        parts = [self._linear(f"{attention}.linear_{part}") for part in "qkv"]
        position = self._wide(f"{attention}.linear_pos.weight")  # [width, width]
        # every second column belongs to a sine, the others to cosines
        position = (
            position.view(config.num_heads, -1, config.width // 2, 2).transpose(-1, -2).flatten(-2)
        )
        return ConformerBlock(
            norm_attention=self.norm(f"{name}.norm_mha"),
            qkv=Affine(torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts])),
            bias_content=self._kept(f"{attention}.pos_bias_u"),
            bias_position=self._kept(f"{attention}.pos_bias_v"),
            position=position.to(self._dtype).contiguous(),
            out=self._linear(f"{attention}.linear_out"),
            norm_ffn=self.norm(f"{name}.norm_ff"), first=self._linear(f"{name}.feed_forward.w_1"),
            second=self._linear(f"{name}.feed_forward.w_2"),
        )  # fmt: skip

    def _time_embedding(self, config: FlowConfig, times: tuple[float, ...]) -> Tensor:
        """Time embeddings of every residual block: float64 [steps, 4 * channels]."""
        half = config.input_channels // 2
        rates = torch.exp(
            torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / (half - 1))
        )
        angles = 1000 * torch.tensor(times, dtype=torch.float64)[:, None] * rates
        wave = torch.cat([angles.sin(), angles.cos()], -1).to(self._device)
        name = "decoder.estimator.time_mlp"
        hidden = F.silu(
            F.linear(
                wave, self._wide(f"{name}.linear_1.weight"), self._wide(f"{name}.linear_1.bias")
            )
        )
        return F.mish(
            F.linear(
                hidden, self._wide(f"{name}.linear_2.weight"), self._wide(f"{name}.linear_2.bias")
            )
        )

    def _stage(self, name: str, config: FlowConfig, time: Tensor) -> Stage:
        first = self._conv(f"{name}.0.block1.block.0")
        second = self._conv(f"{name}.0.block2.block.0")
        residual = self._conv(f"{name}.0.res_conv")
        taps = F.pad(residual.weight, (first.weight.shape[1] - residual.weight.shape[1], 0))
        shift = F.linear(
            time, self._wide(f"{name}.0.mlp.1.weight"), self._wide(f"{name}.0.mlp.1.bias")
        )
        return Stage(
            first=Affine(torch.cat([first.weight, taps]), torch.cat([first.bias, residual.bias])),
            first_norm=self.norm(f"{name}.0.block1.block.2"), time=shift.to(self.wide),
            second=second,
            second_norm=self.norm(f"{name}.0.block2.block.2"),
            transformers=tuple(self._transformer(f"{name}.1.{i}",
            config) for i in range(config.transformers)),
            after=self._conv(f"{name}.2") if f"{name}.2.weight" in self._tensors else None,
        )  # fmt: skip

    def _transformer(self, name: str, config: FlowConfig) -> Transformer:
        """Fold projections: a score is (Wq n) . (Wk m) = (Wk' Wq n) . m, the output Wo Wv m."""
        heads, channels = config.estimator_heads, config.channels
        query, key, value = (
            self._wide(f"{name}.attn1.{part}.weight").view(heads, -1, channels)
            for part in ("to_q", "to_k", "to_v")
        )
        out = self._wide(f"{name}.attn1.to_out.0.weight").view(channels, heads, -1)
        products = torch.einsum("hdm,hdn->hmn", key, query) * config.head_dim**-0.5
        mixed = torch.einsum("chd,hdm->chm", out, value)
        return Transformer(
            norm_attention=self.norm(f"{name}.norm1"),
            query=products.reshape(heads * channels, channels).to(self._dtype),
            out=Affine(mixed.reshape(channels, heads * channels).to(self._dtype),
                       self._kept(f"{name}.attn1.to_out.0.bias")),
            norm_ffn=self.norm(f"{name}.norm3"), first=self._linear(f"{name}.ff.net.0.proj"),
            second=self._linear(f"{name}.ff.net.2"),
        )  # fmt: skip
