"""The benches of the full size as far as they need no GPU: what a step must read, the codec and the
whole service at tiny sizes, and refusals."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import ConfigError
from moss_engine.codec.load import load_codec
from moss_engine.models.checkpoint import expected_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import Limits
from moss_engine.runtime.eager.runtime import load_torch_runtime
from scripts.bench import budget, codec, full_size
from scripts.bench.common import Report
from scripts.bench.gpu import (
    CONTEXT_ROWS,
    Ceilings,
    decode_limit_ms,
    kv_row_bytes,
    make_runtime,
    needs_of,
)
from scripts.bench.random_weights import TINY_CONFIG, Parts, Sizes, random_service, stand_in_codec
from tests.fakes import CONFIG, LIMITS, FakeRuntime, noisy
from tests.fixtures.make_tiny_codec import TINY_VOCODER
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT, make_tiny_moss

ROOT = Path(__file__).resolve().parents[3]
CEILINGS = Ceilings(4.5e12, 4e12, 7e14, 1e15)
LAST_TEXT_LAYER = f"model.text_block.layers.{PUBLISHED.num_modality_layers - 1}."
TINY = Sizes(TINY_FLOW, TINY_HIFT, TINY_CONFIG, voice_codes=10, history_codes=5)


def options(bench, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    return parser.parse_args(given)


def is_read(name: str, *, text_logits: bool) -> bool:
    """Whether a step needs a tensor."""
    is_key_or_value = "k_proj" in name or "v_proj" in name
    return text_logits or not (
        name.startswith("text_lm_head")
        or (name.startswith(LAST_TEXT_LAYER) and not is_key_or_value)
    )


def matrices(text_logits: bool, blocks: tuple[str, ...] = ("",)) -> int:
    """Weights of the products of a step, of those tensors whose names begin with one of
    `blocks`."""
    return sum(
        math.prod(shape)
        for name, shape in expected_tensors(PUBLISHED).items()
        if len(shape) == 2
        and "embed" not in name
        and name.startswith(blocks)
        and is_read(name, text_logits=text_logits)
    )


@pytest.mark.parametrize("text_logits", [True, False])
def test_a_step_reads_the_weights_that_it_needs(text_logits):
    all_read, trunk = matrices(text_logits), matrices(text_logits, ("model.shared_block",))
    heads = matrices(text_logits, ("text_lm_head", "audio_lm_head"))
    for dtype, num_bytes in (
        ("bfloat16", 2 * all_read),
        ("float8-all", all_read),
        ("float8", 2 * all_read - trunk),
        ("int8", all_read),
        ("int4", (all_read - heads) // 2 + heads),
    ):
        needs = needs_of(PUBLISHED, dtype, text_logits=text_logits)
        assert (needs.weights, needs.weight_bytes) == (all_read, num_bytes)


def test_the_limit_of_a_step_is_that_of_what_it_reads():
    limits = [
        decode_limit_ms(PUBLISHED, CEILINGS, 32, CONTEXT_ROWS, "bfloat16", text_logits=text_logits)
        for text_logits in (True, False)
    ]
    seconds = (2 * matrices(True) + 32 * CONTEXT_ROWS * kv_row_bytes(PUBLISHED)) / 4.5e12
    assert limits[0] == pytest.approx(1e3 * seconds) and limits[0] > limits[1]
    no_float8 = replace(CEILINGS, float8_flop_per_s=None)
    assert decode_limit_ms(PUBLISHED, no_float8, 32, CONTEXT_ROWS, "float8") is None


def test_the_codec_alone_is_measured(monkeypatch: pytest.MonkeyPatch):
    torch.set_num_threads(1)
    report = Report()
    args = options(codec, "--device", "cpu", "--streams", "1,3", "--codes", "28", "--repeats", "1")
    codec.run(args, report, TINY)
    found = report.values
    for name in (
        "encode_10_s_p50_ms",
        "first_sound_of_8_codes_all_at_once_ms",
        "chunk_of_1_p50_ms",
        "chunk_of_3_last_tenth_p50_ms",
        "prompt_of_a_voice_once_ms",
    ):
        assert found[name] > 0
    parts = ("encoder", "flow", "hift", "voice", "reply")
    total = sum(found[f"float16_{part}_mb"] for part in parts)
    assert abs(total - found["float16_one_voice_one_reply_mb"]) < 0.3


def test_a_question_and_listeners_through_the_whole_service(tmp_path: Path, monkeypatch):
    make_tiny_moss(tmp_path)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 2**30)
    monkeypatch.setattr(full_size, "QUESTIONS", 1)
    model = ModelConfig.from_file(tmp_path / "model" / "config.json")
    given = "--listeners 1:1 --hasty 2:2 --arrivals 9:2 --prompt-rows 96 --codes 10"
    args = options(full_size, *given.split())
    limits = Limits(16, 40, 2, 256, 96 + 64)
    runtime = load_torch_runtime(
        tmp_path / "model", limits, device=torch.device("cpu"), dtype=torch.float32, threads=1
    )
    report = Report()
    full_size.measure_service(args, model, runtime, load_codec(tmp_path / "codec"), report)
    found = report.values
    moments = [
        found[f"speech_in_4_s_{name}_p50_ms"] for name in ("encode", "eighth_code", "first_sound")
    ]
    assert moments == sorted(moments) and moments[0] > 0
    loads = found["streams"]["load"]
    assert [(load["concurrency"], load["hears_out"]) for load in loads[:2]] == [
        (2, False),
        (1, True),
    ]
    assert loads[2]["arrivals_per_s"] == 9
    assert all(load["figures"]["num_rows"]["min"] == 10 for load in loads)
    assert "published" in found["streams"]["codec"]


def test_the_stand_in_speaks_at_the_published_codecs_rate():
    speaks = stand_in_codec(torch.device("cpu"), 4, (3, 6), TINY_VOCODER)
    assert (speaks.num_codes, speaks.code_rate_hz) == (16_384, 12.5)
    runtime = FakeRuntime(noisy, replace(LIMITS, num_blocks=256, max_batch=8))
    service = random_service(CONFIG, runtime, speaks, 9, 8)
    service.start()
    load = asyncio.run(full_size.one_level(options(full_size, "--codes", "8"), service, 0, 2, 2))
    service.close()
    assert load.figures["audio_s"]["min"] == 8 / 12.5


def test_there_is_room_for_every_part():
    def places_and_rows(*given: str, serves: bool = False) -> tuple[int, int]:
        args = options(full_size, "--batches", "1,8", *given)
        return full_size.room(args, serves=serves)

    assert places_and_rows() == (8, 8 * 39 * 16)
    listeners = ("--listeners", "300:300", "--prompt-rows", "64", "--codes", "64")
    assert places_and_rows(*listeners, serves=True) == (300, 301 * 128)
    assert places_and_rows(*listeners) == (8, 8 * 39 * 16)
    assert places_and_rows("--arrivals", "5:9", "--listeners", "2:2", serves=True)[0] == 256


def test_under_a_cap_a_question_is_encoded_and_everybody_is_spoken_to(monkeypatch):
    speaks = Parts(TINY, torch.device("cpu")).codec(torch.float32, 2)
    encoded, spoken = [], []
    encode, push = speaks.encode, speaks.push_together
    monkeypatch.setattr(speaks, "encode", lambda *args: encoded.append(args) or encode(*args))
    monkeypatch.setattr(
        speaks, "push_together", lambda work: spoken.append(len(work)) or push(work)
    )
    budget.talk(speaks, 2)
    assert len(encoded) == 1 and len(encoded[0][0]) == 160_000 and spoken == [2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("bench", [full_size, budget])
def test_without_a_gpu_it_says_so(bench):
    with pytest.raises(ConfigError, match="GPU"):
        bench.run(options(bench), Report())


def test_too_little_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr("moss_engine.runtime.memory.free_bytes", lambda _: 20 << 30)
    with pytest.raises(ConfigError, match=r"needs 27\.9\d GiB .* 20\.00 GiB are free"):
        make_runtime(PUBLISHED, 4, 65_536, "bfloat16", device=torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_part_with_two_layers(tmp_path: Path):
    out = tmp_path / "a.json"
    given = "--layers 2 --dtype bfloat16,float8-all,int4 --batches 2 --listeners 1:1,2:2 --codes 20"
    command = [sys.executable, "-m", "scripts.bench", "full_size", "--out", str(out)]
    done = subprocess.run(
        [*command, *given.split()], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    names = [(figure["name"], figure["note"], figure["dtype"]) for figure in found["figures"]]
    assert len(set(names)) == len(names)
    for dtype in ("bfloat16", "float8-all", "int4"):
        assert ("decode step, batch 2", "device", dtype) in names
        assert ("prefill 64 rows on 2000 cached", "wall", dtype) in names
    assert all(figure["median_ms"] > 0 and figure["limit_ms"] > 0 for figure in found["figures"])
    assert found["speech_in_4_s_first_sound_p50_ms"] > 0
    assert [load["concurrency"] for load in found["streams"]["load"]] == [1, 2]
