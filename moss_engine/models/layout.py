"""The layout that engine builders read: merged tensors under one set of names per layer slot.

q, k and v of a layer are one matrix, gate and up another; layers are numbered by their KV slot, so
the branches have numbers of their own. Nothing else is changed: matrices are [outputs, inputs], and
every tensor of the checkpoint is used exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import (
    SCALE_SUFFIX,
    check_tensors,
    expected_tensors,
    read_finite,
    read_index,
    widen_stored,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.tensor_file import StoredTensor

MERGED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "input_norm": ("input_layernorm",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "mlp_norm": ("post_attention_layernorm",),
}


@dataclass(frozen=True)
class Part:
    """One tensor of the layout: the checkpoint's tensors that are joined along their first axis."""

    sources: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def is_linear(self) -> bool:
        """A matrix that multiplies rows, which embedding tables do not."""
        return len(self.shape) == 2 and "embed" not in self.sources[0]


def parts(config: ModelConfig) -> dict[str, Part]:
    """The layout's tensors by name, in the order of the network."""
    shapes = expected_tensors(config)
    sources = {
        "embed.text": ("model.embed_tokens.weight",),
        "embed.audio": ("model.audio_embed.weight",),
    }
    for slot, prefix in enumerate(slot_prefixes(config)):
        sources |= {
            f"layers.{slot}.{name}": tuple(f"{prefix}{source}.weight" for source in merged)
            for name, merged in MERGED.items()
        }
    for branch in ("text", "audio"):
        sources |= {
            f"{branch}.norm": (f"model.{branch}_norm.weight",),
            f"{branch}.head": (f"{branch}_lm_head.weight",),
        }
    used = [source for names in sources.values() for source in names]
    assert sorted(used) == sorted(shapes), "a tensor of the checkpoint is used twice or not at all"
    return {
        name: Part(names, (sum(shapes[source][0] for source in names), *shapes[names[0]][1:]))
        for name, names in sources.items()
    }


def slot_prefixes(config: ModelConfig) -> list[str]:
    """The checkpoint's prefix of every KV slot: shared layers, text branch, audio branch."""
    blocks = (
        ("shared_block", config.num_shared_layers),
        ("text_block", config.num_modality_layers),
        ("audio_block", config.num_modality_layers),
    )
    return [f"model.{block}.layers.{i}." for block, num_layers in blocks for i in range(num_layers)]


def stream_parts(
    folder: Path, config: ModelConfig, dtype: torch.dtype, names: list[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The layout's tensors (or the named ones) of a checkpoint, one at a time, on the CPU.

    All names and shapes are checked before the first is read. Raises CheckpointError; also for a
    value that becomes infinite in `dtype`.
    """
    stored = read_index(folder)
    check_tensors(folder, stored, expected_tensors(config))
    layout = parts(config)
    for name in names or layout:
        yield name, _join(folder, name, layout[name], stored, dtype)


def _join(
    folder: Path, name: str, part: Part, stored: Mapping[str, StoredTensor], dtype: torch.dtype
) -> Tensor:
    if len(part.sources) == 1 and stored[part.sources[0]].dtype is dtype:
        return read_finite(stored[part.sources[0]])
    joined, start = torch.empty(part.shape, dtype=dtype), 0
    for source in part.sources:
        tensor = read_finite(stored[source])
        if tensor.dtype in (torch.int8, torch.uint8):
            tensor = widen_stored(tensor, read_finite(stored[source + SCALE_SUFFIX]))
        joined[start : start + len(tensor)].copy_(tensor)
        start += len(tensor)
    assert start == len(joined), "a part is not filled"
    if dtype is torch.float16 and not bool(joined.isfinite().all()):
        raise CheckpointError(
            f"{folder}: a value of {name} is beyond float16; convert with --dtype bf16."
        )
    return joined
