"""Tables of measurements: all of them, and those that the README shows."""

from __future__ import annotations

import json

import pytest

from moss_engine.api.errors import MossError
from scripts.bench.report import headlines as bench_headlines
from scripts.bench.report import plot as bench_plot
from scripts.bench.report import tables as bench_tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_tables, "REPO_ROOT", tmp_path)
    monkeypatch.setattr(bench_tables, "FOLDER", tmp_path)
    return tmp_path


def write(path, report) -> None:
    path.write_text(json.dumps(report))


def test_without_measurements_it_says_so(folder):
    assert bench_tables.measurements().endswith(f"\n\n{bench_tables.NONE_YET}\n")
    assert bench_headlines.headlines() == bench_tables.NONE_YET


def test_load_is_shown_by_listeners(folder):
    machine = {
        "device": "CPU",
        "cpu": "A CPU",
        "cores": 2,
        "runtime": "torch",
        "version": "2",
        "dtype": "int8",
        "checkpoint": "nano",
    }
    spread = {"p50": 0.25, "p95": 0.5}
    load = {
        "concurrency": 4,
        "rows_per_s": 99.6,
        "without_underrun": 0.5,
        "figures": {
            "ttfa_ms": {"p50": 120.4, "p95": 151.0},
            "prefill_ms": {"p50": 9.96},
            "rtf": spread,
        },
    }
    write(folder / "cpu.json", {"machine": machine, "load": [load]})
    text = bench_tables.measurements()
    assert "A CPU, 2 cores, torch 2, int8, checkpoint nano" in text
    assert "| 4 | 120 / 151 | 10.0 | 0.250 / 0.500 | 100 | 50% |" in text
    text = bench_headlines.headlines()
    assert text.startswith(
        "**The built-in voice**, A CPU, 2 cores, torch 2, int8, checkpoint nano\n\n| at a time |"
    )
    assert text.endswith("| 4 | 120 / 151 | 10.0 | 0.250 / 0.500 | 100 | 50% |")


def step(
    name: str, note: str, median_ms: float, limit_ms: float | None, dtype: str = "bfloat16"
) -> dict[str, object]:
    return {
        "name": name,
        "note": note,
        "median_ms": median_ms,
        "p90_ms": median_ms + 1,
        "limit_ms": limit_ms,
        "dtype": dtype,
    }


def full_size(**parts: object) -> dict[str, object]:
    return {
        "device": "A GPU",
        "torch": "2",
        "weights": "random",
        "ceilings": {},
        "figures": [],
        **parts,
    }


def test_steps_are_shown_by_number_format(folder):
    figures = [
        step("decode step, batch 1", "device", 4.0, 3.0),
        step("decode step, batch 1", "device", 2.5, 1.5, "float8"),
        step("prefill 512 rows on 0 cached", "wall", 12.0, None),
        step("forward of one row, batch 1", "wall", 5.0, 3.0),
        step("prefill 512 rows on 0 cached", "device", 11.0, None),
        step("per second of speech, 100 codes", "wall", 61.0, None),
        step("transformers generate, static cache, a token", "wall", 30.0, 3.0, ""),
    ]
    write(folder / "gpu.json", full_size(figures=figures))
    text = bench_tables.measurements()
    assert "## gpu.json\n\nA GPU, torch 2, weights: random.\n\n" in text
    assert "| ms, share of the limit | bfloat16 | float8 |" in text
    assert "| decode step, batch 1 | 4.00, 75% | 2.50, 60% |" in text
    assert "| prefill 512 rows on 0 cached | 12.00 |  |" in text
    assert "- Real-time factor of one stream with that vocoder: 0.061." in text
    assert "30.0 ms a token with its static cache (6.0 times as long)." in text
    assert (
        "| decode step, batch 1 (device) | float8 | 2.500 | 3.500 | 60% |"
        in text.partition("Every figure:")[2]
    )


