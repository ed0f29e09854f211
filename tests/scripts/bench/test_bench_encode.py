"""The bench of the speech encoder, at a tiny size on a CPU: what it says of 16 bits, and the file
that it writes."""

from __future__ import annotations

import json
import sys

import pytest

from scripts.bench.codec import encode as bench_encode


@pytest.fixture(scope="module")
def figures():
    return bench_encode.measure_encode("cpu", runs=1, tiny=True)


def test_16_bits_give_nearly_the_same_codes():
    figures = bench_encode.measure_agreement("cpu", duration_s=10.0, tiny=True)
    assert figures["codes_compared"] == 375 and figures["different_ones_among_them"] > 20
    assert figures["codes_as_in_float32,_float16_percent"] >= 97
    assert figures["codes_as_in_float32,_bfloat16_percent"] >= 90


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_length_is_timed(figures, dtype):
    times = [figures[f"encode_{seconds}_s,_{dtype}_ms"] for seconds in (4, 10, 30)]
    assert (
        min(times) > 0
        and figures[f"encode_10_s,_{dtype},_slowest_ms"] >= figures[f"encode_10_s,_{dtype}_ms"]
    )
    assert figures[f"encode_16_times_4_s_together,_{dtype}_ms"] > 0


def test_the_file_names_the_device(figures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_encode, "measure_encode", lambda *_, **__: figures)
    monkeypatch.setattr(bench_encode, "measure_agreement", lambda *_, **__: {"codes_compared": 1})
    monkeypatch.setattr(
        sys, "argv", ["bench_encode", "--tiny", "--out", str(tmp_path / "encode.json")]
    )
    bench_encode.main()
    report = json.loads((tmp_path / "encode.json").read_text())
    assert (
        report["device"] == "CPU"
        and report["codes_compared"] == 1
        and report.items() >= figures.items()
    )
