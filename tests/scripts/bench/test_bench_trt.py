"""The bench of TensorRT engines, with the stand-in for the package and a GPU."""

from __future__ import annotations

import dataclasses

import torch

from moss_engine.config import NANO_CHECKPOINT
from moss_engine.models.config import ModelConfig
from scripts.bench import tensorrt as bench
from tests.runtime.tensorrt.stand_in import installed
from tests.runtime.tensorrt.support import STAND_IN

CPU = torch.device("cpu")


def test_nano_speaks_the_same_from_an_engine_file(monkeypatch):
    """The built-in checkpoint through network, engine folder and runtime: the same rows as the
    torch runtime's."""
    monkeypatch.setattr(bench, "NUM_SENTENCES", 2)
    monkeypatch.setattr(bench, "NUM_ROWS", 20)
    monkeypatch.setattr(bench, "REPLY_ROWS", 10)
    with installed():
        (check,) = bench.measure_parity(STAND_IN, "float32", ["bound"], 0, CPU)
    assert check.rows == check.agreeing_rows >= 10 and check.agreeing_heads == 2 * check.rows
    assert check.equal_replies == check.sentences == 2
    assert check.largest_difference < 1e-3 < check.largest_logit


def test_random_weights_fill_the_layout():
    config = dataclasses.replace(
        ModelConfig.from_file(NANO_CHECKPOINT / "config.json"),
        num_shared_layers=1,
        num_modality_layers=1,
    )
    layout = dict(bench.random_tensors(config, torch.float16, CPU))
    assert layout["layers.2.qkv"].shape == ((6 + 2 * 2) * 64, 384)
    assert layout["layers.2.qkv"].dtype is torch.float16
    assert abs(float(layout["text.norm"].float().mean()) - 1) < 0.01
    assert float(layout["embed.audio"].float().std()) > 0.01
