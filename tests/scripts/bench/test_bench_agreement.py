"""The comparison of number formats: nothing between a format and itself, something between two."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import ConfigError
from moss_engine.api.tokens import Modality, Row
from moss_engine.models.float8 import SCALES_NAME
from scripts.bench import agreement
from scripts.bench.agreement import _Step, calibrated, compare
from scripts.bench.common import Report


def step(logits: list[float], row: int, modality: Modality = Modality.AUDIO) -> _Step:
    return _Step(modality, torch.tensor(logits), Row(0, row))


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agreement.add_options(parser)
    return parser.parse_args([*given, "--device", "cpu"])


def test_agreement_of_known_logits():
    steps = [step([1.0, -1.0], 0), step([1.0, -1.0], 0), step([0.0, 2.0], 1, Modality.TEXT)]
    others = [step([1.0, -1.0], 0), step([-1.0, 1.0], 1), step([0.0, 2.0], 1, Modality.TEXT)]
    found = {a.channel: a for a in compare(steps, others, "x")}
    assert found["text"].rows == 1 and found["text"].logit_error == found["text"].rows_changed == 0
    audio = found["audio"]
    assert (audio.rows, audio.same_best, audio.rows_changed) == (2, 0.5, 0.5)
    assert audio.logit_error == pytest.approx(2**0.5)
    tilt = torch.tensor([1.0, -1.0]).softmax(0)
    assert audio.kl_mean == pytest.approx(((tilt[0] - tilt[1]) * 2 / 2).item())


def test_a_format_agrees_with_itself_and_less_with_a_coarser_one(tiny_checkpoint: Path):
    report = Report()
    formats = "--reference float32 --dtypes float32,bfloat16 --prompts 3 --rows 12".split()
    agreement.run(options("--checkpoint", str(tiny_checkpoint), *formats), report)
    found = report.values
    by_format = {
        name: [a for a in found["agreement"] if a["dtype"] == name]
        for name in ("float32", "bfloat16")
    }
    assert sum(a["rows"] for a in by_format["float32"]) > 10
    assert all(
        a["rows_changed"] == 0 and a["same_best"] == 1 and a["logit_error"] == 0
        for a in by_format["float32"]
    )
    assert all(1e-4 < a["logit_error"] < 0.1 and a["kl_mean"] > 0 for a in by_format["bfloat16"])
    assert any(a["dtype"] == "float32, two at a time" for a in found["agreement"])


def test_float8_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="float8 runs on a GPU only"):
        agreement.run(options(), Report())


def test_a_calibrated_copy_leaves_the_checkpoint_as_it_was(tiny_checkpoint: Path):
    before = sorted(path.name for path in tiny_checkpoint.iterdir())
    with calibrated(tiny_checkpoint, 2, 6, "cpu") as copy:
        assert copy.name == tiny_checkpoint.resolve().name
        assert (copy / SCALES_NAME).is_file()
    assert not copy.exists()
    assert sorted(path.name for path in tiny_checkpoint.iterdir()) == before
