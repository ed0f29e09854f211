"""What has to be measured on a GPU: its commands exist, bars are read from what they write."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from scripts.bench import measure_gpu
from scripts.bench.measure_gpu import STEPS, Bar, bars, main, run_step


def figure(name: str, note: str, median_ms: float, dtype: str = "bfloat16") -> dict[str, object]:
    return {"name": name, "note": note, "median_ms": median_ms, "dtype": dtype}


def test_every_step_is_a_command_of_this_repository() -> None:
    for step in STEPS:
        module, *options = step.command
        assert importlib.util.find_spec(module), module
        assert (measure_gpu.OUT_FILE in options) is bool(step.file), step.name


def test_bars_are_read_from_the_reports() -> None:
    reports = {
        "budget": {"reserved_peak_gb": 21.5},
        "full_size": {
            "figures": [
                figure("decode step, batch 1", "device", 4.4),
                figure("decode step, batch 32", "device", 9.0),
                figure("decode step, batch 1", "device", 3.1, "float8"),
                figure("per second of speech, 100 codes", "wall", 50.0),
                figure("prefill 512 rows on 0 cached", "wall", 14.1),
                figure("prefill 512 rows on 0 cached", "device", 9.0),
            ],
            "streams": {
                "load": [
                    {"concurrency": 64, "arrivals_per_s": None, "late_chunks": 0, "worst_rtf": 0.5},
                    {
                        "concurrency": 128,
                        "arrivals_per_s": None,
                        "late_chunks": 3,
                        "worst_rtf": 0.5,
                    },
                    {"concurrency": 200, "arrivals_per_s": 5.0, "late_chunks": 0, "worst_rtf": 0.5},
                    {
                        "concurrency": 256,
                        "arrivals_per_s": None,
                        "late_chunks": 0,
                        "worst_rtf": 0.95,
                    },
                ]
            },
        },
    }
    verdicts = {bar.name: (bar.measured, bar.verdict()) for bar in bars(reports)}
    assert verdicts["decode step, batch 1, ms"] == (4.4, "met")
    assert verdicts["decode step, batch 32, ms"] == (9.0, "missed")
    assert verdicts["prefill of 512 rows, ms"] == (14.1, "missed")
    assert verdicts["decode step, float8, ms"] == (None, "not measured")
    assert verdicts["24 GB card: everything, GB"] == (21.5, "aim met")
    assert verdicts["RTF of one stream"] == (0.05, "aim met")
    assert verdicts["streams in real time"] == (64, "met")
    assert Bar("", 4, 6, 3.9, lower=False).verdict() == "missed"


def test_a_step_that_fails_or_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick.py").write_text("import sys\nopen(sys.argv[1], 'w').write('{}')\n")
    (tmp_path / "broken.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    steps = (
        measure_gpu.Step("a", 60, ("quick", measure_gpu.OUT_FILE), "full_size"),
        measure_gpu.Step("b", 60, ("broken",)),
        measure_gpu.Step("c", 1, ("stuck",)),
    )
    monkeypatch.setattr(measure_gpu, "STEPS", steps)
    assert main(["--out", str(tmp_path), "--card", "mine"]) == 1
    assert json.loads((tmp_path / "mine_full_size.json").read_text()) == {}
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("a: done") and lines[-2].startswith("b: failed with exit code 3")
    assert lines[-1] == "c: stopped after 1 s"
    assert run_step(steps[0], tmp_path, "mine").startswith("done")
