"""The tensors of an engine whose weights are bound, which is built in three parts: ids to hidden
rows, some layers, and both heads. The layers are run again and again with other weights, so that
the time to build does not grow with depth.

B, R and T are those of `runtime.tensorrt.tensors`: sequences, rows of each, and B * R.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from moss_engine.api.errors import EngineFileError
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.tensorrt.tensors import (
    ALIGNMENT,
    ANY,
    NEW_KV,
    ROTARY,
    Profile,
    TensorSpec,
    outputs,
    profile_shapes,
    step_inputs,
    weight_inputs,
)

EMBED, LAYERS, HEADS = PARTS = ("embed", "layers", "heads")
HIDDEN, LAYERED, TEXT_HIDDEN, AUDIO_HIDDEN = "hidden", "layered", "text_hidden", "audio_hidden"
_LENGTHS = struct.Struct("<3Q")


def layers_at_a_time(config: ModelConfig) -> int:
    """Layers of the part that is run again and again: as many as divide the shared ones and those
    of a branch."""
    return math.gcd(config.num_shared_layers, config.num_modality_layers)


def part_inputs(
    part: str,
    config: ModelConfig,
    block_size: int,
    max_seq_len: int,
    dtype: str,
    *,
    transposed: bool,
) -> dict[str, TensorSpec]:
    """dtype: of weights and pool. Hidden rows are float32: [B, R, hidden] for the layers, [T,
    hidden] for the heads. With `transposed`, matrices of products are [inputs, outputs] instead of
    the layout's [outputs, inputs].
    """
    step = step_inputs(config, block_size, dtype)
    rows = TensorSpec("float32", (ANY, config.hidden_size), ("tokens",))
    tensors = {
        EMBED: {"ids": step["ids"]},
        LAYERS: {
            HIDDEN: TensorSpec("float32", (ANY, ANY, config.hidden_size), ("sequences", "rows")),
            **{
                name: step[name]
                for name in ("cached", "tables", "past_index", "row_index", "kv_pool")
            },
        },
        HEADS: {TEXT_HIDDEN: rows, AUDIO_HIDDEN: rows, "select": step["select"]},
    }[part]
    return tensors | part_weights(part, config, max_seq_len, dtype, transposed=transposed)


def part_weights(
    part: str, config: ModelConfig, max_seq_len: int, dtype: str, *, transposed: bool
) -> dict[str, TensorSpec]:
    """The weights of a part by the names that it gives them: its layers count from 0."""
    found = {}
    for name, spec in weight_inputs(config, max_seq_len, dtype).items():
        first, *rest = name.split(".")
        belongs = {
            EMBED: first == "embed",
            LAYERS: name == ROTARY
            or (first == "layers" and int(rest[0]) < layers_at_a_time(config)),
            HEADS: first in ("text", "audio"),
        }[part]
        if belongs:
            found[name] = (
                replace(spec, shape=spec.shape[::-1])
                if transposed and is_transposed(name, spec.shape)
                else spec
            )
    return found


def is_transposed(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight of the layout is a matrix that hidden rows are multiplied by."""
    return len(shape) == 2 and name != ROTARY and not name.startswith("embed.")


def part_outputs(part: str, config: ModelConfig, dtype: str) -> dict[str, TensorSpec]:
    """Hidden rows are [T, hidden]; `new_kv` is that of the part's layers."""
    whole = outputs(config, dtype)
    new_kv = whole.pop(NEW_KV)
    rows = TensorSpec("float32", (ANY, config.hidden_size))
    return {
        EMBED: {HIDDEN: rows},
        HEADS: whole,
        LAYERS: {
            LAYERED: rows,
            NEW_KV: replace(new_kv, shape=(layers_at_a_time(config), *new_kv.shape[1:])),
        },
    }[part]


def part_profile_shapes(
    part: Mapping[str, TensorSpec], profile: Profile, config: ModelConfig, limits: Limits
) -> dict[str, list[tuple[int, ...]]]:
    """Smallest, usual and largest shape of a part's open inputs."""
    shapes = profile_shapes(profile, config, limits)
    for i in range(3):
        for name, shape in hidden_shapes(profile.sequences[i], profile.rows[i], config).items():
            shapes.setdefault(name, []).append(shape)
    return {name: shapes[name] for name, spec in part.items() if ANY in spec.shape}


def hidden_shapes(sequences: int, rows: int, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    total = (sequences * rows, config.hidden_size)
    return {HIDDEN: (sequences, rows, config.hidden_size), TEXT_HIDDEN: total, AUDIO_HIDDEN: total}


def new_kv_values(
    config: ModelConfig, num_layers: int, num_rows: int, itemsize: int
) -> tuple[int, int]:
    """How many values the new rows' keys and values of some layers are, and how far behind them the
    next layers' begin: an address that an engine takes.
    """
    values = num_layers * num_rows * 2 * config.num_key_value_heads * config.head_dim
    return values, -(-values * itemsize // ALIGNMENT) * ALIGNMENT // itemsize


def bound_weight(name: str, tensor: Tensor, dtype: torch.dtype, *, transposed: bool) -> Tensor:
    """A weight of the layout as the engine reads it: itself where nothing has to change."""
    tensor = tensor.to(dtype)
    return (
        tensor.t().contiguous()
        if transposed and is_transposed(name, tuple(tensor.shape))
        else tensor
    )


def join_plans(plans: Mapping[str, bytes]) -> bytes:
    """One file of the three parts' plans."""
    return _LENGTHS.pack(*(len(plans[part]) for part in PARTS)) + b"".join(
        plans[part] for part in PARTS
    )


def split_plan(plan: bytes) -> dict[str, bytes]:
    """Raises EngineFileError for a file that does not hold what its first bytes say."""
    whole = memoryview(plan)
    lengths = _LENGTHS.unpack(whole[: _LENGTHS.size]) if len(whole) >= _LENGTHS.size else (0, 0, 0)
    if sum(lengths) + _LENGTHS.size != len(whole):
        raise EngineFileError(
            f"The plan holds {len(whole)} bytes and not the three parts of an engine with bound "
            "weights; build the engine again with `python -m scripts.build_engine`."
        )
    found, at = {}, _LENGTHS.size
    for part, length in zip(PARTS, lengths, strict=True):
        found[part] = bytes(whole[at : at + length])
        at += length
    return found
