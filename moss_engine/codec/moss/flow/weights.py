"""The flow's sizes (`flow/config.yaml`), the tensors of its checkpoint (`flow*.pt`), and these
arranged for inference: products of constant matrices, and all that depends on a step's time alone,
are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.device import Affine
from moss_engine.codec.files import Take, find, read_sizes, read_yaml, taken_shapes


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
    "channels": ("flow", "decoder", "estimator", "channels", 0),
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
    channels = find(tree, ("flow", "decoder", "estimator", "channels"))
    if isinstance(channels, list) and len(channels) != 1:
        raise CheckpointError(
            f"{path} has estimator channels {channels}, and only networks of one level are known; "
            f"{_REMEDY}"
        )
    config = read_sizes(tree, _FIELDS, FlowConfig(), path)
    if config.width % (2 * config.num_heads):
        raise CheckpointError(
            f"{path} has a width of {config.width} that {config.num_heads} heads cannot share; "
            f"{_REMEDY}"
        )
    fixed = {place: getattr(config, name) for place, name in _FIXED.items()}
    for place, wanted in (fixed | _KINDS).items():
        found = find(tree, place)
        if found is not None and found != wanted:
            raise CheckpointError(
                f"{path} has {'.'.join(place)} {found!r}, and this program runs {wanted!r} only; "
                f"{_REMEDY}"
            )
    return config


def flow_shapes(config: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of `flow.pt` and of `flow-chunk-N.pt`: name -> shape."""
    return taken_shapes(lambda take, device: _pack(take, config, device, torch.float32))


def stage_names(config: FlowConfig) -> list[str]:
    """The estimator's stages in the order they run, without their common prefix."""
    return [
        "down_blocks.0",
        *(f"mid_blocks.{i}" for i in range(config.num_mid_blocks)),
        "up_blocks.0",
    ]


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
    normed rows, `out` [channels, heads * channels] maps what the heads attend to back.
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
    return _pack(lambda name, _: tensors[name], config, device, dtype)


