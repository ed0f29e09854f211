"""The flow's sizes and the tensors of its checkpoint: `flow/config.yaml` and `flow*.pt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.yaml_file import find, read_yaml


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
_LAYERS = ("num_blocks", "num_up_blocks", "transformers", "num_mid_blocks")
MOST, MOST_BLOCKS = 1 << 20, 256  # of any network that could be meant
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
    for name, default in vars(FlowConfig()).items():
        value = getattr(config, name)
        kinds = (int,) if isinstance(default, int) else (int, float)
        most = MOST_BLOCKS if name in _LAYERS else MOST
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= most:
            raise CheckpointError(
                f"{path} has {name} {value!r}, which is no size; fetch the codec again."
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
