"""What an engine with TensorRT-LLM's attention plugin is given. Builder and runtime both follow
this.

Sizes: T rows of the step, B sequences, M blocks of a sequence, L layers with a KV slot, S rows that
a slot can hold. Sequences whose rows are prefilled ("context") come first, those with one row
behind cached ones ("generation") after them. A tensor that begins with host_ is read by the plugin
on the host, at the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, ScheduledSequence
from moss_engine.runtime.tensorrt.tensors import (
    ANY,
    OUTPUTS,
    ROTARY,
    EngineTensors,
    TensorSpec,
    weight_specs,
)

HOST_PREFIX = "host_"
CONTEXT, GENERATION = 0, 1


@dataclass(frozen=True)
class Geometry:
    """What stays the same while an engine is open: L, M, S, and where the pool lies."""

    num_layers: int
    max_blocks: int
    capacity: int
    pool_address: int


@dataclass(frozen=True)
class Step:
    """One step's sequences, context first. ids int32 [T, 2]; new, cached int32 [B]; is_context bool
    [B]; tables int32 [B, M]."""

    ids: np.ndarray
    new: np.ndarray
    cached: np.ndarray
    is_context: np.ndarray
    tables: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each sequence when the step is done."""
        return self.cached + self.new


@dataclass(frozen=True)
class Input:
    """`fill` gives the values. `constant` ones depend on nothing of a step but its number of
    sequences."""

    dtype: str
    shape: tuple[int | str, ...]
    fill: Callable[[Step, Geometry], np.ndarray]
    constant: bool = False

    def sized(self, **sizes: int) -> tuple[int, ...]:
        """The shape with these sizes for its letters."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


def is_generation(sequence: ScheduledSequence) -> bool:
    """One row behind cached ones: what the plugin's generation phase computes."""
    return len(sequence.rows) == 1 and sequence.num_cached > 0


def make_step(sequences: Sequence[ScheduledSequence], max_blocks: int) -> Step:
    """`sequences` in the order of `is_generation`."""
    tables = np.zeros((len(sequences), max_blocks), dtype=np.int32)
    for table, sequence in zip(tables, sequences, strict=True):
        blocks = sequence.block_table[:max_blocks]
        table[: len(blocks)] = blocks
    rows = list(chain.from_iterable(sequence.rows for sequence in sequences))
    return Step(
        ids=np.array(rows, dtype=np.int32),
        new=np.array([len(sequence.rows) for sequence in sequences], dtype=np.int32),
        cached=np.array([sequence.num_cached for sequence in sequences], dtype=np.int32),
        is_context=np.array([not is_generation(sequence) for sequence in sequences]),
        tables=tables,
    )


def _context_lengths(step: Step, _: Geometry) -> np.ndarray:
    """Context: the rows of this step. Generation: those before it, all of which count as the
    prompt."""
    return np.where(step.is_context, step.new, step.cached)


def _past_lengths(step: Step, _: Geometry) -> np.ndarray:
    """Generation: the rows in the cache before this one. Context: the rows when the step is done,
    despite the name."""
    return np.where(step.is_context, step.lengths, step.cached)


def _block_offsets(step: Step, geometry: Geometry) -> np.ndarray:
    """[B, 2, M] in units of one layer's keys (or values) of one block, which is 2 L of them; values
    behind keys."""
    keys = step.tables * (2 * geometry.num_layers)
    return np.stack([keys, keys + 1], axis=1)


def _pool_mapping(_: Step, geometry: Geometry) -> np.ndarray:
    """Every layer's pool, and its place therein: one pool, every slot its own place."""
    return np.stack([np.zeros(geometry.num_layers), np.arange(geometry.num_layers)], axis=1)


