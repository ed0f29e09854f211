"""Engines of all backends on a CPU: the contract of every runtime, against a stand-in for the
packages that has nothing but bound addresses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from moss_engine.api.events import Failed, Sampled
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import Row, effective_id
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine.engine import Engine as ServingEngine
from moss_engine.export.tensorrt import BuildTarget, build_plan
from moss_engine.models.checkpoint import FILE_NAME, save_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import Limits, Runtime, ScheduledSequence
from moss_engine.runtime.tensorrt.engine import Library, load_library
from moss_engine.runtime.tensorrt.runtime import EngineRuntime
from moss_engine.runtime.tensorrt.tensors import EngineTensors
from moss_engine.runtime.tensorrt_llm.runtime import constant_values, step_values
from moss_engine.text.processor import load_processor
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.runtime.engines import stand_in
from tests.runtime.engines.support import (
    CPU,
    LLM_LIMITS,
    LLM_STAND_IN,
    STAND_IN,
    assert_agrees,
    float8_layout_of,
    make_runtime,
    prefill,
    torch_runtime,
)
from tests.runtime.runtime_contract import LIMITS, RuntimeContract

NUM_ROWS = 6
"""Of the built-in voice's replies."""


class EngineContract(RuntimeContract):
    exact_batch = False
    library, limits, dtype, device = STAND_IN, LIMITS, "float32", CPU

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> EngineRuntime:
        return make_runtime(cls.library, tiny_checkpoint, cls.limits, cls.dtype, cls.device)


