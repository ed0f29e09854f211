"""What the runtime of TensorRT-LLM gives an engine: the values by hand, and every way to get one
wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.tokens import Row
from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import Limits, Logits, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime, pool_shape
from moss_engine.runtime.tensorrt_llm.tensors import INPUTS, Geometry, Step, make_step, values_of
from tests.runtime.tensorrt.stand_in_plugin import Refused
from tests.runtime.tensorrt.support import CPU, LLM_LIMITS, agrees, conversation, make_llm_runtime


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[Logits]:
    return conversation(
        load_torch_runtime(tiny_checkpoint, LLM_LIMITS, device=CPU, dtype=torch.float32, threads=1)
    )


@pytest.fixture
def runtime(tiny_checkpoint: Path, tmp_path: Path) -> TrtLlmRuntime:
    return make_llm_runtime(tiny_checkpoint, tmp_path)


Change = Callable[[np.ndarray, Step, Geometry], np.ndarray]


def swapped(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
    return values[:, ::-1]


def off_by(number: int) -> Change:
    return lambda values, _, __: values + number


def first_changed(number: int) -> Change:
    def change(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
        changed = np.array(values)
        changed.flat[0] += number
        return changed

    return change


def one_shared_block(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
    """Keys and values in one place, as if both pointers meant the same."""
    return np.stack([values[:, 0], values[:, 0]], axis=1)


MUTATIONS: dict[str, tuple[str, Change]] = {
    "ids off by one": ("ids", off_by(1)),
    "last rows off by one": ("select", off_by(-1)),
    "last rows as lengths": ("select", lambda v, s, g: s.new - 1),
    "sequence length without the new rows": (
        "sequence_length",
        lambda v, s, g: np.maximum(s.cached, 1),
    ),
    "sequence length one too long": ("sequence_length", off_by(1)),
    "context length of the whole sequence": ("context_lengths", lambda v, s, g: s.lengths),
    "context length off by one": ("context_lengths", off_by(1)),
    "host context length off by one": ("host_context_lengths", off_by(1)),
    "all requests in context phase": ("host_request_types", lambda v, s, g: np.zeros_like(v)),
    "all requests in generation phase": ("host_request_types", lambda v, s, g: np.ones_like(v)),
    "request types the other way round": ("host_request_types", lambda v, s, g: 1 - v),
    "past length off by one": ("host_past_key_value_lengths", off_by(1)),
    "past length of context as its name says": (
        "host_past_key_value_lengths",
        lambda v, s, g: s.cached,
    ),
    "past length of generation with the new row": (
        "host_past_key_value_lengths",
        lambda v, s, g: s.lengths,
    ),
    "a window too small": ("host_max_attention_window_sizes", lambda v, s, g: np.full_like(v, 8)),
    "a window too small in the last layer": (
        "host_max_attention_window_sizes",
        lambda v, s, g: np.where(np.arange(len(v)) < len(v) - 1, v, 8),
    ),
    "sink tokens": ("host_sink_token_length", off_by(4)),
    "another beam": ("cache_indirection", off_by(1)),
    "keys and values swapped": ("kv_cache_block_offsets", swapped),
    "keys and values swapped on the host": ("host_kv_cache_block_offsets", swapped),
    "keys and values in one place": ("kv_cache_block_offsets", one_shared_block),
    "offsets in blocks of all layers": (
        "kv_cache_block_offsets",
        lambda v, s, g: v // (2 * g.num_layers),
    ),
    "offsets for 36 layers instead of 40": (
        "kv_cache_block_offsets",
        lambda v, s, g: v // g.num_layers * 3,
    ),
    "a stale host table": ("host_kv_cache_block_offsets", lambda v, s, g: v[:, :, ::-1]),
    "tables sorted": ("kv_cache_block_offsets", lambda v, s, g: np.sort(v, axis=2)),
    "tables of the wrong sequences": ("kv_cache_block_offsets", lambda v, s, g: v[::-1]),
    "the secondary pool's bit": (
        "kv_cache_block_offsets",
        lambda v, s, g: v.astype(np.int64) - (1 << 31),
    ),
    "the pool's pointer off by a row": ("host_kv_cache_pool_pointers", first_changed(32)),
    "the pool as its own secondary": (
        "host_kv_cache_pool_pointers",
        lambda v, s, g: np.array([v[0], v[0]]),
    ),
    "pointers swapped": ("host_kv_cache_pool_pointers", lambda v, s, g: v[::-1]),
    "every layer in one place of the pool": (
        "host_kv_cache_pool_mapping",
        lambda v, s, g: np.zeros_like(v),
    ),
    "the audio branch in the text branch's places": (
        "host_kv_cache_pool_mapping",
        lambda v, s, g: np.where(v == g.num_layers - 1, g.num_layers - 2, v),
    ),
    "mapping's columns swapped": ("host_kv_cache_pool_mapping", swapped),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_wrong_binding_is_seen(
    name: str, runtime: TrtLlmRuntime, expected: list[Logits], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, change = MUTATIONS[name]
    known = INPUTS[tensor]
    changed = dataclasses.replace(known, fill=lambda step, g: change(known.fill(step, g), step, g))
    monkeypatch.setitem(INPUTS, tensor, changed)
    try:
        found = conversation(runtime)
    except (Refused, EngineFaultError, AssertionError):  # the stand-in asserts
        return
    assert not agrees(found, expected), f"{name} changes nothing"


def test_every_input_that_the_plugin_reads_is_mutated() -> None:
    """The two that only steer the library's scheduling have no wrong value that could be seen."""
    mutated = {tensor for tensor, _ in MUTATIONS.values()}
    assert set(INPUTS) - mutated == {"host_runtime_perf_knobs", "host_context_progress"}


