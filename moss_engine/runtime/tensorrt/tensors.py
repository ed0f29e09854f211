"""The tensors of an engine of ours: which there are, of which type and shape. Builder and runtime
both follow this.

Sizes: B sequences of R rows each, T = B * R rows in all, M blocks of cached rows a sequence, K = M
* block_size cached rows, N tiles of the pool. A step has either R = 1 (decode) or B = 1 (prefill).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.models.converted import entries_of
from moss_engine.models.network import rotary_tables
from moss_engine.runtime.base import Limits

ANY = -1
"""A size that the runtime chooses, within the profile."""
ROTARY = "rotary"
LOGITS, AUDIO_LOGITS, NEW_KV = "logits", "audio_logits", "new_kv"
FLOAT8 = "float8"
ALIGNMENT = 256
"""Bytes: what the library asks of every address."""


@dataclass(frozen=True)
class TensorSpec:
    """`dtype` is the name that torch gives it. Sizes of one name in `sizes` are equal in every
    step."""

    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[str, ...] = ()


def base_dtype(dtype: str) -> str:
    """The format of everything but the layers' weights: an engine of float8 is one of bfloat16
    otherwise."""
    return "bfloat16" if dtype == FLOAT8 else dtype


def io_dtype_of(dtype: str, *, wide: bool) -> str:
    """The format of bound weights and of the pool: the engine's own, or float32 where the library
    would convert every float16 input to that in each step.
    """
    return "float32" if wide else base_dtype(dtype)


def step_inputs(config: ModelConfig, block_size: int, dtype: str) -> dict[str, TensorSpec]:
    """What changes from step to step, and the pool, in `dtype`.

    ids [B, R, 2] text and audio; cached [B] rows in the pool; tables [B, M] their blocks; select
    [B] rows of the T whose logits are wanted; past_index [M, block_size] and row_index [R] count 0,
    1, 2, ... ; kv_pool is one tile of `block_size` rows for every block, layer, key or value, and
    head: [blocks * layers * 2 * kv_heads, block_size, head_dim].
    """
    return {
        "ids": TensorSpec("int32", (ANY, ANY, 2), ("sequences", "rows")),
        "cached": TensorSpec("int32", (ANY,), ("sequences",)),
        "tables": TensorSpec("int32", (ANY, ANY), ("sequences", "blocks")),
        "select": TensorSpec("int32", (ANY,), ("sequences",)),
        "past_index": TensorSpec("int32", (ANY, block_size), ("blocks",)),
        "row_index": TensorSpec("int32", (ANY,), ("rows",)),
        "kv_pool": TensorSpec(base_dtype(dtype), (ANY, block_size, config.head_dim), ("tiles",)),
    }


def weight_inputs(config: ModelConfig, max_seq_len: int, dtype: str) -> dict[str, TensorSpec]:
    """The layout's tensors and the rotary table; inputs of a "bound" engine, constants of a "baked"
    one.

    In float8 the layers' matrices are float8 and have two scales beside them, of the weights and of
    their inputs.
    """
    found = {
        name: TensorSpec(str(stored).removeprefix("torch."), shape)
        for name, (stored, shape) in entries_of(config, dtype).items()
    }
    return {ROTARY: TensorSpec("float32", (max_seq_len, config.head_dim)), **found}


def outputs(config: ModelConfig, dtype: str) -> dict[str, TensorSpec]:
    """Logits of the selected rows, and every layer's keys (normed, rotated) and values of all rows,
    for the pool and in its `dtype`.
    """
    new_shape = (config.num_layers, ANY, 2 * config.num_key_value_heads, config.head_dim)
    return {
        LOGITS: TensorSpec("float32", (ANY, config.vocab_size)),
        AUDIO_LOGITS: TensorSpec("float32", (ANY, config.audio_vocab_size)),
        NEW_KV: TensorSpec(base_dtype(dtype), new_shape),
    }


def rotary_table(config: ModelConfig, num_positions: int, device: torch.device) -> Tensor:
    """float32 [positions, head_dim]: the cosines of every pair, then its sines."""
    half = config.head_dim // 2
    positions = torch.arange(num_positions, device=device)
    tables = rotary_tables(positions, config.head_dim, config.rope_theta, torch.float32)
    return torch.cat([table[:, 0, :half] for table in tables], dim=1).contiguous()


def pool_shape(config: ModelConfig, limits: Limits) -> tuple[int, int, int]:
    """Of kv_pool, with one block more than the limits count, which belongs to nobody: padding is
    written there."""
    tiles = (limits.num_blocks + 1) * config.num_layers * 2 * config.num_key_value_heads
    return tiles, limits.block_size, config.head_dim


@dataclass(frozen=True)
class Profile:
    """Smallest, usual and largest size of one kind of step: sequences, rows of each, blocks of
    cached rows of each."""

    name: str
    sequences: tuple[int, int, int]
    rows: tuple[int, int, int]
    blocks: tuple[int, int, int]

    def takes(self, sequences: int, rows: int, blocks: int) -> bool:
        sizes = zip(
            (sequences, rows, blocks), (self.sequences, self.rows, self.blocks), strict=True
        )
        return all(low <= size <= high for size, (low, _, high) in sizes)


def profiles(limits: Limits, usual_rows: int = 600) -> list[Profile]:
    """One sequence's decode, several sequences' decode, and prefill. `usual_rows` is the context to
    tune for."""
    most = -(-limits.max_seq_len // limits.block_size)
    blocks = (1, min(most, -(-usual_rows // limits.block_size)), most)
    found = [Profile("decode", (1, 1, 1), (1, 1, 1), blocks)]
    if limits.max_batch > 1:
        found.append(
            Profile(
                "decode of several",
                (2, min(4, limits.max_batch), limits.max_batch),
                (1, 1, 1),
                blocks,
            )
        )
    if limits.max_step_rows > 1:
        rows = (2, min(512, limits.max_step_rows), limits.max_step_rows)
        found.append(Profile("prefill", (1, 1, 1), rows, (1, 1, most)))
    return found


def profile_shapes(
    profile: Profile, config: ModelConfig, limits: Limits
) -> dict[str, list[tuple[int, ...]]]:
    """Smallest, usual and largest shape of every step input."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for i in range(3):
        sequences, rows, blocks = profile.sequences[i], profile.rows[i], profile.blocks[i]
        for name, shape in step_shapes(sequences, rows, blocks, config, limits).items():
            shapes.setdefault(name, []).append(shape)
    tiles = pool_shape(config, limits)[0]
    smallest = tiles // (limits.num_blocks + 1) * 2  # one block, and that of padding
    shapes["kv_pool"][0] = (smallest, *shapes["kv_pool"][0][1:])
    return shapes


def step_shapes(
    sequences: int, rows: int, blocks: int, config: ModelConfig, limits: Limits
) -> dict[str, tuple[int, ...]]:
    """Shapes of the step inputs of one step; its logits are wanted of every sequence's last row."""
    return {
        "ids": (sequences, rows, 2),
        "cached": (sequences,),
        "tables": (sequences, blocks),
        "select": (sequences,),
        "past_index": (blocks, limits.block_size),
        "row_index": (rows,),
        "kv_pool": pool_shape(config, limits),
    }