class TestFloat32(EngineContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa,
    through four layers."""

    tolerance = drift = 1e-4


class TestBfloat16(EngineContract):
    """Weights, activations and KV are rounded to 8 bits of mantissa."""

    dtype = "bfloat16"
    tolerance = drift = 0.15


class TestFloat8(EngineContract):
    """One plan with its weights, which have 3 bits of mantissa, as the rows that meet them."""

    dtype = "float8"
    tolerance, drift = 1.2, 0.03


@pytest.mark.gpu
class TestFloat32OnGpu(EngineContract):
    """With the TensorRT that is installed: only the order of sums differs from the reference."""

    tolerance = drift = 1e-3

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> EngineRuntime:
        return make_runtime(on_gpu(), tiny_checkpoint, LIMITS, cls.dtype, torch.device("cuda"))


class TestBfloat16OnGpu(TestFloat32OnGpu):
    dtype = "bfloat16"
    tolerance = drift = 0.15


def on_gpu() -> Library:
    """The TensorRT that is installed, where there is a GPU."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    return load_library("tensorrt")


class TestLlm(EngineContract):
    library, limits = LLM_STAND_IN, LLM_LIMITS
    tolerance = drift = 2e-5


class TestLlmBfloat16(TestLlm):
    dtype = "bfloat16"
    tolerance = drift = 0.2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestLlmOnGpu(TestLlm):
    """The pool, the logits and what the plugin reads there on the device; host tensors in pinned
    memory."""

    device = torch.device("cuda:0")


def test_one_sequence_at_a_time_is_served(tiny_checkpoint: Path) -> None:
    """Whose sizes the profiles leave no choice in."""
    one_sequence = dataclasses.replace(LLM_LIMITS, max_batch=1)
    assert_agrees(make_runtime(LLM_STAND_IN, tiny_checkpoint, one_sequence), tiny_checkpoint)
    one_row = dataclasses.replace(LIMITS, max_batch=1, max_step_rows=1)
    assert_agrees(make_runtime(STAND_IN, tiny_checkpoint, one_row), tiny_checkpoint, (1, 2, 3))


@pytest.mark.parametrize(("shared", "of_a_branch"), [(3, 2), (4, 2), (2, 4)])
def test_layers_run_in_parts_give_what_the_network_gives(
    shared: int, of_a_branch: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """One, two and two layers at a time; branches of two parts and of one."""
    values = json.loads((tiny_checkpoint / "config.json").read_text(encoding="utf-8"))
    sizes = {"num_shared_layers": shared, "num_modality_layers": of_a_branch}
    values |= {**sizes, "num_hidden_layers": sum(sizes.values())}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = ModelConfig.from_file(tmp_path / "config.json")
    save_tensors(tmp_path / FILE_NAME, make_tensors(config))
    assert_agrees(make_runtime(STAND_IN, tmp_path, LIMITS), tmp_path)


def test_float32_is_not_rounded_to_tf32(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where float32 was asked for; bfloat16 values lose nothing by it."""
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    used = []
    monkeypatch.setattr(
        stand_in.Builder,
        "build_serialized_network",
        lambda self, network, settings: used.append(settings.flags) or b"",
    )
    for dtype in ("float32", "bfloat16"):
        target = BuildTarget("tensorrt", dtype, None, LIMITS)
        build_plan(STAND_IN, config, target, None, print)
    assert [stand_in.BuilderFlag.TF32 in flags for flags in used] == [False] * 3 + [True] * 3


def test_float8_layers_are_near_their_widened_values(tiny_checkpoint: Path) -> None:
    """Inputs of every layer's matrices have 3 bits of mantissa; weights are float8 on both
    sides."""
    _, exact = float8_layout_of(tiny_checkpoint)
    wanted = prefill(make_runtime(STAND_IN, tiny_checkpoint, layout=exact))
    for library in (STAND_IN, LLM_STAND_IN):
        runtime = make_runtime(library, tiny_checkpoint, dtype="float8")
        for ours, theirs in zip(prefill(runtime), wanted, strict=True):
            assert 0 < (ours - theirs).norm() < 0.15 * theirs.norm()


def spoken_by(runtime: Runtime, num_rows: int) -> dict[str, list[int]]:
    """The first rows of greedy replies to three requests, served together by the engine with the
    built-in voice, as the network sees them."""
    model = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    config = EngineConfig(checkpoint=NANO_CHECKPOINT)
    processor = load_processor(NANO_CHECKPOINT, model, config.max_text_chars)
    engine = ServingEngine(runtime, processor, config, samples_per_code=960)
    greedy = dataclasses.replace(processor.default_sampling.audio, temperature=0.0)
    sampling = dataclasses.replace(
        processor.default_sampling, text=greedy, audio=greedy, max_rows=num_rows
    )
    for text in ("Good morning.", "The letter came late.", "Open the window."):
        message = Message("user", Text(text))
        mode = processor.default_mode.name
        engine.submit(Request(text, text, (message,), mode, sampling))
    rows: dict[str, list[int]] = {}
    while events := engine.step().events:
        for event in events:
            assert not isinstance(event, Failed)
            if isinstance(event, Sampled):
                rows.setdefault(event.request_id, []).append(effective_id(event.row, processor.ids))
    return rows


def test_the_built_in_voice_says_the_same() -> None:
    """Its replies row by row, through scheduler and prefix cache."""
    limits = Limits(block_size=16, num_blocks=96, max_batch=4, max_step_rows=64, max_seq_len=1024)
    expected = spoken_by(torch_runtime(NANO_CHECKPOINT, limits), NUM_ROWS)
    assert all(len(rows) == NUM_ROWS for rows in expected.values()) and len(expected) == 3
    for library in (STAND_IN, LLM_STAND_IN):
        assert spoken_by(make_runtime(library, NANO_CHECKPOINT, limits), NUM_ROWS) == expected


def test_the_values_are_those_of_the_contract() -> None:
    """What the plugin of the published size is given for a prompt's first chunk, a chunk behind 32
    cached rows, and a single row behind 70: written out by hand."""
    sequences = [
        ScheduledSequence(tuple(Row(7 + i, 5) for i in range(new)), cached, (3, 1, 2), True)
        for cached, new in ((0, 3), (32, 2), (70, 1))
    ]
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
    tensors = EngineTensors(PUBLISHED, Limits(32, 4, 3, 6, 128), "bfloat16")
    found = step_values(sequences, tensors) | constant_values(3, tensors, 1 << 40)
    assert {name: values.tolist() for name, values in found.items()} == wanted
