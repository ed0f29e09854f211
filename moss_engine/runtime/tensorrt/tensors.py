"""The tensors of an engine of TensorRT or TensorRT-RTX: which there are, of which type and shape.
Builder and runtime both follow this.

An engine of float8 is one plan, with its weights. Any other is three, whose weights are inputs: ids
to hidden rows, some layers, and both heads; the layers are run again and again with other weights,
so that the time to build does not grow with depth.

Sizes: B sequences of R rows each, T = B * R rows in all, M blocks of cached rows a sequence, K = M
* block_size cached rows, N tiles of the pool. A step has either R = 1 (decode) or B = 1 (prefill).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from moss_engine.api.errors import EngineFileError
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import entries_of
from moss_engine.models.network import rotary_pairs
from moss_engine.runtime.base import Limits

ANY = -1
"""A size that the runtime chooses, within the profile."""
ROTARY = "rotary"
LOGITS, AUDIO_LOGITS, NEW_KV = "logits", "audio_logits", "new_kv"
OUTPUTS = {LOGITS: "vocab_size", AUDIO_LOGITS: "audio_vocab_size"}
"""Both heads, by the configuration's name of their size."""
HIDDEN, LAYERED, TEXT_HIDDEN, AUDIO_HIDDEN = "hidden", "layered", "text_hidden", "audio_hidden"
EMBED, LAYERS, HEADS = PARTS = ("embed", "layers", "heads")
WHOLE = "whole"
FLOAT8 = "float8"
ALIGNMENT = 256
"""Bytes: what the library asks of every address."""


@dataclass(frozen=True)
class TensorSpec:
    """`dtype` is the name that torch gives it. Sizes of one name in `sizes` are equal in every
    step; "" is a size without a name."""

    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[str, ...] = ()


Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class EngineTensors:
    """Of one engine. `limits` and `dtype` are those that it is built for."""

    config: ModelConfig
    limits: Limits
    dtype: str

    @property
    def is_bound(self) -> bool:
        """Whether the weights are inputs; those of float8 are part of the plan, as TensorRT wants
        their scales when it builds."""
        return self.dtype != FLOAT8

    @property
    def io_dtype(self) -> str:
        """The format of everything but float8 weights: of the pool, too."""
        return "bfloat16" if self.dtype == FLOAT8 else self.dtype

    @property
    def layers_at_a_time(self) -> int:
        """Layers of the part that is run again and again: as many as divide the shared ones and
        those of a branch."""
        return math.gcd(self.config.num_shared_layers, self.config.num_modality_layers)

    def inputs(self, part: str) -> dict[str, TensorSpec]:
        """Inputs of a plan.

        ids [B, R, 2] text and audio; cached [B] rows in the pool; tables [B, M] their blocks;
        select [B] rows of the T whose logits are wanted; past_index [M, block_size] and row_index
        [R] count 0, 1, 2, ... ; kv_pool is one tile of `block_size` rows for every block, layer,
        key or value, and head: [blocks * layers * 2 * kv_heads, block_size, head_dim]. Hidden rows
        are float32.
        """
        config, block_size = self.config, self.limits.block_size
        rows = TensorSpec("float32", (ANY, config.hidden_size), ("tokens",))
        known = {
            "ids": TensorSpec("int32", (ANY, ANY, 2), ("sequences", "rows")),
            "cached": TensorSpec("int32", (ANY,), ("sequences",)),
            "tables": TensorSpec("int32", (ANY, ANY), ("sequences", "blocks")),
            "past_index": TensorSpec("int32", (ANY, block_size), ("blocks",)),
            "row_index": TensorSpec("int32", (ANY,), ("rows",)),
            "kv_pool": TensorSpec(self.io_dtype, (ANY, block_size, config.head_dim), ("tiles",)),
            "select": TensorSpec("int32", (ANY,), ("sequences",)),
            HIDDEN: TensorSpec("float32", (ANY, ANY, config.hidden_size), ("sequences", "rows")),
            TEXT_HIDDEN: rows,
            AUDIO_HIDDEN: rows,
        }
        attention = ("cached", "tables", "past_index", "row_index", "kv_pool")
        names = {
            WHOLE: ("ids", *attention, "select"),
            EMBED: ("ids",),
            LAYERS: (HIDDEN, *attention),
            HEADS: (TEXT_HIDDEN, AUDIO_HIDDEN, "select"),
        }[part]
        found = {name: known[name] for name in names}
        return found if part == WHOLE else found | self.weights(part)

    def weights(self, part: str) -> dict[str, TensorSpec]:
        """The weights of a part by the names that it gives them: its layers count from 0."""
        found = {}
        for name, spec in weight_specs(self.config, self.limits, self.io_dtype).items():
            first, *rest = name.split(".")
            owner = {"embed": EMBED, ROTARY: LAYERS, "layers": LAYERS}.get(first, HEADS)
            is_later = first == "layers" and int(rest[0]) >= self.layers_at_a_time
            if owner == part and not is_later:
                found[name] = spec
        return found

    def outputs(self, part: str) -> dict[str, TensorSpec]:
        """Logits of the selected rows, float32; and every layer's keys (normed, rotated) and values
        of all rows, for the pool and in its format. Hidden rows are [T, hidden]."""
        config = self.config
        logits = {
            name: TensorSpec("float32", (ANY, getattr(config, size)))
            for name, size in OUTPUTS.items()
        }
        num_layers = config.num_layers if part == WHOLE else self.layers_at_a_time
        new_kv = TensorSpec(
            self.io_dtype, (num_layers, ANY, 2 * config.num_key_value_heads, config.head_dim)
        )
        rows = TensorSpec("float32", (ANY, config.hidden_size))
        return {
            WHOLE: {**logits, NEW_KV: new_kv},
            EMBED: {HIDDEN: rows},
            LAYERS: {LAYERED: rows, NEW_KV: new_kv},
            HEADS: logits,
        }[part]

    def step_shapes(self, sequences: int, rows: int, blocks: int, limits: Limits) -> Shapes:
        """Shapes of every open input of one step, whichever part has it; `limits` are those of the
        pool."""
        total = (sequences * rows, self.config.hidden_size)
        return {
            "ids": (sequences, rows, 2),
            "cached": (sequences,),
            "tables": (sequences, blocks),
            "select": (sequences,),
            "past_index": (blocks, limits.block_size),
            "row_index": (rows,),
            "kv_pool": pool_shape(self.config, limits),
            HIDDEN: (sequences, rows, self.config.hidden_size),
            TEXT_HIDDEN: total,
            AUDIO_HIDDEN: total,
        }

    def profile_shapes(self, part: str, profile: Profile) -> dict[str, list[tuple[int, ...]]]:
        """Smallest, usual and largest shape of a plan's open inputs."""
        sizes = zip(profile.sequences, profile.rows, profile.blocks, strict=True)
        smallest, usual, largest = (self.step_shapes(*size, self.limits) for size in sizes)
        # one block, and that of padding
        tiles = pool_shape(self.config, replace(self.limits, num_blocks=1))
        smallest["kv_pool"] = tiles
        return {
            name: [smallest[name], usual[name], largest[name]]
            for name, spec in self.inputs(part).items()
            if ANY in spec.shape
        }


