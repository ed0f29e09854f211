"""The merged matrices that runtimes and engine builders read, and how many bits each of them has.

q, k and v of a layer are one matrix, gate and up another; layers are numbered by their KV slot, so
the branches have numbers of their own. Nothing else is changed: matrices are [outputs, inputs], and
every tensor of the checkpoint is used exactly once.

Matrices that serving keeps as one have the same bits, so bits belong to parts: "trunk.3.qkv",
"branches.0.down" (both branches), "heads". What is not named has 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.models.checkpoint import (
    check_tensors,
    expected_tensors,
    read_index,
    slot_prefixes,
    stream_tensors,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.packed import group_of

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
        """Whether it is a matrix that rows are multiplied with, and no embedding table."""
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


def stream_parts(
    folder: Path, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The layout's tensors of a checkpoint, one at a time, on the CPU.

    All names and shapes are checked before the first is read. Raises CheckpointError.
    """
    layout, shapes = parts(config), expected_tensors(config)
    in_order = {source: shapes[source] for part in layout.values() for source in part.sources}
    tensors = stream_tensors(folder, in_order, dtype=dtype)
    for name, part in layout.items():
        joined = [next(tensors)[1] for _ in part.sources]
        yield name, torch.cat(joined) if len(joined) > 1 else joined[0]


Bits = Mapping[str, int]
FORMATS = {"int8": 8, "int4": 4}
"""Formats that a runtime can make while it loads -> bits of the layers; heads always have 8."""
HEADS_BITS = 8
_STORED = {torch.int8: 8, torch.uint8: 4}


def parts_of(config: ModelConfig) -> dict[str, list[str]]:
    """Every part with the names of its matrices."""
    layers = [f"trunk.{i}" for i in range(config.num_shared_layers)]
    layers += 2 * [f"branches.{i}" for i in range(config.num_modality_layers)]
    found: dict[str, list[str]] = {}
    for name, part in parts(config).items():
        if part.is_linear:
            first, *rest = name.split(".")
            owner = f"{layers[int(rest[0])]}.{rest[1]}" if first == "layers" else "heads"
            found.setdefault(owner, []).extend(part.sources)
    return found


def bits_of_format(config: ModelConfig, name: str) -> Bits:
    """The bits of "int8" or "int4". Raises ConfigError for sizes that have no such format."""
    require_sizes(config, FORMATS[name])
    return {part: HEADS_BITS if part == "heads" else FORMATS[name] for part in parts_of(config)}


def require_sizes(config: ModelConfig, bits: int) -> None:
    """Raise ConfigError unless every matrix can have 8 or 4 `bits`: 4 have a scale for each group
    of inputs (`packed.GROUPS`), 8 are read by kernels in whole 64-bit integers."""
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads x head_dim": config.num_attention_heads * config.head_dim,
    }
    odd = [
        f"{name} {size}"
        for name, size in sizes.items()
        if (size % 16 if bits == 8 else group_of(size) is None)
    ]
    if odd:
        step = 16 if bits == 8 else 32
        raise ConfigError(
            f"int{bits} needs sizes that are multiples of {step}, but the model has "
            f"{', '.join(odd)}; use --dtype bfloat16."
        )


def stored_bits(folder: Path, config: ModelConfig) -> Bits:
    """The bits of the parts that a checkpoint folder stores in 8 or 4; empty for any other folder.

    Reads headers only. Raises CheckpointError for damaged files, for those of another model, and
    where the matrices of one part differ.
    """
    stored = read_index(folder)
    check_tensors(folder, stored, expected_tensors(config))
    found: dict[str, int] = {}
    for part, names in parts_of(config).items():
        kinds = {_STORED.get(stored[name].dtype, 16) for name in names}
        if len(kinds) > 1:
            raise CheckpointError(
                f"{folder} stores the matrices of {part} with {' and '.join(map(str, kinds))} "
                "bits; quantise the checkpoint again with `python -m scripts.quantize`."
            )
        if (bits := kinds.pop()) < 16:
            found[part] = bits
    return found
