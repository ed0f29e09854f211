"""How many bits the weights of each product have: chosen by a format, or found in a folder.

Matrices that serving keeps as one have the same bits, so bits belong to parts: "trunk.3.qkv",
"branches.0.down" (both branches), "heads". What is not named has 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.models.checkpoint import check_tensors, expected_tensors, read_index
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import MERGED
from moss_engine.models.packed import group_of

Bits = Mapping[str, int]
FORMATS = {"int8": 8, "int4": 4}
"""Formats that a runtime can make while it loads: bits of the layers; heads have 8 in both."""
HEADS_BITS = 8
_BLOCKS = {"shared_block": "trunk", "text_block": "branches", "audio_block": "branches"}
_MERGED_OF = {source: merged for merged, sources in MERGED.items() for source in sources}
_STORED = {torch.int8: 8, torch.uint8: 4}


def part_of(name: str) -> str | None:
    """The part that a tensor of a checkpoint belongs to; None for norms and embedding tables."""
    if name in ("text_lm_head.weight", "audio_lm_head.weight"):
        return "heads"
    fields = name.split(".")
    if len(fields) < 6 or fields[1] not in _BLOCKS or not fields[5].endswith("_proj"):
        return None
    return f"{_BLOCKS[fields[1]]}.{fields[3]}.{_MERGED_OF['.'.join(fields[4:6])]}"


def parts_of(config: ModelConfig) -> dict[str, list[str]]:
    """Every part with the names of its matrices."""
    found: dict[str, list[str]] = {}
    for name in expected_tensors(config):
        if (part := part_of(name)) is not None:
            found.setdefault(part, []).append(name)
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
