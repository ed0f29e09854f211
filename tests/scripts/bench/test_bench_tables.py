"""Tables of measurements: what docs/speed.md shows, and the summary of README.md."""

from __future__ import annotations

import re

import pytest

from moss_engine.api.errors import MossError
from scripts.bench import report


def load(concurrency: int, **values: object) -> dict[str, object]:
    spread = {"ttfa_ms": {"p50": 70.2, "p95": 99.6}, "rtf": {"p50": 0.25, "p95": 0.5}}
    return {
        "concurrency": concurrency, "replies": 128, "worst_rtf": 0.4,
        "late_chunks": 0, "audio_s_per_s": 63.21, "figures": spread, "hears_out": True, **values,
    }  # fmt: skip


def streams(codec: str, *loads: dict[str, object], **values: object) -> dict[str, object]:
    setup = {"prompt_rows": 64, "codes": 75}
    return {"codec": codec, "setup": setup, "memory_gib": 31.4, "load": [*loads], **values}


def test_no_document_holds_a_python_value_or_two_tables_of_one_title():
    """Of the files that are stored."""
    for text in (report.headlines(), report.summary()):
        assert not re.search(r"\[\{|\{'|\['|\[\d", text)
        assert not re.search(r"[1-9]\d*\.\d{7}", text)
    titles = re.findall(r"^\*\*.*", report.headlines(), re.MULTILINE)
    assert titles and len(set(titles)) == len(titles)


def test_levels_of_load_of_one_machine_are_one_table():
    machine = {
        "device": "CPU", "cpu": "A CPU", "cores": 2, "runtime": "torch", "version": "2",
        "dtype": "int8", "checkpoint": "nano",
    }  # fmt: skip
    one = {"machine": machine, "load": [load(1, hears_out=False)]}
    (lines,) = report.load_parts({"a": one, "b": {"machine": machine, "load": [load(4)]}})
    assert lines[0] == "**The built-in voice**, A CPU, 2 cores, torch 2, int8, checkpoint nano"
    assert "| 1, who ask again at once | 128 | 70 / 100 | 0.250 | 0.400 | 0 | 63.2 |" in lines
    assert "| 4, each hears replies out | 128 | 70 / 100 | 0.250 | 0.400 | 0 | 63.2 |" in lines


def test_listeners_without_a_late_chunk_count_on_the_starts_where_they_held():
    again = [
        {"start": "A", "listeners": 256, "late_chunks": 9, "worst_rtf": 1.0},
        {"start": "A, again", "listeners": 256, "late_chunks": 0, "worst_rtf": 0.8},
        {"start": "B", "listeners": 256, "late_chunks": 0, "worst_rtf": 0.3},
    ]
    levels = [load(1), load(256, worst_rtf=0.95), load(300, late_chunks=2)]
    found = {"streams": streams("a codec", *levels, repeated=again)}
    assert report.held(found) == "256, on 2 of 3 starts of a machine"
    assert report.most_in_time(found) == 1, "256 are made in 0.95 of their length"
    lines = report.stream_part(found["streams"])
    assert lines[0].endswith("codec: a codec") and "| A, again | 256 | 0 | 0.8 |" in lines


@pytest.mark.parametrize("text", ["{", '{"load": [{}], "machine": {}}', "[]"])
def test_what_is_no_measurement_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(MossError, match="lacks a measurement, or a part of one"):
        report.headlines()
