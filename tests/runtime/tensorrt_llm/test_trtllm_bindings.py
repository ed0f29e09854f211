"""What the tensorrt_llm runtime gives an engine: the values by hand, and every way to get one
wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.errors import EngineFaultError, EngineFileError
from moss_engine.api.tokens import Row
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, Logits, ScheduledSequence
from moss_engine.runtime.tensorrt_llm import tensors as trtllm_tensors
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime, pool_shape
from moss_engine.runtime.tensorrt_llm.tensors import (
    KNOWN,
    EngineInput,
    Geometry,
    Step,
    match_inputs,
)
from tests.runtime.tensorrt_llm.trtllm_emulator import VARIANTS, Refused
from tests.runtime.tensorrt_llm.trtllm_support import (
    agrees,
    conversation,
    emulated,
    expected_conversation,
    open_runtime,
)


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with emulated(tmp_path_factory.mktemp("plugin")) as plugin:
        yield plugin


@pytest.fixture
def runtime(tiny_checkpoint: Path, tmp_path: Path, library: Path) -> TrtLlmRuntime:
    return open_runtime(tiny_checkpoint, tmp_path / "engine", library, "1.2.1")


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[Logits]:
    return expected_conversation(tiny_checkpoint)


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
    "ids off by one": ("input_ids", off_by(1)),
    "positions off by one": ("position_ids", off_by(1)),
    "positions from zero": ("position_ids", lambda v, s, g: v - np.repeat(s.cached, s.new)),
    "last rows off by one": ("last_token_ids", off_by(-1)),
    "last rows as lengths": ("last_token_ids", lambda v, s, g: s.new),
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
    known = KNOWN[tensor]
    changed = dataclasses.replace(known, fill=lambda step, g: change(known.fill(step, g), step, g))
    monkeypatch.setitem(trtllm_tensors.KNOWN, tensor, changed)
    try:
        found = conversation(runtime)
    except (Refused, EngineFaultError):
        return
    assert not agrees(found, expected), f"{name} changes nothing"


def test_every_input_that_the_plugin_reads_is_mutated() -> None:
    """The two that only steer the library's scheduling have no wrong value that could be seen."""
    mutated = {tensor for tensor, _ in MUTATIONS.values()}
    assert set(KNOWN) - mutated == {"host_runtime_perf_knobs", "host_context_progress"}


def step_of(lengths: list[tuple[int, int]], max_blocks: int = 4) -> Step:
    sequences = [
        ScheduledSequence(tuple(Row(7 + i, 0) for i in range(new)), cached, (3, 1, 2), True)
        for cached, new in lengths
    ]
    return trtllm_tensors.make_step(sequences, max_blocks, lambda row: row.text)


def values(name: str, step: Step) -> list[object]:
    geometry = Geometry(num_layers=40, max_blocks=4, capacity=128, pool_address=1 << 40)
    shape = KNOWN[name].shapes[-1]
    return trtllm_tensors.values_of(name, shape, step, geometry).tolist()


def test_the_values_are_those_of_the_contract() -> None:
    """A prompt's first chunk, a chunk behind 32 cached rows, and a single row behind 70: written
    out by hand."""
    step = step_of([(0, 3), (32, 2), (70, 1)])
    assert step.num_context == 2
    wanted: dict[str, object] = {
        "input_ids": [7, 8, 9, 7, 8, 7],
        "position_ids": [0, 1, 2, 32, 33, 70],
        "last_token_ids": [3, 5, 6],
        "sequence_length": [3, 34, 71],
        "context_lengths": [3, 2, 70],
        "host_context_lengths": [3, 2, 70],
        "host_request_types": [0, 0, 1],
        "host_past_key_value_lengths": [3, 34, 70],
        "host_max_attention_window_sizes": [128] * 40,
        "host_sink_token_length": [0],
        "kv_cache_block_offsets": [[[[240, 80, 160, 0], [241, 81, 161, 1]]] * 3],
        "host_kv_cache_pool_pointers": [[1 << 40, 0]],
        "host_runtime_perf_knobs": [1] + [-1] * 15,
        "host_context_progress": [0],
    }
    for name, expected_values in wanted.items():
        assert values(name, step) == expected_values, name
    assert values("host_kv_cache_block_offsets", step) == values("kv_cache_block_offsets", step)
    assert np.shape(values("cache_indirection", step)) == (3, 1, 128)
    mapping = trtllm_tensors.values_of(
        "host_kv_cache_pool_mapping", ("L", 2), step, Geometry(40, 4, 128, 1)
    )
    assert mapping.tolist() == [[0, slot] for slot in range(40)]


def test_the_pool_is_in_the_plugins_layout() -> None:
    config = ModelConfig(
        **{
            **{f.name: 1 for f in dataclasses.fields(ModelConfig)},
            "num_shared_layers": 32,
            "num_modality_layers": 4,
            "num_key_value_heads": 8,
            "head_dim": 128,
        }
    )
    shape = pool_shape(config, Limits(64, 10, 1, 1, 640))
    assert shape == (10, 40, 2, 8, 64, 128)
    assert np.prod(shape[1:]) * 2 == 64 * 163_840  # bytes of a block in bfloat16: 160 KiB a row


@pytest.mark.parametrize("release", VARIANTS)
def test_every_release_is_recognised(release: str) -> None:
    found = {
        name: EngineInput(dtype, tuple(5 if size == "L" else size for size in shape))  # type: ignore[misc]
        for name, (dtype, shape) in VARIANTS[release].items()
    }
    matched = match_inputs(found, 5)
    assert matched.keys() == found.keys()
    assert all(len(matched[name]) == len(found[name].shape) for name in found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"lora_ranks_0": EngineInput("int32", (-1,))},
            "input 'lora_ranks_0' that is not in the table",
        ),
        ({"host_request_types": None}, "lacks the input 'host_request_types'"),
        (
            {"sequence_length": EngineInput("int64", (-1,))},
            "'sequence_length' is int64 instead of int32",
        ),
        (
            {"kv_cache_block_offsets": EngineInput("int32", (2, -1, 2, -1))},
            "[2, -1, 2, -1] instead of [B, 2, M] or ",
        ),
        (
            {"host_max_attention_window_sizes": EngineInput("int32", (36,))},
            "shape [36] instead of [L] with L = 40",
        ),
        (
            {"input_ids": EngineInput("int32", (-1, -1))},
            "'input_ids' has shape [-1, -1] instead of [T]",
        ),
        (
            {"host_sink_token_length": EngineInput("int32", (2,))},
            "'host_sink_token_length' has shape [2] instead of [1]",
        ),
    ],
)
def test_other_inputs_are_refused_by_name(
    change: dict[str, EngineInput | None], words: str
) -> None:
    found = {
        name: EngineInput(dtype, tuple(40 if size == "L" else size for size in shape))  # type: ignore[misc]
        for name, (dtype, shape) in VARIANTS["1.2.1"].items()
    }
    merged = {name: tensor for name, tensor in {**found, **change}.items() if tensor is not None}
    with pytest.raises(EngineFileError) as error:
        match_inputs(merged, 40)
    assert words in str(error.value) and "scripts.build_engine" in str(error.value)
