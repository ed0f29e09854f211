"""What an engine with TensorRT-LLM's attention plugin is given: every tensor that releases 0.13 to
1.2.1 know.

Sizes: T rows of the step, B sequences, M blocks of a sequence, L layers with a KV slot, S rows that
a slot can hold. Sequences whose rows are prefilled ("context") come first, those with one row
behind cached ones ("generation") after them. A tensor that begins with host_ is read by the plugin
on the host, at the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import EngineFileError
from moss_engine.api.tokens import Row
from moss_engine.runtime.base import ScheduledSequence

HOST_PREFIX = "host_"
CONTEXT, GENERATION = 0, 1
_AGAIN = "build the engine again with `python -m scripts.build_engine --backend tensorrt_llm`."


@dataclass(frozen=True)
class Geometry:
    """What stays the same while an engine is open. `max_blocks` is M, `capacity` S, `pool_address`
    on the device."""

    num_layers: int
    max_blocks: int
    capacity: int
    pool_address: int


@dataclass(frozen=True)
class Step:
    """One step's sequences, context first. ids int32 [T]; new, cached int32 [B]; tables int32 [B,
    M]."""

    ids: np.ndarray
    new: np.ndarray
    cached: np.ndarray
    num_context: int
    tables: np.ndarray

    @property
    def is_context(self) -> np.ndarray:
        return np.arange(len(self.new)) < self.num_context

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each sequence when the step is done."""
        return self.cached + self.new


Fill = Callable[[Step, Geometry], np.ndarray]


@dataclass(frozen=True)
class Known:
    """`shapes` are those that releases differ in; `fill` gives the values, which take the one that
    the engine has. `constant` values depend on nothing of a step but its number of sequences.
    """

    dtype: str
    shapes: tuple[tuple[int | str, ...], ...]
    fill: Fill
    required: bool = True
    constant: bool = False


def is_generation(sequence: ScheduledSequence) -> bool:
    """One row behind cached ones: what the plugin's generation phase computes."""
    return len(sequence.rows) == 1 and sequence.num_cached > 0


def make_step(
    sequences: Sequence[ScheduledSequence], max_blocks: int, table_index: Callable[[Row], int]
) -> Step:
    """`sequences` in the order of `is_generation`; `table_index` gives the id that stands for a
    row."""
    tables = np.zeros((len(sequences), max_blocks), dtype=np.int32)
    for table, sequence in zip(tables, sequences, strict=True):
        blocks = sequence.block_table[:max_blocks]
        table[: len(blocks)] = blocks
    return Step(
        ids=np.array(
            [table_index(row) for sequence in sequences for row in sequence.rows], dtype=np.int32
        ),
        new=np.array([len(sequence.rows) for sequence in sequences], dtype=np.int32),
        cached=np.array([sequence.num_cached for sequence in sequences], dtype=np.int32),
        num_context=sum(not is_generation(sequence) for sequence in sequences),
        tables=tables,
    )


def _positions(step: Step, _: Geometry) -> np.ndarray:
    return np.concatenate(
        [np.arange(cached, cached + new) for cached, new in zip(step.cached, step.new, strict=True)]
    )


def _context_lengths(step: Step, _: Geometry) -> np.ndarray:
    """Context: the rows of this step. Generation: those before it, all of which count as the
    prompt."""
    return np.where(step.is_context, step.new, step.cached)


def _request_types(step: Step, _: Geometry) -> np.ndarray:
    return np.where(step.is_context, CONTEXT, GENERATION)


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


def _perf_knobs(_: Step, __: Geometry) -> np.ndarray:
    """Unset but the first: attention of long sequences may be spread over several thread blocks."""
    return np.array([1, *[-1] * 15])


_OFFSETS = (("B", 2, "M"), (1, "B", 2, "M"))