def test_the_picture_shows_what_was_measured(folder):
    pytest.importorskip("matplotlib")
    figures = [
        *(step(f"decode step, batch {batch}", "device", 4.0 + batch, 3.0) for batch in (8, 1)),
        step("decode step, batch 8", "wall", 13.0, 3.0),
        step("decode step, batch 1", "device", 3.0, None, "float8"),
        step("prefill 64 rows on 2000 cached", "wall", 6.0, 3.0),
    ]
    report = full_size(figures=figures)
    assert bench_plot.decode_points(report) == {
        "bfloat16": [(1, 5.0, 3.0), (8, 12.0, 3.0)],
        "float8": [(1, 3.0, None)],
    }
    assert bench_plot.shares(report) == {
        "decode 8": {"bfloat16": 0.25},
        "decode 1": {"bfloat16": 0.6},
        "prefill 64 on 2000": {"bfloat16": 0.5},
    }
    paths = bench_plot.draw(report, folder / "full_size.svg")
    assert [path.name for path in paths] == ["full_size.svg", "full_size_dark.svg"]
    bright, dark = (path.read_text() for path in paths)
    assert "prefill 64 on 2000" in bright and "bfloat16" in dark and len(bright) < 100_000
    assert bright == bench_plot.draw(report, folder / "full_size.svg")[0].read_text()
    write(folder / "gpu.json", report)
    assert bench_headlines.headlines().startswith(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="../full_size_dark.svg">'
        '<img alt="full size" src="../full_size.svg"></picture>'
    )
    with pytest.raises(MossError, match="decode"):
        bench_plot.draw({**report, "figures": []}, folder / "none.svg")


def test_names_of_lines_that_end_together_stand_apart():
    heights = bench_plot.label_heights({"bfloat16": 14.7, "float8": 12.7, "float8-all": 12.4}, 0.8)
    assert heights == {"float8-all": 12.4, "float8": pytest.approx(13.2), "bfloat16": 14.7}


def test_streams_are_shown_by_load(folder):
    spread = {"ttfa_ms": {"p50": 70.2, "p95": 99.6, "p99": 120.0}, "rtf": {"p50": 0.25}}
    load = {
        "concurrency": 64,
        "replies": 128,
        "arrivals_per_s": None,
        "worst_rtf": 0.4,
        "late_chunks": 3,
        "audio_s_per_s": 63.21,
        "figures": spread,
        "hears_out": True,
    }
    streams = {
        "setup": {"prompt_rows": 64, "codes": 128},
        "memory_gib": 31.4,
        "load": [
            load,
            {**load, "hears_out": False},
            {**load, "arrivals_per_s": 5.0, "concurrency": 71},
        ],
    }
    write(folder / "gpu.json", full_size(streams=streams))
    text = bench_tables.measurements()
    assert "64 rows of prompt, 128 codes of reply; 31 GiB in all:" in text
    assert (
        "| 64, each hears replies out | 128 | 70 / 100 / 120 | 0.250 | 0.400 | 3 | 63.2 |" in text
    )
    assert (
        text.partition("**Listeners")[0] == text
        and "**Listeners of the full size**" in bench_headlines.headlines()
    )
    assert (
        "| 64, who ask again at once | 128 |" in text
        and "| 5 arrivals a second, up to 71 | 128 |" in text
    )


def test_a_note_is_told(folder):
    write(folder / "gpu.json", full_size(note="an earlier state"))
    assert "weights: random. an earlier state.\n" in bench_tables.measurements()


def test_formats_are_shown_against_the_reference(folder):
    found = {
        "dtype": "float8",
        "channel": "audio",
        "rows": 2664,
        "logit_error": 0.019,
        "kl_mean": 0.0022,
        "kl_p99": 0.011,
        "same_best": 0.956,
        "rows_changed": 0.0942,
    }
    free = {"dtype": "float8", "replies": 60, "equal": 0.1, "rows_until_different": 12.5}
    write(
        folder / "f.json",
        {
            "device": "A GPU",
            "torch": "2",
            "weights": "nano",
            "reference": "bfloat16",
            "prompts": 60,
            "agreement": [found, {**found, "rows_changed": None}],
            "free": [free],
            "note": "a remark",
        },
    )
    text = bench_tables.measurements()
    assert "against bfloat16. a remark." in text
    assert "| float8 | audio | 2664 | 1.90% | 0.0022 / 0.011 | 95.60% | 9.4% |" in text
    assert "95.60% |  |" in text and "10% equal, the others after 12.5 rows." in text


