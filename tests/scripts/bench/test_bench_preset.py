"""Options of the full-size bench, and the plan they make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import ConfigError
from scripts.bench.common.load import pairs
from scripts.bench.service.preset import room, stream_plan
from scripts.bench.service.preset_options import NAME, parse

ROOT = Path(__file__).resolve().parents[3]


def test_levels_of_load():
    args = parse(
        [
            "--preset",
            NAME,
            "--listeners",
            "4:8,64:128",
            "--arrivals",
            "2.5:40",
            "--chunk-codes",
            "5,10",
            "--hasty",
            "1:30",
        ]
    )
    setup, levels = stream_plan(args)
    assert [
        (level.listeners, level.arrivals_per_s, level.replies, level.hears_out) for level in levels
    ] == [(1, 0.0, 30, False), (4, 0.0, 8, True), (64, 0.0, 128, True), (0, 2.5, 40, True)]
    assert (setup.chunk_codes, setup.prompt_rows, setup.codes) == ((5, 10), 64, 128)


@pytest.mark.parametrize(
    "options",
    [
        ["--parts", "decode,flight"],
        ["--batches", "1,x"],
        ["--listeners", "4"],
        ["--listeners", "0:4"],
        ["--arrivals", "1:0"],
        ["--chunk-codes", "0"],
        ["--dtype", "bfloat16,int4"],
        ["--hasty", "4"],
    ],
)
def test_impossible_options_are_refused(options: list[str]):
    with pytest.raises(ConfigError):
        parse(["--preset", NAME, *options])


def test_there_is_room_for_every_part():
    def places_and_rows(*options: str, is_first: bool = True) -> tuple[int, int]:
        return room(
            parse(["--preset", NAME, "--batches", "1,8", "--kv-rows", "1024", *options]),
            is_first=is_first,
        )

    assert places_and_rows() == (8, 8 * 39 * 16)
    streams = ("--parts", "decode,streams", "--listeners", "300:300", "--codes", "64")
    assert places_and_rows(*streams) == (300, 301 * 128)
    assert places_and_rows(*streams, is_first=False) == (8, 8 * 39 * 16)
    assert places_and_rows(*streams, "--arrivals", "5:9", "--listeners", "2:2")[0] == 64


def test_no_load_is_no_pair():
    assert pairs("--arrivals", "") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench", "--preset", NAME],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "GPU" in done.stderr