def _pack(take: Take, config: FlowConfig, device: torch.device, dtype: torch.dtype) -> FlowWeights:
    packer = _Packer(take, config, device, dtype)
    times, strides = euler_schedule(packer.wide)
    noise = fixed_noise(config.num_mels)[0].t().contiguous().to(device, packer.wide)
    speaker = packer.norm("spk_embed_affine_layer", config.num_mels, config.speaker_dim)
    estimator = packer.estimator(times)
    return FlowWeights(config, packer.encoder(), estimator, speaker, strides, noise, dtype)


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
        self, take: Take, config: FlowConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._take, self._config, self._device, self._dtype = take, config, device, dtype
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32

    def encoder(self) -> EncoderWeights:
        config, name, width = self._config, "encoder", self._config.width
        return EncoderWeights(
            table=self._kept("input_embedding.weight", config.vocab_size, width),
            embed=self._linear(f"{name}.embed.out.0", width, width),
            embed_norm=self.norm(f"{name}.embed.out.1", width),
            look_ahead=self._conv(
                f"{name}.pre_lookahead_layer.conv1", width, width, config.look_ahead + 1
            ),
            after_look_ahead=self._conv(f"{name}.pre_lookahead_layer.conv2", width, width, 3),
            blocks=tuple(self._conformer(f"{name}.encoders.{i}") for i in range(config.num_blocks)),
            upsample=self._conv(f"{name}.up_layer.conv", width, width, 2 * config.ratio + 1),
            up_embed=self._linear(f"{name}.up_embed.out.0", width, width),
            up_embed_norm=self.norm(f"{name}.up_embed.out.1", width),
            up_blocks=tuple(
                self._conformer(f"{name}.up_encoders.{i}") for i in range(config.num_up_blocks)
            ),
            norm=self.norm(f"{name}.after_norm", width),
            project=self._linear("encoder_proj", width, config.num_mels),
        )

    def estimator(self, times: tuple[float, ...]) -> EstimatorWeights:
        config, name, channels = self._config, "decoder.estimator", self._config.channels
        time = self._time_embedding(times)
        inputs = [config.input_channels, *[channels] * config.num_mid_blocks, 2 * channels]
        return EstimatorWeights(
            tuple(
                self._stage(f"{name}.{stage}", size, time, goes_on=stage.startswith("mid"))
                for stage, size in zip(stage_names(config), inputs, strict=True)
            ),
            self._conv(f"{name}.final_block.block.0", channels, channels, 3),
            self.norm(f"{name}.final_block.block.2", channels),
            self._conv(f"{name}.final_proj", channels, config.num_mels, 1),
        )

    def norm(self, name: str, size: int, *inputs: int) -> Affine:
        weight, bias = self._wide(f"{name}.weight", size, *inputs), self._wide(f"{name}.bias", size)
        return Affine(weight.to(self.wide), bias.to(self.wide))

    def _wide(self, name: str, *shape: int) -> Tensor:
        return self._take(name, shape).to(self._device).double()

    def _kept(self, name: str, *shape: int) -> Tensor:
        return self._take(name, shape).to(self._device, self._dtype)

    def _linear(self, name: str, inputs: int, outputs: int) -> Affine:
        return Affine(
            self._kept(f"{name}.weight", outputs, inputs), self._kept(f"{name}.bias", outputs)
        )

    def _conv(self, name: str, inputs: int, outputs: int, taps: int) -> Affine:
        """[outputs, inputs, taps] -> [outputs, taps * inputs]"""
        weight = self._kept(f"{name}.weight", outputs, inputs, taps)
        flat = weight.transpose(1, 2).reshape(outputs, -1).contiguous()
        return Affine(flat, self._kept(f"{name}.bias", outputs))

    def _conformer(self, name: str) -> ConformerBlock:
        attention, heads, width = f"{name}.self_attn", self._config.num_heads, self._config.width
        biases = [
            self._kept(f"{attention}.pos_bias_{part}", heads, width // heads) for part in "uv"
        ]
        position = self._wide(f"{attention}.linear_pos.weight", width, width)
        # every second column belongs to a sine, the others to cosines
        position = position.view(heads, -1, width // 2, 2).transpose(-1, -2).flatten(-2)
        return ConformerBlock(
            norm_attention=self.norm(f"{name}.norm_mha", width),
            qkv=_joined([self._linear(f"{attention}.linear_{x}", width, width) for x in "qkv"]),
            bias_content=biases[0],
            bias_position=biases[1],
            position=position.to(self._dtype).contiguous(),
            out=self._linear(f"{attention}.linear_out", width, width),
            norm_ffn=self.norm(f"{name}.norm_ff", width),
            first=self._linear(f"{name}.feed_forward.w_1", width, self._config.ffn_width),
            second=self._linear(f"{name}.feed_forward.w_2", self._config.ffn_width, width),
        )

    def _time_embedding(self, times: tuple[float, ...]) -> Tensor:
        """Time embeddings of every residual block: float64 [steps, 4 * channels]."""
        size, time_dim = self._config.input_channels, 4 * self._config.channels
        half, name = size // 2, "decoder.estimator.time_mlp"
        rates = torch.exp(
            torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / (half - 1))
        )
        angles = 1000 * torch.tensor(times, dtype=torch.float64)[:, None] * rates
        wave = torch.cat([angles.sin(), angles.cos()], -1).to(self._device)
        hidden = F.silu(self._projected(wave, f"{name}.linear_1", size, time_dim))
        return F.mish(self._projected(hidden, f"{name}.linear_2", time_dim, time_dim))

    def _projected(self, x: Tensor, name: str, inputs: int, outputs: int) -> Tensor:
        """float64 [..., inputs] -> [..., outputs]"""
        weight = self._wide(f"{name}.weight", outputs, inputs)
        return F.linear(x, weight, self._wide(f"{name}.bias", outputs))

    def _stage(self, name: str, inputs: int, time: Tensor, *, goes_on: bool) -> Stage:
        channels = self._config.channels
        first = self._conv(f"{name}.0.block1.block.0", inputs, channels, 3)
        residual = self._conv(f"{name}.0.res_conv", inputs, channels, 1)
        straight = Affine(F.pad(residual.weight, (2 * inputs, 0)), residual.bias)
        return Stage(
            first=_joined([first, straight]),
            first_norm=self.norm(f"{name}.0.block1.block.2", channels),
            time=self._projected(time, f"{name}.0.mlp.1", 4 * channels, channels).to(self.wide),
            second=self._conv(f"{name}.0.block2.block.0", channels, channels, 3),
            second_norm=self.norm(f"{name}.0.block2.block.2", channels),
            transformers=tuple(
                self._transformer(f"{name}.1.{i}") for i in range(self._config.transformers)
            ),
            after=None if goes_on else self._conv(f"{name}.2", channels, channels, 3),
        )

    def _transformer(self, name: str) -> Transformer:
        """Fold projections: a score is (Wq n) . (Wk m) = (Wk' Wq n) . m, the output Wo Wv m."""
        config, channels, heads = self._config, self._config.channels, self._config.estimator_heads
        inner = heads * config.head_dim
        query, key, value = (
            self._wide(f"{name}.attn1.to_{part}.weight", inner, channels).view(heads, -1, channels)
            for part in "qkv"
        )
        out = self._wide(f"{name}.attn1.to_out.0.weight", channels, inner).view(channels, heads, -1)
        products = torch.einsum("hdm,hdn->hmn", key, query) * config.head_dim**-0.5
        folded = torch.einsum("chd,hdm->chm", out, value)
        return Transformer(
            norm_attention=self.norm(f"{name}.norm1", channels),
            query=products.reshape(heads * channels, channels).to(self._dtype),
            out=Affine(
                folded.reshape(channels, heads * channels).to(self._dtype),
                self._kept(f"{name}.attn1.to_out.0.bias", channels),
            ),
            norm_ffn=self.norm(f"{name}.norm3", channels),
            first=self._linear(f"{name}.ff.net.0.proj", channels, 4 * channels),
            second=self._linear(f"{name}.ff.net.2", 4 * channels, channels),
        )


def _joined(parts: Sequence[Affine]) -> Affine:
    """The outputs of some products one after another."""
    return Affine(
        torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    )
