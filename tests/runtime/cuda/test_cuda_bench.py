"""The bench of the full size, from end to end at a small one: every part is measured, printed and
written at once."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")
if importlib.util.find_spec("bigvgan") is None:
    pytest.skip("bigvgan is not installed", allow_module_level=True)

from moss_engine.runtime.base import Limits  # noqa: E402
from moss_engine.runtime.cuda.weights import Float8  # noqa: E402
from scripts.bench.common import timing as bench_timing  # noqa: E402
from scripts.bench.common.timing import Ceilings, wall_times_ms  # noqa: E402
from scripts.bench.lm import cuda as bench_cuda  # noqa: E402
from scripts.bench.service import preset as bench_preset  # noqa: E402
from scripts.bench.service import speech as bench_speech  # noqa: E402
from scripts.bench.service import streams as bench_streams  # noqa: E402
from tests.fixtures.make_tiny_codec import TINY_VOCODER  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, SMALL, make_runtime, make_weights  # noqa: E402

VOCODER = {
    "resblock": "1",
    "upsample_rates": [16, 16],
    "upsample_kernel_sizes": [32, 32],
    "upsample_initial_channel": 8,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3, 5]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    "activation": "snakebeta",
    "snake_logscale": True,
    "sampling_rate": 24000,
    "n_fft": 1024,
    "win_size": 1024,
    "hop_size": 256,
    "num_mels": 100,
    "fmin": 0,
    "fmax": None,
}
CONFIG = replace(SMALL, vocab_size=160)  # float8 wants multiples of 16
CEILINGS = Ceilings(4e12, 4e12, 8e14, 1.6e15)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """The same program with a small network, a tiny vocoder, few repeats and, without a GPU, no
    device to time."""

    def runtime(config, max_batch, kv_rows, float8, max_step_rows=64, *, device):
        limits = Limits(16, kv_rows // 16, max_batch, max_step_rows, min(kv_rows, 512))
        weights = (
            make_weights(CONFIG)
            if DEVICE.type == "cpu"
            else make_weights(CONFIG, torch.bfloat16, float8=Float8(float8))
        )
        return make_runtime(weights, CONFIG, limits=limits)

    monkeypatch.setattr(bench_preset, "PUBLISHED", CONFIG)
    monkeypatch.setattr(bench_cuda, "CONTEXT_ROWS", 20)
    monkeypatch.setattr(bench_cuda, "FILLS", ((6, 16),))
    monkeypatch.setattr(bench_cuda, "make_runtime", runtime)
    monkeypatch.setattr(bench_preset, "measure_ceilings", lambda: CEILINGS)
    monkeypatch.setattr(bench_preset, "SPOKEN_PROMPT_ROWS", 24)
    monkeypatch.setattr(bench_preset, "REPLY_ROWS", 4)
    monkeypatch.setattr(bench_speech, "VOCODER_24KHZ", VOCODER)
    monkeypatch.setattr(bench_streams, "VOCODER", TINY_VOCODER)
    monkeypatch.setattr(bench_speech, "REPEATS", 1)
    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "no GPU")
        monkeypatch.setattr(bench_preset, "resolve_device", lambda _: DEVICE)
        monkeypatch.setattr(bench_speech, "captured", _called_once)
        for module in (bench_cuda, bench_speech):
            monkeypatch.setattr(
                module, "device_times_ms", lambda run, *_, **__: wall_times_ms(run, 1, 0)
            )
            monkeypatch.setattr(
                module, "wall_times_ms", lambda run, *_, **__: wall_times_ms(run, 1, 0)
            )


def _called_once(run):
    run()
    return run


def measure(path: Path, parts: str, *options: str) -> dict:
    bench_preset.main(
        [
            "--preset",
            "moss-speech",
            "--parts",
            parts,
            "--json",
            str(path),
            "--batches",
            "2",
            "--kv-rows",
            "512",
            "--max-step-rows",
            "64",
            *options,
        ]
    )
    return json.loads(path.read_text(encoding="utf-8"))


slow = pytest.mark.skipif(
    DEVICE.type == "cpu", reason="takes minutes where kernels are interpreted"
)


@slow
def test_steps_of_every_format_and_their_agreement(
    small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = measure(
        tmp_path / "a.json",
        "decode,prefill,agreement",
        "--dtype",
        "bfloat16,float8-all",
        "--prompts",
        "1",
    )
    names = [(figure["name"], figure["note"], figure["dtype"]) for figure in report["figures"]]
    assert len(set(names)) == len(names)
    for dtype in ("bfloat16", "float8-all"):
        assert ("decode step, batch 2", "device", dtype) in names
        assert ("decode step, batch 2, speaking, rows drawn", "device", dtype) in names
        assert ("prefill 6 rows on 16 cached", "wall", dtype) in names
    assert all(figure["median_ms"] > 0 and figure["limit_ms"] > 0 for figure in report["figures"])
    assert report["card"]["float8-all"]["weight_gb"] == report["card"]["bfloat16"]["weight_gb"] / 2
    assert [a["dtype"] for a in report["agreement"]] == ["bfloat16, two at a time", "float8-all"]
    if DEVICE.type == "cuda":
        assert 0 < report["agreement"][1]["logit_error"] < 0.3
    printed = capsys.readouterr().out
    assert all(name in printed for name, *_ in names) and printed.splitlines()[-1].endswith("done")


@slow
def test_a_spoken_reply(small, tmp_path: Path):
    report = measure(tmp_path / "b.json", "speech,sampler,vocoder")
    names = [figure["name"] for figure in report["figures"]]
    assert (
        "to the first 5 codes' samples, 24 rows" in names
        and "per second of speech, 100 codes" in names
    )
    assert (
        "sampling by kernels, batch 32" in names
        and "vocoder, 1 window of 78 frames, float16" in names
    )


@slow
def test_listeners_of_every_kind(small, tmp_path: Path):
    report = measure(
        tmp_path / "c.json",
        "streams",
        "--hasty",
        "1:1",
        "--listeners",
        "2:2",
        "--arrivals",
        "9:2",
        "--prompt-rows",
        "9",
        "--codes",
        "6",
        "--chunk-codes",
        "2,3",
        "--together",
        "2",
    )
    loads = report["streams"]["load"]
    assert [(load["concurrency"], load["hears_out"]) for load in loads[:2]] == [
        (1, False),
        (2, True),
    ]
    assert loads[2]["arrivals_per_s"] == 9 and all(
        load["figures"]["num_rows"]["min"] == 6 for load in loads
    )


def test_a_failure_leaves_what_was_measured_and_is_named(
    small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(bench_cuda, "measure_prefill", fails)
    with pytest.raises(
        SystemExit, match=r"bfloat16 was not measured to the end \(RuntimeError: no such kernel\)"
    ):
        measure(tmp_path / "d.json", "decode,prefill")
    assert len(json.loads((tmp_path / "d.json").read_text())["figures"]) == 4


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_transformers_generate_token_by_token():
    from scripts.bench.lm.baselines import transformers_step_ms

    config = replace(
        SMALL, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16
    )
    found = dict(transformers_step_ms(config, 20, str(DEVICE)))
    assert list(found) == ["dynamic", "static"]
    for times in found.values():
        assert len(times) == bench_timing.REPEATS and min(times) > 0
