"""The benches of the full size as far as they need no GPU: what a step must read, the codec and the
whole service at tiny sizes, and refusals."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from moss_engine.codec.load import load_codec
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.eager.runtime import load_torch_runtime
from scripts.bench import codec, full_size
from scripts.bench.common import Report
from scripts.bench.random_weights import TINY_CONFIG, Sizes
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT, make_tiny_moss

TINY = Sizes(TINY_FLOW, TINY_HIFT, TINY_CONFIG, voice_codes=10, history_codes=5)


def options(bench, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    return parser.parse_args(given)


def test_the_codec_alone_is_measured():
    torch.set_num_threads(1)
    report = Report()
    args = options(codec, "--device", "cpu", "--streams", "1,3", "--codes", "28")
    codec.run(args, report, TINY)
    found = report.values
    for name in ("encode_10_s_p50_ms", "chunk_of_1_p50_ms", "chunk_of_3_last_tenth_p50_ms"):
        assert found[name] > 0


def test_a_question_and_listeners_through_the_whole_service(tmp_path: Path, monkeypatch):
    make_tiny_moss(tmp_path)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 2**30)
    for name, value in (("QUESTIONS", 1), ("TALKERS", 2), ("TURNS", 1), ("TALK_S", 0)):
        monkeypatch.setattr(full_size, name, value)
    model = ModelConfig.from_file(tmp_path / "model" / "config.json")
    given = "--listeners 1:1,2:2 --prompt-rows 96 --codes 10"
    args = options(full_size, *given.split())
    limits = Limits(16, 40, 2, 256, 96 + 64)
    runtime = load_torch_runtime(
        tmp_path / "model", limits, device=torch.device("cpu"), dtype=torch.float32, threads=1
    )
    report = Report()
    full_size.measure_service(args, model, runtime, load_codec(tmp_path / "codec"), report)
    found = report.values
    assert found["speech_in_4_s_first_sound_p50_ms"] > 0
    assert found["talkers_first_sound_worst_ms"] > 0
    loads = found["streams"]["load"]
    assert [(load["concurrency"], load["hears_out"]) for load in loads] == [(1, True), (2, True)]
    assert all(load["figures"]["num_rows"]["min"] == 10 for load in loads)
    assert "published" in found["streams"]["codec"]