def test_attentions_are_shown_side_by_side(folder):
    ours = {
        "case": "decode",
        "method": "ours",
        "attention_us": None,
        "layer_us": 6.04,
        "agrees": True,
    }
    prefill = {**ours, "case": "prefill", "attention_us": 9.0, "layer_us": 12.0, "limit_us": 0.5}
    rows = [
        {**ours, "limit_us": 3.0},
        {**ours, "method": "other", "attention_us": 7.0, "agrees": False},
        prefill,
    ]
    write(
        folder / "a.json",
        {
            "device": "A GPU",
            "torch": "2",
            "attention": rows,
            "not_measured": {"FlashInfer": "not installed"},
        },
    )
    text = bench_tables.measurements()
    assert "A GPU, torch 2." in text and "| case | reading the KV | ours | other |" in text
    assert (
        "| decode | 3.0 | 6.0 | 6.0 (7.0), differs |" in text
        and "| prefill | 0.5 | 12.0 (9.0) |  |" in text
    )
    assert "- Not measured: FlashInfer: not installed." in text


def test_the_host_is_shown_by_streams(folder):
    cost = {
        "streams": 64,
        "engine_thread_ms": 0.456,
        "all_threads_ms": 1.2,
        "interpreter_share": 0.015,
    }
    write(
        folder / "host.json",
        {"cpu": "A CPU", "cores": 2, "load_average": 9.5, "python": "3.11.7", "host": [cost]},
    )
    text = bench_tables.measurements()
    assert (
        "A CPU, 2 cores, load 9.5, Python 3.11.7." in text and "| 64 | 0.46 | 1.20 | 1.5% |" in text
    )


def test_the_full_size_is_held_against_its_bars(folder):
    write(
        folder / "h200_full_size.json",
        full_size(
            figures=[
                step("decode step, batch 1", "device", 4.35, None),
                step("decode step, batch 32", "device", 8.5, None),
            ]
        ),
    )
    text = bench_headlines.headlines()
    assert "| decode step, batch 1, ms | 4.35 | ≤ 4.7 | ≤ 4.2 | met |" in text
    assert "| decode step, batch 32, ms | 8.5 | ≤ 8 | ≤ 6 | missed |" in text
    assert "| RTF of one stream |  | ≤ 0.08 | ≤ 0.06 | not measured |" in text


def test_two_gpus_stand_side_by_side(folder):
    for name, device, ms in (("h100", "NVIDIA H100 80GB", 5.9), ("h200", "NVIDIA H200", 4.35)):
        figures = [
            step("decode step, batch 1", "device", ms, 3.0),
            step("transformers generate, static cache, a token", "wall", 12.4, 3.0, ""),
        ]
        write(folder / f"{name}_full_size.json", full_size(figures=figures) | {"device": device})
    text = bench_headlines.headlines()
    assert "| ms, least time | H100, bfloat16 | H100, float8-all | H200, bfloat16 | H200, " in text
    assert "| decode step, batch 1 | 5.90, 3.00 |  | 4.35, 3.00 |  |" in text
    assert "| transformers generate, static cache, a token | 12.40, 3.00 |  | 12.40, 3.00 |" in text


def test_a_step_on_other_cards_is_predicted(folder):
    """10 GB that take 5 ms to read, and 13 ms beside 12 of arithmetic."""
    formats = [
        {"format": name, "step_weight_gb": 10.0, "decode_ms": {"1": 13.0}}
        for name in ("int8", "int4")
    ]
    report = {"device": "NVIDIA H200", "read_tb_per_s": 2.0, "formats": formats}
    write(folder / "h200_cards.json", report)
    write(folder / "h200_full_size.json", full_size(figures=[]))
    text = bench_headlines.headlines()
    assert "| NVIDIA H200 | int8 | 5.00 | 12.00 | 13.00 | 38% |" in text
    assert "| RTX 4090, predicted | int8 | 9.92 | 9.72 | 13.89 | 71% |" in text


