"""The measuring command: what it lists exists, what it measures is what it says, and it runs on a
checkpoint from end to end."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest

from moss_engine.api.errors import MossError
from moss_engine.api.metrics import RequestMetrics
from scripts.bench.__main__ import BENCHES, listing, main
from scripts.bench.common import Report, levels, names_of, whole_numbers
from scripts.bench.report import drawn, held, most_in_time
from scripts.sentences import sentence


def test_every_bench_is_listed_and_has_what_the_command_calls():
    assert all(f"  {name} " in listing() for name in BENCHES)
    for name in BENCHES:
        bench = importlib.import_module(f"scripts.bench.{name}")
        bench.add_options(argparse.ArgumentParser())
        assert callable(bench.run) and bench.__doc__


def test_an_unknown_bench_is_one_sentence():
    with pytest.raises(SystemExit, match="There is no bench 'lode'; choose one of load, "):
        main(["lode"])


def test_no_two_prompts_of_a_run_are_equal():
    assert len({sentence(number) for number in range(3000)}) == 3000
    assert all(sentence(n).split()[:2] != sentence(n + 1).split()[:2] for n in range(50))


@pytest.mark.parametrize(
    ("read", "text"),
    [(whole_numbers, "1,x"), (levels, "4"), (names_of(("decode", "prefill")), "decode,flight")],
)
def test_impossible_options_are_refused(read, text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)


def test_options_are_read():
    assert whole_numbers("1,9") == [1, 9] and levels("16:32,5:8") == [(16, 32), (5, 8)]
    assert names_of(("a", "b"))("b,a") == ["b", "a"]


def test_a_report_is_written_as_it_grows_and_goes_on(tmp_path: Path):
    path = tmp_path / "a.json"
    first = Report(path)
    first.add(one_ms=1)
    assert json.loads(path.read_text()) == {"one_ms": 1}
    again = Report(path)
    again.go_on()
    again.add(two=[2])
    assert json.loads(path.read_text()) == {"one_ms": 1, "two": [2]}


def test_listeners_without_a_late_chunk_are_as_many_as_on_the_worst_start():
    again = [
        {"start": "A", "listeners": 256, "late_chunks": 9},
        {"start": "A, again", "listeners": 256, "late_chunks": 0},
        {"start": "B", "listeners": 192, "late_chunks": 0},
        {"start": "B, again", "listeners": 192, "late_chunks": 0},
    ]
    levels = [
        {"concurrency": many, "worst_rtf": rtf, "late_chunks": late}
        for many, rtf, late in ((1, 0.4, 0), (192, 0.95, 0), (256, 0.9, 0), (300, 0.4, 2))
    ]
    found = {"streams": {"load": levels, "repeated": again}}
    assert held(found) == "192, on each of 2 starts of a machine"
    assert most_in_time(found) == 1, "192 are made in 0.95 of their length"


@pytest.mark.parametrize("text", ["{", '{"load": [{}], "machine": {}}', "[]"])
def test_what_is_no_measurement_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.bench.report.FOLDER", tmp_path)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(MossError, match="lacks a measurement, or a part of one"):
        drawn("headlines")


def test_a_checkpoint_is_measured_and_written(tiny_checkpoint: Path, tmp_path: Path, capsys):
    out = tmp_path / "out.json"
    options = "--replies 2 --warm-ups 1 --concurrency 1,2 --out".split()
    main(["load", "--checkpoint", str(tiny_checkpoint), *options, str(out)])
    report = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert [load["concurrency"] for load in report["load"]] == [1, 2]
    names = {f for load in report["load"] for f in load["figures"]}
    assert names <= set(RequestMetrics.__dataclass_fields__) and "first_row_ms" in names