@dataclass(frozen=True)
class Profile:
    """Smallest, usual and largest size of one kind of step: sequences, rows of each, blocks of
    cached rows of each."""

    sequences: tuple[int, int, int]
    rows: tuple[int, int, int]
    blocks: tuple[int, int, int]

    def takes(self, *sizes: int) -> bool:
        ranges = (self.sequences, self.rows, self.blocks)
        return all(low <= size <= high for size, (low, _, high) in zip(sizes, ranges, strict=True))


USUAL_ROWS = 600
"""The context to tune for."""


def profiles(limits: Limits) -> list[Profile]:
    """One sequence's decode, several sequences' decode, and prefill."""
    most = limits.max_blocks
    blocks = (1, min(most, -(-USUAL_ROWS // limits.block_size)), most)
    found = [Profile((1, 1, 1), (1, 1, 1), blocks)]
    if limits.max_batch > 1:
        several = (2, min(4, limits.max_batch), limits.max_batch)
        found.append(Profile(several, (1, 1, 1), blocks))
    if limits.max_step_rows > 1:
        rows = (2, min(512, limits.max_step_rows), limits.max_step_rows)
        found.append(Profile((1, 1, 1), rows, (1, 1, most)))
    return found


def weight_specs(config: ModelConfig, limits: Limits, dtype: str) -> dict[str, TensorSpec]:
    """The layout's tensors and the rotary table. In float8 the layers' matrices have two scales
    beside them, of the weights and of their inputs."""
    found = {
        name: TensorSpec(str(stored).removeprefix("torch."), shape)
        for name, (stored, shape) in entries_of(config, dtype).items()
    }
    return {ROTARY: TensorSpec("float32", (limits.max_seq_len, config.head_dim)), **found}


def rotary_table(config: ModelConfig, num_positions: int, device: torch.device) -> Tensor:
    """float32 [positions, head_dim]: the cosines of every pair, then its sines."""
    return rotary_pairs(config, num_positions, device).flatten(1)


def pool_shape(config: ModelConfig, limits: Limits) -> tuple[int, int, int]:
    """Of kv_pool, with one block more than the limits count, which belongs to nobody: padding is
    written there."""
    tiles = (limits.num_blocks + 1) * config.num_layers * 2 * config.num_key_value_heads
    return tiles, limits.block_size, config.head_dim


def new_kv_values(
    config: ModelConfig, num_layers: int, num_rows: int, itemsize: int
) -> tuple[int, int]:
    """How many values the new rows' keys and values of some layers are, and how far behind them the
    next layers' begin: an address that an engine takes.
    """
    values = num_layers * num_rows * 2 * config.num_key_value_heads * config.head_dim
    return values, -(-values * itemsize // ALIGNMENT) * ALIGNMENT // itemsize


def join_plans(plans: Mapping[str, bytes]) -> bytes:
    """One file of the three parts' plans, as safetensors keeps bytes."""
    return save({part: np.frombuffer(plans[part], dtype=np.uint8) for part in PARTS})


def split_plan(plan: bytes) -> dict[str, bytes]:
    """Raises EngineFileError for a file that does not hold the three parts."""
    try:
        found = load(plan)
        return {part: found[part].tobytes() for part in PARTS}
    except (SafetensorError, KeyError) as error:
        raise EngineFileError(
            f"The plan does not hold the three parts of an engine without weights ({error}); "
            "build the engine again with `python -m scripts.build_engine`."
        ) from None
