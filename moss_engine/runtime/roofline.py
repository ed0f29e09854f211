"""What one step of the network must read and multiply."""

from __future__ import annotations

from dataclasses import dataclass

from moss_engine.models.config import ModelConfig

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5 + 2 / 128}
"""Of one weight of a layer; 4 bits have a 16-bit scale for each 128 of them, and heads have 8."""


@dataclass(frozen=True)
class StepNeeds:
    """What a step of one sequence reads once, and multiplies and adds by: the weights of the trunk,
    of the branches and of the heads, in a number format."""

    dtype: str
    trunk: int
    branches: int
    heads: int

    @property
    def weights(self) -> int:
        return self.trunk + self.branches + self.heads

    @property
    def in_float8(self) -> int:
        return {"float8": self.trunk, "float8-all": self.weights}.get(self.dtype, 0)

    @property
    def weight_bytes(self) -> int:
        if self.dtype.startswith("float8"):
            return 2 * self.weights - self.in_float8
        value_bytes = VALUE_BYTES[self.dtype]
        return round((self.trunk + self.branches) * value_bytes + self.heads * max(1, value_bytes))


def needs_of(config: ModelConfig, dtype: str, *, text_logits: bool = True) -> StepNeeds:
    """Of a step that samples text, too; while a reply speaks, without `text_logits`, the text head
    is not needed, and of the last text layer only keys and values are."""
    rows = config.num_attention_heads + config.num_key_value_heads
    layer = config.hidden_size * (2 * rows * config.head_dim + 3 * config.intermediate_size)
    kept = config.hidden_size * 2 * config.num_key_value_heads * config.head_dim
    branches = 2 * config.num_modality_layers * layer - (0 if text_logits else layer - kept)
    head_rows = config.audio_vocab_size + (config.vocab_size if text_logits else 0)
    trunk = config.num_shared_layers * layer
    return StepNeeds(dtype, trunk, branches, head_rows * config.hidden_size)
