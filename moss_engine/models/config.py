"""`config.json` of a MOSS-Speech checkpoint, read strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.api.tokens import SpecialIds

MODEL_TYPE = "moss_speech"
LARGEST = {"num_shared_layers": 1024, "num_modality_layers": 1024}
"""Bounds that no network reaches, so that a damaged file is refused before anything is sized by it.
"""
LARGEST_OTHER = 1 << 24


@dataclass(frozen=True)
class ModelConfig:
    """Shape and ids of a MOSS-Speech network; the field names are those of `config.json`.

    No field has a default: a checkpoint that leaves one out (the RoPE base above all) is refused.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_shared_layers: int
    num_modality_layers: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    vocab_size: int
    audio_vocab_size: int
    sosp_token_id: int
    eosp_token_id: int
    modality_pad_token_id: int
    audio_pad_token_id: int
    eos_token_id: int
    pad_token_id: int

    @property
    def num_layers(self) -> int:
        """Layers with a KV slot of their own: shared, then text branch, then audio branch."""
        return self.num_shared_layers + 2 * self.num_modality_layers

    @property
    def special(self) -> SpecialIds:
        return SpecialIds(
            sosp=self.sosp_token_id,
            eosp=self.eosp_token_id,
            modality_pad=self.modality_pad_token_id,
            audio_pad=self.audio_pad_token_id,
            im_end=self.eos_token_id,
            text_pad=self.pad_token_id,
        )

    @staticmethod
    def from_file(path: Path) -> ModelConfig:
        """Read `config.json`.

        Raises CheckpointError that names the file and the field if it is missing, unreadable, of
        another model type, or inconsistent.
        """
        complete = f"{path} is missing; name a complete MOSS-Speech folder."
        values = read_json(path, missing=complete)
        return ModelConfig.from_dict(values, source=str(path))

    @staticmethod
    def from_dict(values: dict[str, object], *, source: str) -> ModelConfig:
        def refuse(reason: str) -> CheckpointError:
            return CheckpointError(
                f"{source}: {reason}; use the config.json that belongs to the weights."
            )

        if values.get("model_type") != MODEL_TYPE:
            raise refuse(f"model_type is {values.get('model_type')!r}, not {MODEL_TYPE!r}")
        values = {**values, **assumed(values)}
        fields = {}
        for field in dataclasses.fields(ModelConfig):
            value = values.get(field.name)
            wanted = (int, float) if field.type == "float" else int
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise refuse(f"{field.name} is missing or not a number (found {value!r})")
            fields[field.name] = float(value) if field.type == "float" else value
        config = ModelConfig(**fields)
        for reason in _inconsistencies(config, values):
            raise refuse(reason)
        return config


PUBLISHED = ModelConfig(
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    num_shared_layers=32,
    num_modality_layers=4,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=40960,
    vocab_size=151680,
    audio_vocab_size=16512,
    sosp_token_id=151646,
    eosp_token_id=16384,
    modality_pad_token_id=151667,
    audio_pad_token_id=512,
    eos_token_id=151645,
    pad_token_id=151643,
)
"""The network of the published MOSS-Speech checkpoint."""


def assumed(values: Mapping[str, object]) -> dict[str, int]:
    """Ids for a config.json of a Qwen3-type checkpoint, which leaves some out and names several for
    others: those of the published vocabulary and its tokenizer. None are assumed for a vocabulary
    of another size."""
    if values.get("vocab_size") != PUBLISHED.vocab_size:
        return {}
    names = ("audio_pad_token_id", "pad_token_id", "eos_token_id")
    found = {name: getattr(PUBLISHED, name) for name in names if values.get(name) is None}
    several = values.get("eos_token_id")
    if isinstance(several, list) and PUBLISHED.eos_token_id in several:
        found["eos_token_id"] = PUBLISHED.eos_token_id
    return found


def _inconsistencies(config: ModelConfig, values: dict[str, object]) -> list[str]:
    """What in the file is contradictory, or asks for something that this network cannot do."""
    reasons = []
    positive = [f.name for f in dataclasses.fields(ModelConfig) if not f.name.endswith("_token_id")]
    reasons += [f"{name} must be positive" for name in positive if not getattr(config, name) > 0]
    reasons += [
        f"{name} is above {largest}"
        for name in positive
        if getattr(config, name) > (largest := LARGEST.get(name, LARGEST_OTHER))
    ]
    if reasons:
        return reasons
    if config.num_attention_heads % config.num_key_value_heads:
        reasons.append("num_attention_heads is not a multiple of num_key_value_heads")
    if config.head_dim % 2:
        reasons.append("head_dim is odd")
    declared = values.get("num_hidden_layers")
    if declared != config.num_shared_layers + config.num_modality_layers:
        reasons.append(
            f"num_hidden_layers is {declared!r}, not num_shared_layers + num_modality_layers"
        )
    text_ids = ("sosp_token_id", "modality_pad_token_id", "eos_token_id", "pad_token_id")
    for name, size in [
        *((n, config.vocab_size) for n in text_ids),
        ("eosp_token_id", config.audio_vocab_size),
        ("audio_pad_token_id", config.audio_vocab_size),
    ]:
        if not 0 <= getattr(config, name) < size:
            reasons.append(f"{name} lies outside its vocabulary of {size}")
    if len({getattr(config, name) for name in text_ids}) < len(text_ids):
        reasons.append("two of the special text ids are equal")
    unsupported = {
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "hidden_act": "silu",
    }
    if values.get("rope_scaling"):  # null and {} ask for none
        reasons.append(f"rope_scaling is {values['rope_scaling']!r}; this network supports none")
    for name, only in unsupported.items():
        if name in values and values[name] != only:
            reasons.append(f"{name} is {values[name]!r}; this network supports {only!r} only")
    return reasons
