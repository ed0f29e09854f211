"""The codec's benches at tiny sizes on the CPU: every figure is there and is what it says."""

from __future__ import annotations

from pathlib import Path

import torch

from moss_engine.codec.load import load_codec
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.eager.runtime import load_torch_runtime
from scripts.bench.codec.codec import measure
from scripts.bench.measure_gpu import codec_bars
from scripts.bench.random_weights import TINY_CONFIG, Sizes
from scripts.bench.service.moss import PROMPT_ROWS, serve
from scripts.bench.service.streams import Level
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT, make_tiny_moss

TINY = Sizes(
    TINY_FLOW,
    TINY_HIFT,
    TINY_CONFIG,
    voice_codes=10,
    reply_codes=28,
    compared_codes=15,
    streams=(1, 3),
    repeats=1,
    history_codes=5,
)


def test_every_part_is_measured():
    torch.set_num_threads(1)
    *_, report = measure(TINY, torch.device("cpu"))
    for name in (
        "encode_10_s_p50_ms",
        "first_sound_of_8_codes_all_at_once_ms",
        "chunk_of_1_p50_ms",
        "chunk_of_3_last_tenth_p50_ms",
        "prompt_of_a_voice_once_ms",
    ):
        assert report[name] > 0
    parts = sum(
        report[f"float16_{part}_mb"] for part in ("encoder", "flow", "hift", "voice", "reply")
    )
    assert abs(parts - report["float16_one_voice_one_reply_mb"]) < 0.3
    near, far = (
        report["mel_in_float16_against_float32_rms"],
        report["mel_in_bfloat16_against_float32_rms"],
    )
    assert 0 < near < far < 0.1
    assert report["wave_in_float16_against_float32_db"] < 0
    assert report["log_mel_of_wave_in_float16_against_float32_db"] < 0
    assert 0 < report["mel_with_bounded_history_rms"] < 1


def test_the_whole_program_is_measured(tmp_path: Path):
    make_tiny_moss(tmp_path)
    model = ModelConfig.from_file(tmp_path / "model" / "config.json")
    device = torch.device("cpu")
    limits = Limits(16, 40, 2, 256, PROMPT_ROWS + 64)
    runtime = load_torch_runtime(
        tmp_path / "model", limits, device=device, dtype=torch.float32, threads=1
    )
    report = {}
    for part in serve(
        model, runtime, load_codec(tmp_path / "codec"), [Level(1, listeners=1)], 10, talks=1
    ):
        report |= part
    moments = [
        report[f"speech_in_4_s_{name}_p50_ms"] for name in ("encode", "eighth_code", "first_sound")
    ]
    assert moments == sorted(moments) and moments[0] > 0
    assert report["listeners_1_worst_rtf"] > 0 and report["listeners_1_replies"] == 1


def test_bars_are_read_from_the_reports():
    codec = {
        "chunk_of_1_p50_ms": 20.0,
        "chunk_of_16_p50_ms": 70.0,
        "chunk_of_1_first_tenth_p50_ms": 20.0,
        "chunk_of_1_last_tenth_p50_ms": 21.0,
        "encode_10_s_p50_ms": 9.0,
    }
    found = {
        bar.name: bar.verdict()
        for bar in codec_bars(codec, {"speech_in_4_s_first_sound_p50_ms": 90.0})
    }
    assert found["codec, 5 codes of one reply, ms"] == "aim met"
    assert found["codec, 5 codes of 16 replies, ms"] == "missed"
    assert found["codec, end of 60 s against its start"] == "met"
    assert found["4 s of speech to first sound, ms"] == "met"
    assert found["codec in 16 bit, MB"] == "not measured"