def test_voice_and_page_are_headlines(folder):
    write(
        folder / "nano.json",
        {
            "recogniser": "ears 1",
            "wer_everyday_percent": 1.6,
            "wer_harvard_percent": 3.8,
            "app_memory_mb": 502,
        },
    )
    talk = {
        f"{name}_{rank}_ms": 60.1
        for name in ("first_sound", "silence")
        for rank in ("median", "worst")
    }
    write(folder / "hands_free.json", {"turns": 8, **talk})
    text = bench_headlines.headlines()
    assert (
        "- A recogniser (ears 1) mistakes 1.6 % of the words of everyday sentences and 3.8 %"
        in text
    )
    assert text.count(": 60 ms, at worst 60 ms in 8 turns.") == 2
    write(folder / "hands_free.json", {"turns": 8})
    with pytest.raises(MossError, match="is no measurement"):
        bench_headlines.headlines()


def test_single_figures_keep_their_units(folder):
    write(
        folder / "nano.json",
        {"wer_harvard_percent": 3.5, "ttfa_median_ms": 150.2, "stress_faithful": 99},
    )
    lines = bench_tables.measurements().splitlines()
    assert lines[-3:] == [
        "| wer harvard | 3.5 % |",
        "| ttfa median | 150.2 ms |",
        "| stress faithful | 99 |",
    ]


@pytest.mark.parametrize("text", ["{", '{"load": [{}], "machine": {}}', "[]"])
def test_a_file_that_is_no_measurement_is_named(folder, text):
    (folder / "bad.json").write_text(text)
    with pytest.raises(MossError, match=r"bad\.json is no measurement"):
        bench_tables.measurements()


def test_an_engine_file_is_shown_with_what_it_wastes(folder):
    kernels = {"conversions_us": 1500.0, "total_us": 4000.0}
    write(
        folder / "engine.json",
        {
            "device": "A GPU",
            "library": "tensorrt 8.6.0",
            "dtype": "float16",
            "layers": 3,
            "weights": "bound",
            "build_s": 18.6,
            "load_s": 0.3,
            "plan_mb": 2.9,
            "figures": [{"name": "decode step, batch 1", "note": "device", "median_ms": 6.0}],
            "torch_runtime": {
                "figures": [
                    {"name": name, "note": "device", "median_ms": 4.8, "dtype": "bfloat16"}
                    for name in ("decode step, batch 1", "prefill")
                ]
            },
            "kernels": {"decode": kernels},
        },
    )
    write(
        folder / "parity.json",
        {
            "device": "A GPU",
            "library": "tensorrt 8.6.0",
            "dtype": "float16",
            "equal_words": {"torch": 20, "bound": 19},
            "parity": [
                {
                    "weights": "bound",
                    "build_s": 29.14,
                    "agreeing_rows": 199,
                    "rows": 200,
                    "largest_difference": 0.04,
                    "largest_logit": 43.625,
                    "equal_replies": 14,
                    "sentences": 20,
                }
            ],
        },
    )
    text = bench_tables.measurements()
    assert (
        "A GPU, tensorrt 8.6.0, float16, 3 layers" in text
        and "| build, weights bound | 18.6 s, 2.9 MB |" in text
    )
    assert (
        "| decode step, batch 1 (device) | 6.00 ms |" in text
        and "only convert weights | 1.50 of 4.00 ms |" in text
    )
    assert "| load | 0.30 s |" in text
    assert "| the torch runtime in bfloat16: decode step, batch 1 (device) | 4.80 ms |" in text
    assert "prefill (device)" not in text
    assert "| bound | 29.1 s | 199 of 200 | 0.04 of 43.6 | 14 of 20 | 19 |" in text
    text = bench_headlines.headlines()
    assert (
        "A GPU, tensorrt 8.6.0, float16, 3 layers, weights bound: built in 19 s, loaded in 0.3 s\n"
        in text
    )
    assert "| ms | engine file, float16 | torch runtime, bfloat16 |" in text
    assert "| decode step, batch 1 (device) | 6.00 | 4.80 |" in text and "prefill" not in text
    assert "| float16, bound | 199 of 200 | 0.04 of 43.6 | 14 of 20 | 19 |" in text