OURS: dict[str, Input] = {
    "ids": Input("int32", ("T", 2), lambda step, _: step.ids),
    "select": Input("int32", ("B",), lambda step, _: step.new.cumsum() - 1),
}
"""Text and audio of every row, and each sequence's last row, whose logits are wanted."""
ATTENTION: dict[str, Input] = {
    "sequence_length": Input("int32", ("B",), lambda step, _: step.lengths),
    "context_lengths": Input("int32", ("B",), _context_lengths),
    "host_context_lengths": Input("int32", ("B",), _context_lengths),
    "host_request_types": Input(
        "int32", ("B",), lambda step, _: np.where(step.is_context, CONTEXT, GENERATION)
    ),
    "host_past_key_value_lengths": Input("int32", ("B",), _past_lengths),
    "host_max_attention_window_sizes": Input(
        "int32", ("L",), lambda _, g: np.full(g.num_layers, g.capacity), constant=True
    ),
    "host_sink_token_length": Input("int32", (1,), lambda _, __: np.zeros(1), constant=True),
    "cache_indirection": Input(
        "int32", ("B", 1, "S"), lambda s, g: np.zeros((len(s.new), 1, g.capacity)), constant=True
    ),
    "kv_cache_block_offsets": Input("int32", (1, "B", 2, "M"), _block_offsets),
    "host_kv_cache_block_offsets": Input("int32", (1, "B", 2, "M"), _block_offsets),
    "host_kv_cache_pool_pointers": Input(
        "int64", (1, 2), lambda _, g: np.array([g.pool_address, 0]), constant=True
    ),
    "host_kv_cache_pool_mapping": Input("int32", ("L", 2), _pool_mapping, constant=True),
    # unset but the first: attention of long sequences may be spread over several thread blocks
    "host_runtime_perf_knobs": Input(
        "int64", (16,), lambda _, __: np.array([1, *[-1] * 15]), constant=True
    ),
    "host_context_progress": Input("int64", (1,), lambda _, __: np.zeros(1), constant=True),
}
"""What `gpt_attention` of releases 1.0.0 and 1.2.1 takes beside queries, keys and values."""
INPUTS = OURS | ATTENTION


def values_of(name: str, step: Step, geometry: Geometry) -> np.ndarray:
    """A step's values of one input."""
    known, g = INPUTS[name], geometry
    shape = known.sized(
        T=len(step.ids), B=len(step.new), M=g.max_blocks, L=g.num_layers, S=g.capacity
    )
    values = known.fill(step, geometry).astype(known.dtype)
    return np.ascontiguousarray(values.reshape(shape))


def max_blocks(limits: Limits) -> int:
    """Blocks of the longest sequence."""
    return -(-limits.max_seq_len // limits.block_size)


def capacity(limits: Limits) -> int:
    """Rows that the blocks of the longest sequence hold."""
    return max_blocks(limits) * limits.block_size


def engine_inputs(tensors: EngineTensors, *, is_bound: bool) -> dict[str, TensorSpec]:
    """Of an engine with these limits; the layout's tensors are inputs where they are bound."""
    limits, num_layers = tensors.limits, tensors.config.num_layers
    names = {"T": "tokens", "B": "sequences"}
    found = {}
    for name, known in INPUTS.items():
        shape = known.sized(T=ANY, B=ANY, M=max_blocks(limits), L=num_layers, S=capacity(limits))
        # an axis' name, where it has a size of its own
        axes = tuple(names.get(str(size), "") for size in known.shape)
        found[name] = TensorSpec(known.dtype, shape, axes)
    if is_bound:
        found |= weight_specs(tensors.config, limits, tensors.io_dtype)
        del found[ROTARY]
    return found


def engine_outputs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Float32 [B, vocabulary] of both heads."""
    return {
        name: TensorSpec("float32", (ANY, getattr(config, size))) for name, size in OUTPUTS.items()
    }


def profile_shapes(tensors: EngineTensors) -> list[dict[str, list[tuple[int, ...]]]]:
    """Smallest, usual and largest shape of every open input: for decode, and for steps of up to
    `max_step_rows` rows."""
    limits = tensors.limits
    found = []
    for most in (limits.max_batch, limits.max_step_rows):
        # at least two, as a size that one profile fixes may be reported as fixed in all
        sizes = {"tokens": (1, most, max(2, most)), "sequences": (1, 1, limits.max_batch)}
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for name, spec in engine_inputs(tensors, is_bound=False).items():
            if ANY in spec.shape:
                axes = [*zip(spec.shape, spec.sizes, strict=True)]
                shapes[name] = [
                    tuple(sizes[axis][i] if axis else size for size, axis in axes) for i in range(3)
                ]
        found.append(shapes)
    return found
