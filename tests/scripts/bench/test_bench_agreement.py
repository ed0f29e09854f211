"""The comparison of number formats: nothing between a format and itself, something between two."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from moss_engine.api.errors import ConfigError
from scripts.bench import agreement
from scripts.bench.common import Report


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agreement.add_options(parser)
    return parser.parse_args([*given, "--device", "cpu"])


def test_a_format_agrees_with_itself_and_less_with_a_coarser_one(tiny_checkpoint: Path):
    report = Report()
    formats = "--reference float32 --dtypes float32,bfloat16 --prompts 3 --rows 12".split()
    agreement.run(options("--checkpoint", str(tiny_checkpoint), *formats), report)
    found = report.values
    assert found["text_rows"] > 2 and found["audio_rows"] > 2
    alone, itself, coarser = found["agreement"]
    assert alone["dtype"] == "float32, two at a time"
    for channel in ("text", "audio"):
        assert itself[f"{channel}_same_best"] == 1 and itself[f"{channel}_logit_error"] == 0
        assert 1e-4 < coarser[f"{channel}_logit_error"] < 0.1


def test_float8_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="float8 runs on a GPU only"):
        agreement.run(options(), Report())
