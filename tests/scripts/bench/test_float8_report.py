"""The comparison of number formats: nothing between a format and itself, something between two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moss_engine.api.tokens import Modality, Row
from moss_engine.config import EngineConfig
from moss_engine.models.float8 import SCALES_NAME
from scripts.bench.lm.agreement import (
    _Step,
    compare,
    free_run,
    modalities_of,
    random_subject,
    table,
)
from scripts.bench.lm.float8_report import KV_ROWS, calibrated, checkpoint_subject, examine


def step(logits: list[float], row: int, modality: Modality = Modality.AUDIO) -> _Step:
    return _Step(modality, torch.tensor(logits), Row(0, row))


def options(folder: Path) -> EngineConfig:
    return EngineConfig(checkpoint=folder, device="cpu", max_sessions=2, kv_rows=KV_ROWS)


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


def test_where_replies_part():
    one, two, three = [1], [1, 2], [1, 3]
    found = free_run([one, two, two], [one, three, one], "x")
    assert found.equal == pytest.approx(1 / 3) and found.rows_until_different == 1
    assert free_run([one], [one], "x").rows_until_different is None


def test_a_format_agrees_with_itself_and_less_with_a_coarser_one(tiny_checkpoint: Path):
    config, saved = options(tiny_checkpoint), []
    report = examine(
        tiny_checkpoint,
        checkpoint_subject(config, 3, 12),
        config,
        "float32",
        ["float32", "bfloat16"],
        saved.append,
    )
    assert [len(each["free"]) for each in saved] == [1, 2] and saved[-1] == report
    by_format = {
        name: [a for a in report["agreement"] if a["dtype"] == name]
        for name in ("float32", "bfloat16")
    }
    assert sum(a["rows"] for a in by_format["float32"]) > 10
    assert all(
        a["rows_changed"] == 0 and a["same_best"] == 1 and a["logit_error"] == 0
        for a in by_format["float32"]
    )
    assert all(1e-4 < a["logit_error"] < 0.1 and a["kl_mean"] > 0 for a in by_format["bfloat16"])
    assert report["free"][0]["equal"] == 1
    assert any(a["dtype"] == "float32, two at a time" for a in report["agreement"])
    assert "bfloat16" in table(report)


def test_a_calibrated_copy_leaves_the_checkpoint_as_it_was(tiny_checkpoint: Path):
    before = sorted(path.name for path in tiny_checkpoint.iterdir())
    with calibrated(tiny_checkpoint, 2, 6, "cpu") as copy:
        assert copy.name == tiny_checkpoint.resolve().name
        assert (copy / SCALES_NAME).is_file()
    assert not copy.exists()
    assert sorted(path.name for path in tiny_checkpoint.iterdir()) == before


def test_modalities_are_those_of_the_turn(tiny_checkpoint: Path):
    from moss_engine.runtime.make import make_runtime
    from scripts.quantize import answer

    config = options(tiny_checkpoint)
    subject = checkpoint_subject(config, 1, 12)
    runtime = make_runtime(replace(config, dtype="float32"))
    sequence = answer(runtime, subject.model.special, *subject.segments[0])
    found = modalities_of(sequence, subject.model)
    pad = subject.model.special.modality_pad
    assert len(found) == sequence.num_reply_rows
    for modality, row in zip(found, sequence.rows[sequence.num_prompt_rows :], strict=True):
        assert modality is Modality.TEXT or row.text == pad


def test_random_prompts_end_where_speech_begins():
    from tests.fakes import CONFIG

    subject = random_subject(CONFIG, 2, 10, torch.device("cpu"))
    assert [len(segment.prompt) for segment, _ in subject.segments] == [64, 64]
    assert subject.segments[0][0].prompt[-1].text == CONFIG.special.sosp
    assert subject.segments[0][0].prompt != subject.segments[1][0].prompt
