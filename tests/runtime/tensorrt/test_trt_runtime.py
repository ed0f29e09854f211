"""The TensorRT runtime and network on a CPU: the contract, against an emulator that has nothing but
bound addresses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from moss_engine.api.tokens import Row
from moss_engine.export.target import BuildTarget
from moss_engine.export.tensorrt import build_plan
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.tensorrt.part_tensors import new_kv_values
from moss_engine.runtime.tensorrt.runtime import TrtRuntime
from scripts.bench.lm.trt import random_tensors
from tests.runtime.runtime_contract import LIMITS, RuntimeContract
from tests.runtime.tensorrt import trt_emulator_old
from tests.runtime.tensorrt.trt_support import (
    EMULATOR,
    OLD_EMULATOR,
    assert_large_values_pass,
    float8_layout_of,
    make_runtime,
    open_runtime,
)

CPU = torch.device("cpu")


class TestBoundFloat32(RuntimeContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa,
    through four layers."""

    tolerance = drift = 1e-4
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(EMULATOR, tiny_checkpoint, LIMITS, "float32", "bound", CPU)


class TestBakedFloat16(RuntimeContract):
    """Weights, activations and KV are rounded to 11 bits of mantissa."""

    tolerance = drift = 0.02
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(EMULATOR, tiny_checkpoint, LIMITS, "float16", "baked", CPU)


class TestOldFloat16(TestBakedFloat16):
    """A release that types networks weakly."""

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TrtRuntime:
        return make_runtime(OLD_EMULATOR, tiny_checkpoint, LIMITS, "float16", "bound", CPU)


@pytest.mark.parametrize("library", [EMULATOR, OLD_EMULATOR], ids=["new", "old"])
@pytest.mark.parametrize(("shared", "of_a_branch"), [(3, 2), (4, 2), (2, 4)])
def test_layers_run_in_parts_give_what_the_whole_network_gives(library, shared, of_a_branch):
    """One, two and two layers at a time; branches of two parts and of one."""
    config = ModelConfig(
        hidden_size=48,
        intermediate_size=80,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        num_shared_layers=shared,
        num_modality_layers=of_a_branch,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        max_position_embeddings=512,
        vocab_size=150,
        audio_vocab_size=80,
        sosp_token_id=140,
        eosp_token_id=64,
        modality_pad_token_id=141,
        audio_pad_token_id=65,
        eos_token_id=142,
        pad_token_id=143,
    )
    layout = dict(random_tensors(config, torch.float32, CPU))
    parts, whole = (
        open_runtime(library, config, layout, LIMITS, "float32", weights, CPU)
        for weights in ("bound", "baked")
    )
    rows = tuple(Row(text, 3) for text in range(7, 27))
    for start, end in ((0, 13), (13, 14), (14, 20)):
        batch = ScheduledBatch((ScheduledSequence(rows[start:end], start, (5, 0, 3, 1, 2), True),))
        for found, wanted in zip(parts.forward(batch), whole.forward(batch), strict=True):
            assert (found - wanted).abs().max() < 1e-5 < wanted.abs().max()


def test_every_part_writes_to_an_address_that_the_library_takes(tiny_checkpoint):
    """Keys and values of a layer's single row may be smaller than what addresses are multiples
    of."""
    config = dataclasses.replace(ModelConfig.from_file(tiny_checkpoint / "config.json"), head_dim=8)
    for rows in (1, 3, 64):
        for itemsize in (2, 4):
            values, stride = new_kv_values(config, 1, rows, itemsize)
            assert values == rows * 2 * config.num_key_value_heads * 8
            assert values <= stride < values + 256 and stride * itemsize % 256 == 0


def test_an_engine_for_one_row_at_a_time_has_fixed_sizes(tiny_checkpoint):
    """An older release then knows no profile of ids any more."""
    limits = dataclasses.replace(LIMITS, max_batch=1, max_step_rows=1)
    runtime = make_runtime(OLD_EMULATOR, tiny_checkpoint, limits, "float16", "bound", CPU)
    for at in range(3):
        batch = ScheduledBatch((ScheduledSequence((Row(7 + at, 3),), at, (0,), True),))
        assert runtime.forward(batch).text.isfinite().all()


def test_float32_is_not_rounded_to_tf32(tiny_checkpoint, monkeypatch):
    """Where float32 was asked for; float16 values lose nothing by it."""
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    used = []
    monkeypatch.setattr(
        trt_emulator_old.Builder,
        "build_serialized_network",
        lambda self, network, settings: used.append(settings.flags) or b"",
    )
    for dtype in ("float32", "float16"):
        build_plan(
            OLD_EMULATOR, config, dtype, BuildTarget("tensorrt", "bound", None, LIMITS), None, print
        )
    allowed = [trt_emulator_old.BuilderFlag.TF32 in flags for flags in used]
    assert allowed == [False] * 3 + [True] * 3


def test_gated_values_beyond_float16_pass(tiny_checkpoint):
    assert_large_values_pass(EMULATOR, tiny_checkpoint, LIMITS, CPU)


def test_float8_layers_are_near_their_widened_values(tiny_checkpoint):
    """Inputs of every layer's matrices have 3 bits of mantissa; weights are float8 on both
    sides."""
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    float8, exact = float8_layout_of(tiny_checkpoint, config)
    rows = tuple(Row(text, 3) for text in range(7, 27))
    batch = ScheduledBatch((ScheduledSequence(rows, 0, tuple(range(8)), True),))
    found, wanted = (
        open_runtime(EMULATOR, config, layout, LIMITS, dtype, weights, CPU).forward(batch)
        for layout, dtype, weights in ((float8, "float8", "baked"), (exact, "float32", "bound"))
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert 0 < (ours - theirs).norm() < 0.15 * theirs.norm()
