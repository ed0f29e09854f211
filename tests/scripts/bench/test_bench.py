"""The measuring command: what it measures is what it says, and it runs on a checkpoint from end to
end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.api.metrics import RequestMetrics, Timeline, measure
from scripts.bench.common.load import summarise
from scripts.bench.options import parse
from scripts.sentences import sentence

ROOT = Path(__file__).resolve().parents[3]


def test_percentiles_of_every_figure_over_the_replies_that_have_it():
    known = [replace(measure(Timeline()), ttfa_ms=float(i)) for i in range(101)]
    figures = summarise([*known, measure(Timeline())])
    assert figures["ttfa_ms"] == {
        "n": 101,
        "min": 0.0,
        "p50": 50.0,
        "p90": 90.0,
        "p95": 95.0,
        "p99": 99.0,
    }
    assert "rtf" not in figures
    assert figures["audio_s"]["n"] == 102


def test_no_two_prompts_of_a_run_are_equal():
    assert len({sentence(number) for number in range(3000)}) == 3000
    assert all(sentence(n).split()[:2] != sentence(n + 1).split()[:2] for n in range(50))


@pytest.mark.parametrize(
    "argv",
    [
        ["--concurrency", "two"],
        ["--concurrency", "0"],
        ["--replies", "0"],
        ["--codes", "5"],
        ["--prompt-rows", "5"],
        ["--prompt-rows", "1", "--codes", "5"],
        ["--arrivals", "2"],
    ],
)
def test_impossible_options_are_refused(argv: list[str]):
    with pytest.raises(ConfigError):
        parse(argv)


def test_there_are_places_for_all_listeners():
    assert parse(["--concurrency", "1,9"])[1].max_sessions == 9


@pytest.mark.parametrize(
    "options",
    [["--prompt-rows", "20", "--codes", "12", "--overhead"], ["--arrivals", "20:3"]],
    ids=["fixed size", "sentences"],
)
def test_the_command_ends_with_everything_as_one_line(
    tiny_checkpoint: Path, tmp_path: Path, options: list[str]
):
    command = [
        sys.executable,
        "-m",
        "scripts.bench",
        "--checkpoint",
        str(tiny_checkpoint),
        "--replies",
        "2",
        "--warm-ups",
        "1",
        "--concurrency",
        "1,2",
        "--json",
        str(tmp_path / "out.json"),
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "size and limit" in done.stdout.splitlines()[2]
    line = done.stdout.splitlines()[-1]
    assert line == (tmp_path / "out.json").read_text().strip()
    report = json.loads(line)
    assert report["card"]["step_parameters"] < report["card"]["parameters"]
    assert report["card"]["limit_ms"] > 0
    assert [load["concurrency"] for load in report["load"][:2]] == [1, 2]
    assert [load["arrivals_per_s"] for load in report["load"]] == [None, None] + [20.0] * (
        "--arrivals" in options
    )
    names = {f for load in report["load"] for f in load["figures"]}
    assert names <= set(RequestMetrics.__dataclass_fields__) and "first_row_ms" in names
    if "--codes" in options:
        assert (
            report["load"][0]["figures"]["num_rows"]["min"]
            == report["load"][1]["figures"]["num_rows"]["p99"]
            == 12
        )
        assert report["load"][0]["figures"]["num_prompt_rows"]["p50"] == 20
        assert report["overhead"].keys() == {
            "network_ms",
            "runtime_ms",
            "engine_ms",
            "overhead_ms",
            "network_share_of_limit",
        }
        assert [rate["batch"] for rate in report["batches"]] == [1, 2]


def test_a_missing_checkpoint_is_one_sentence(tmp_path: Path):
    command = [sys.executable, "-m", "scripts.bench", "--checkpoint", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "config.json" in done.stderr