def test_the_values_are_those_of_the_contract() -> None:
    """A prompt's first chunk, a chunk behind 32 cached rows, and a single row behind 70: written
    out by hand."""
    sequences = [
        ScheduledSequence(tuple(Row(7 + i, 5) for i in range(new)), cached, (3, 1, 2), True)
        for cached, new in ((0, 3), (32, 2), (70, 1))
    ]
    step = make_step(sequences, 4)
    assert step.num_context == 2
    offsets = [[[[240, 80, 160, 0], [241, 81, 161, 1]]] * 3]
    wanted: dict[str, object] = {
        "ids": [[7, 5], [8, 5], [9, 5], [7, 5], [8, 5], [7, 5]],
        "select": [2, 4, 5],
        "sequence_length": [3, 34, 71],
        "context_lengths": [3, 2, 70],
        "host_context_lengths": [3, 2, 70],
        "host_request_types": [0, 0, 1],
        "host_past_key_value_lengths": [3, 34, 70],
        "host_max_attention_window_sizes": [128] * 40,
        "host_sink_token_length": [0],
        "cache_indirection": [[[0] * 128]] * 3,
        "kv_cache_block_offsets": offsets,
        "host_kv_cache_block_offsets": offsets,
        "host_kv_cache_pool_pointers": [[1 << 40, 0]],
        "host_kv_cache_pool_mapping": [[0, slot] for slot in range(40)],
        "host_runtime_perf_knobs": [1] + [-1] * 15,
        "host_context_progress": [0],
    }
    geometry = Geometry(num_layers=40, max_blocks=4, capacity=128, pool_address=1 << 40)
    assert {name: values_of(name, step, geometry).tolist() for name in INPUTS} == wanted


def test_the_pool_is_in_the_plugins_layout() -> None:
    shape = pool_shape(PUBLISHED, Limits(64, 10, 1, 1, 640))
    assert shape == (10, 40, 2, 8, 64, 128)
    assert np.prod(shape[1:]) * 2 == 64 * 163_840  # bytes of a block in bfloat16: 160 KiB a row
