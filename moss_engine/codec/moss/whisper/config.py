"""The speech encoder of a published codec folder: config.json, tensor names and shapes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.codec.moss.whisper.features import MAX_PIECE_SAMPLES, WHISPER_MEL
from moss_engine.models.checkpoint import FILE_NAME, check_tensors
from moss_engine.models.fingerprint import samples_of
from moss_engine.models.tensor_file import StoredTensor, read_header

CONFIG_NAME = "config.json"
PREFIX = "encoder."
TRAINING_ONLY = (
    "embed_positions2.weight",
    "ema_count",
    "ema_weight",
    "layer_norm.weight",
    "layer_norm.bias",
)
"""Tensors under `encoder.` that training left behind; beside them, the layers above the codebook.
"""
LARGEST = 1 << 20

_COUNTS = {
    "d_model": "d_model",
    "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "ffn_dim",
    "quantize_position": "num_layers",
    "max_source_positions": "max_steps",
    "quantize_vocab_size": "num_codes",
    "pooling_kernel_size": "steps_per_code",
    "encoder_layers": "declared_layers",
}
_FIXED = {
    "architectures": ["WhisperVQEncoder"],
    "num_mel_bins": WHISPER_MEL.num_mels,
    "pooling_type": "avg",
    "activation_function": "gelu",
    "encoder_causal_attention": True,
    "encoder_causal_convolution": True,
    "quantize_encoder_only": True,
    "scale_embedding": False,
}


@dataclass(frozen=True)
class WhisperVqConfig:
    """Sizes of the encoder. A step is 20 ms, two frames; `num_layers` are run of the
    `declared_layers`."""

    d_model: int
    num_heads: int
    ffn_dim: int
    num_layers: int
    max_steps: int
    num_codes: int
    steps_per_code: int
    declared_layers: int

    @property
    def max_codes(self) -> int:
        return self.max_steps // self.steps_per_code

    @staticmethod
    def from_folder(folder: Path) -> WhisperVqConfig:
        """Read config.json; raises CheckpointError that names the file and the field."""
        path = folder / CONFIG_NAME
        values = read_json(
            path,
            missing=f"{path} is missing; point --codec at the published MOSS-Speech codec.",
            again="download the codec again.",
        )
        return WhisperVqConfig.from_dict(values, source=str(path))

    @staticmethod
    def from_dict(values: dict[str, Any], *, source: str) -> WhisperVqConfig:
        wrong = [
            f"{name} is {values.get(name)!r} instead of {value!r}"
            for name, value in _FIXED.items()
            if values.get(name) != value
        ]
        wrong += [
            f"{name} is {values.get(name)!r}, no size"
            for name in _COUNTS
            if type(values.get(name)) is not int or not 0 < values[name] <= LARGEST
        ]
        if not wrong:
            wrong = _inconsistencies(values)
        if wrong:
            raise CheckpointError(
                f"{source} describes another speech encoder ({'; '.join(wrong)}); "
                "use the published MOSS-Speech codec."
            )
        return WhisperVqConfig(**{ours: values[theirs] for theirs, ours in _COUNTS.items()})


def _inconsistencies(values: dict[str, Any]) -> list[str]:
    wrong = []
    if values["d_model"] % values["encoder_attention_heads"]:
        wrong.append("d_model is no multiple of encoder_attention_heads")
    if values.get("pooling_position") != values["quantize_position"]:
        wrong.append(
            f"pooling_position is {values.get('pooling_position')!r}, not quantize_position"
        )
    if values["quantize_position"] > values["encoder_layers"]:
        wrong.append("quantize_position lies above encoder_layers")
    steps = MAX_PIECE_SAMPLES // WHISPER_MEL.hop_size // 2
    if values["max_source_positions"] != steps:
        wrong.append(f"max_source_positions is {values['max_source_positions']} instead of {steps}")
    elif steps % values["pooling_kernel_size"]:
        wrong.append("pooling_kernel_size does not divide max_source_positions")
    return wrong


def expected_tensors(config: WhisperVqConfig) -> dict[str, tuple[int, ...]]:
    """Published names and shapes of the tensors that are read (246 at the published size)."""
    dim, ffn = config.d_model, config.ffn_dim
    expected: dict[str, tuple[int, ...]] = {
        "conv1.weight": (dim, WHISPER_MEL.num_mels, 3), "conv1.bias": (dim,),
        "conv2.weight": (dim, dim, 3), "conv2.bias": (dim,),
        "embed_positions.weight": (config.max_steps, dim),
        "codebook.weight": (config.num_codes, dim),
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {"self_attn.k_proj.weight": (dim, dim)}
    for name, (rows, columns) in {
        "self_attn.q_proj": (dim, dim),
        "self_attn.v_proj": (dim, dim),
        "self_attn.out_proj": (dim, dim),
        "fc1": (ffn, dim),
        "fc2": (dim, ffn),
    }.items():
        layer |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        layer |= {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}
    for i in range(config.num_layers):
        expected |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {PREFIX + name: shape for name, shape in expected.items()}


def read_encoder_header(folder: Path, config: WhisperVqConfig) -> dict[str, StoredTensor]:
    """The encoder's stored tensors, checked by name and shape from the header alone.

    What lies outside `encoder.` belongs to parts that are never run. Raises CheckpointError for a
    missing tensor, a wrong shape, and for a name under `encoder.` that is neither expected nor
    known to be training's.
    """
    path = folder / FILE_NAME
    stored = {
        name: tensor
        for name, tensor in read_header(path).items()
        if name.startswith(PREFIX) and not is_training_only(name, config)
    }
    check_tensors(path, stored, expected_tensors(config))
    return stored


def is_training_only(name: str, config: WhisperVqConfig) -> bool:
    """Whether a tensor under `encoder.` is left over from training: never read, and no fault."""
    inner = name.removeprefix(PREFIX)
    layer = re.match(r"layers\.(\d+)\.", inner)
    if layer:
        return config.num_layers <= int(layer[1]) < config.declared_layers
    return inner in TRAINING_ONLY


def codec_digest(folder: Path) -> str:
    """A digest of the encoder: a voice's codes belong to one codec only."""
    config = WhisperVqConfig.from_folder(folder)
    return hashlib.sha256(
        repr(config).encode() + samples_of(read_encoder_header(folder, config))
    ).hexdigest()
