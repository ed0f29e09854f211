"""The bench of TensorRT engines, with the emulator for a GPU's library."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from moss_engine.api.tokens import Row
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from scripts.bench.lm import trt as bench_trt
from scripts.bench.lm import trt_parity
from tests.runtime.tensorrt.stand_in import installed
from tests.runtime.tensorrt.support import STAND_IN

CPU = torch.device("cpu")


@pytest.fixture
def emulated():
    with installed():
        yield


def test_nano_speaks_the_same_from_an_engine_file(emulated, monkeypatch):
    """The built-in checkpoint through network, engine folder and runtime: the same rows as the
    torch runtime's."""
    monkeypatch.setattr(trt_parity, "NUM_SENTENCES", 2)
    monkeypatch.setattr(trt_parity, "NUM_ROWS", 20)
    whole = trt_parity.conversations
    monkeypatch.setattr(trt_parity, "conversations", lambda *args: whole(*args[:-1], 10))
    (check,), replies = trt_parity.measure_parity(STAND_IN, "float32", ["bound"], 0, CPU)
    assert check.rows == check.agreeing_rows >= 10 and check.agreeing_heads == 2 * check.rows
    assert check.equal_replies == check.sentences == 2 and replies["bound"] == replies["torch"]
    assert check.largest_difference < 1e-3 < check.largest_logit and check.differences == []


def test_where_a_reply_leaves_the_other_is_told_with_the_gap():
    """The gap of the two ids that were chosen between, in logits of the rows that both have."""
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    runtime = load_torch_runtime(
        NANO_CHECKPOINT, Limits(16, 8, 1, 64, 128), device=CPU, dtype=torch.float32, threads=1
    )
    rows = [Row(text, config.audio_pad_token_id) for text in range(5, 9)]
    one, other = [*rows, Row(3, 0), Row(9, 0)], [*rows, Row(7, 0)]
    logits = runtime.forward(ScheduledBatch((ScheduledSequence(tuple(rows), 0, (0,), True),))).text[
        0
    ]
    found = trt_parity.first_difference(runtime, config, 5, one, other)
    assert (found.sentence, found.row) == (5, 4)
    assert found.gap == pytest.approx(float(logits[3] - logits[7]), abs=1e-5)


def test_random_weights_fill_the_layout():
    config = dataclasses.replace(
        ModelConfig.from_file(NANO_CHECKPOINT / "config.json"),
        num_shared_layers=1,
        num_modality_layers=1,
    )
    layout = dict(bench_trt.random_tensors(config, torch.float16, CPU))
    assert (
        layout["layers.2.qkv"].shape == ((6 + 2 * 2) * 64, 384)
        and layout["layers.2.qkv"].dtype is torch.float16
    )
    assert (
        abs(float(layout["text.norm"].float().mean()) - 1)
        < 0.01
        < float(layout["embed.audio"].float().std())
    )


def test_conversions_are_counted_apart():
    table = bench_trt.kernel_table(
        [
            ("__myl_bb0_1_Cas", 3, 30.04),
            ("gemm", 2, 50.0),
            ("__myl_bb0_4_CasMul", 1, 5.0),
            ("void CUTENSOR_NAMESPACE::permutationKernelPLC3<float>", 1, 70.0),
        ]
    )
    assert table["count"] == 7 and table["total_us"] == 155.0 and table["conversions_us"] == 100.0
    assert table["most"][0]["us"] == 70.0