KNOWN: dict[str, Known] = {
    "input_ids": Known("int32", (("T",),), lambda step, _: step.ids),
    "position_ids": Known("int32", (("T",),), _positions, required=False),
    "last_token_ids": Known("int32", (("B",),), lambda step, _: step.new.cumsum()),
    "sequence_length": Known("int32", (("B",),), lambda step, _: step.lengths),
    "context_lengths": Known("int32", (("B",),), _context_lengths),
    "host_context_lengths": Known("int32", (("B",),), _context_lengths),
    "host_request_types": Known("int32", (("B",),), _request_types),
    "host_past_key_value_lengths": Known("int32", (("B",),), _past_lengths),
    "host_max_attention_window_sizes": Known(
        "int32", (("L",),), lambda _, g: np.full(g.num_layers, g.capacity), constant=True
    ),
    "host_sink_token_length": Known("int32", ((1,),), lambda _, __: np.zeros(1), constant=True),
    "cache_indirection": Known(
        "int32",
        (("B", 1, "S"),),
        lambda step, g: np.zeros((len(step.new), 1, g.capacity)),
        constant=True,
    ),
    "kv_cache_block_offsets": Known("int32", _OFFSETS, _block_offsets),
    "host_kv_cache_block_offsets": Known("int32", _OFFSETS, _block_offsets),
    "host_kv_cache_pool_pointers": Known(
        "int64", ((2,), (1, 2)), lambda _, g: np.array([g.pool_address, 0]), constant=True
    ),
    "host_kv_cache_pool_mapping": Known(
        "int32", (("L", 2), ("L",)), _pool_mapping, required=False, constant=True
    ),
    "host_runtime_perf_knobs": Known("int64", ((16,),), _perf_knobs, required=False, constant=True),
    "host_context_progress": Known(
        "int64", ((1,),), lambda _, __: np.zeros(1), required=False, constant=True
    ),
}
OUTPUTS = {"logits": "vocab_size", "audio_logits": "audio_vocab_size"}
"""The network's two heads, by the configuration's name of their size."""


@dataclass(frozen=True)
class EngineInput:
    """A tensor of an engine as its file describes it; -1 is a size that the call decides."""

    dtype: str
    shape: tuple[int, ...]


def match_inputs(
    found: Mapping[str, EngineInput], num_layers: int
) -> dict[str, tuple[int | str, ...]]:
    """The known shape of every input, out of those that releases differ in.

    Raises EngineFileError naming the tensor that is unknown, missing, or of another type or shape.
    """
    for name in found:
        if name not in KNOWN:
            raise EngineFileError(
                f"The engine has an input {name!r} that is not in the table of known ones; {_AGAIN}"
            )
    matched = {}
    for name, known in KNOWN.items():
        if name not in found:
            if known.required:
                raise EngineFileError(f"The engine lacks the input {name!r}; {_AGAIN}")
            continue
        if found[name].dtype != known.dtype:
            raise EngineFileError(
                f"The engine's input {name!r} is {found[name].dtype} instead of {known.dtype}; "
                f"{_AGAIN}"
            )
        fitting = [shape for shape in known.shapes if _fits(found[name].shape, shape, num_layers)]
        if not fitting:
            shapes = " or ".join(str(list(shape)).replace("'", "") for shape in known.shapes)
            raise EngineFileError(
                f"The engine's input {name!r} has shape {list(found[name].shape)} instead of "
                f"{shapes} with L = {num_layers}; {_AGAIN}"
            )
        matched[name] = fitting[0]
    return matched


def values_of(
    name: str, shape: tuple[int | str, ...], step: Step, geometry: Geometry
) -> np.ndarray:
    """A step's values of one input, in the engine's form of it."""
    known = KNOWN[name]
    values = known.fill(step, geometry).astype(known.dtype)
    sizes = {
        "T": len(step.ids),
        "B": len(step.new),
        "M": geometry.max_blocks,
        "L": geometry.num_layers,
        "S": geometry.capacity,
    }
    wanted = tuple(sizes[size] if isinstance(size, str) else size for size in shape)
    if name == "host_kv_cache_pool_mapping" and len(wanted) == 1:
        values = values[
            :, 0
        ]  # the pool alone: the place therein is the plugin's own number of the layer
    assert values.size == np.prod(wanted), f"{name} has {values.shape} values for {wanted}"
    return np.ascontiguousarray(values.reshape(wanted))


def _fits(found: tuple[int, ...], known: tuple[int | str, ...], num_layers: int) -> bool:
    """Sizes of a call may be fixed in an engine, where its profiles leave no choice: the batch of
    one sequence."""
    if len(found) != len(known):
        return False
    sizes = [num_layers if size == "L" else size for size in known]
    return all(
        isinstance(size, str) or actual in (-1, size)
        for actual, size in zip(found, sizes, strict=True)
    )
