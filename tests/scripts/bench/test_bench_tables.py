"""Tables of measurements: what docs/speed.md shows, and the summary of README.md."""

from __future__ import annotations

import json
import re

import pytest

from moss_engine.api.errors import MossError
from scripts.bench import report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REPO_ROOT", tmp_path)
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    return tmp_path


def write(path, values) -> None:
    path.write_text(json.dumps(values))


def step(
    name: str, note: str, median_ms: float, limit_ms: float | None, dtype: str = "bfloat16"
) -> dict[str, object]:
    found = {"name": name, "note": note, "median_ms": median_ms, "p90_ms": median_ms + 1}
    return found | {"limit_ms": limit_ms, "dtype": dtype}


def load(concurrency: int, **values: object) -> dict[str, object]:
    spread = {"ttfa_ms": {"p50": 70.2, "p95": 99.6}, "rtf": {"p50": 0.25, "p95": 0.5}}
    return {
        "concurrency": concurrency, "replies": 128, "arrivals_per_s": None, "worst_rtf": 0.4,
        "late_chunks": 0, "audio_s_per_s": 63.21, "figures": spread, "hears_out": True, **values,
    }  # fmt: skip


def streams(codec: str, *loads: dict[str, object], **values: object) -> dict[str, object]:
    setup = {"prompt_rows": 64, "codes": 75}
    return {"codec": codec, "setup": setup, "memory_gib": 31.4, "load": [*loads], **values}


def test_without_measurements_it_says_so(folder):
    assert report.headlines() == report.summary() == report.NONE_YET


def test_no_document_holds_a_python_value_or_two_tables_of_one_title():
    """Of the files that are stored."""
    for text in (report.headlines(), report.summary()):
        assert not re.search(r"\[\{|\{'|\['|\[\d", text)
        assert not re.search(r"[1-9]\d*\.\d{7}", text)
    titles = re.findall(r"^\*\*.*", report.headlines(), re.MULTILINE)
    assert titles and len(set(titles)) == len(titles)


def test_levels_of_load_of_one_machine_are_one_table(folder):
    machine = {
        "device": "CPU", "cpu": "A CPU", "cores": 2, "runtime": "torch", "version": "2",
        "dtype": "int8", "checkpoint": "nano",
    }  # fmt: skip
    write(folder / "cpu.json", {"machine": machine, "load": [load(1, hears_out=False)]})
    write(folder / "cpu_four.json", {"machine": machine, "load": [load(4, late_chunks=3)]})
    text = report.headlines()
    assert text.count("**The built-in voice**, A CPU, 2 cores, torch 2, int8, checkpoint nano") == 1
    assert "| 1, who ask again at once | 128 | 70 / 100 | 0.250 | 0.400 | 0 | 63.2 |" in text
    assert "| 4, each hears replies out | 128 | 70 / 100 | 0.250 | 0.400 | 3 | 63.2 |" in text


def test_the_published_codec_is_the_full_size_and_the_stand_in_a_row_of_its_own(folder):
    again = [
        {"start": "A", "listeners": 256, "late_chunks": 9, "worst_rtf": 1.0},
        {"start": "A, again", "listeners": 256, "late_chunks": 0, "worst_rtf": 0.8},
        {"start": "B", "listeners": 256, "late_chunks": 0, "worst_rtf": 0.3},
    ]
    stand_in = streams("a stand-in", load(1), load(256), repeated=again)
    published = streams(
        "the published one", load(1), load(96), load(97, worst_rtf=0.95), load(128, late_chunks=2)
    )
    figures = [step("decode step, batch 1", "device", 4.34, 3.6)]
    h200 = {"device": "NVIDIA H200", "figures": figures, "streams": stand_in}
    write(folder / "h200_full_size.json", h200)
    write(folder / "h100_moss.json", {"streams": streams("the published one", load(32))})
    write(folder / "h200_moss.json", {"streams": published})
    text = report.summary()
    assert "| time to first audio, median |  | 70 ms |" in text
    assert "| listeners at a time without a gap |  | 97, on 1 of 1 starts of a machine |" in text
    stand_in = "with a stand-in for the codec, a BigVGAN of 116 M"
    assert f"| the same {stand_in} |  | 256, on 2 of 3 starts of" in text
    assert "| memory |  | 31.4 GiB, on an H100 |" in text
    text = report.headlines()
    assert "**Listeners of the full size**, codec: a stand-in\n" in text
    assert "**Listeners of the full size**, codec: the published one\n" in text
    assert "| A, again | 256 | 0 | 0.8 |" in text
    assert "| listeners in real time, every reply in 0.9 of its length | 96 |" in text
    assert "| the same on an H100, 16 replies in a run | 32 |" in text
    assert "| listeners in real time, stand-in codec | 256 |" in text


@pytest.mark.parametrize("text", ["{", '{"load": [{}], "machine": {}}', "[]"])
def test_a_file_that_is_no_measurement_is_named(folder, text):
    (folder / "bad.json").write_text(text)
    with pytest.raises(MossError, match=r"bad\.json is no measurement"):
        report.headlines()
