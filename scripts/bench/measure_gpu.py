"""All GPU tests and measurements, one after the other, and their verdicts:

    python -m scripts.bench.measure_gpu [--card h200] [--only parity,full_size] [--out assets/bench]

Each command runs in a process of its own with a time limit and writes its own file; one that fails
is named at the end and does not stop the others. `--bars` only reads the files. On an idle GPU all
of it takes about 25 minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.config import REPO_ROOT

FULL_SIZE = ("scripts.bench", "--preset", "moss-speech")
REAL_TIME_RTF = 0.9


@dataclass(frozen=True)
class Step:
    """`module` and its options; OUT_FILE stands for the file of results."""

    name: str
    limit_s: int
    command: tuple[str, ...]
    file: str = ""


OUT_FILE = "{file}"
STEPS = (
    Step("parity", 600, ("pytest", "-q", "-m", "gpu")),
    Step(
        "full_size",
        600,
        (
            *FULL_SIZE,
            "--dtype",
            "bfloat16,float8-all,float8",
            "--batches",
            "1,2,4,8,16,32,64,128,256",
            "--parts",
            "decode,prefill,speech,agreement,streams,sampler,vocoder,baselines",
            "--codes",
            "64",
            "--hasty",
            "1:30,2:30,4:40,8:48,16:64,32:96,64:128",
            "--listeners",
            "64:128,256:512",
            "--arrivals",
            "25:250,45:450",
            "--json",
            OUT_FILE,
        ),
        "full_size",
    ),
    Step(
        "budget",
        180,
        ("scripts.bench.service.budget", "--limit-gb", "22", "--out", OUT_FILE),
        "budget",
    ),
    Step("codec", 240, ("scripts.bench.codec.codec", "--out", OUT_FILE), "codec"),
    Step("moss", 240, ("scripts.bench.service.moss", "--out", OUT_FILE), "moss"),
    Step(
        "encode",
        120,
        ("scripts.bench.codec.encode", "--device", "cuda", "--out", OUT_FILE),
        "encode",
    ),
    Step(
        "agreement_nano",
        300,
        ("scripts.bench.lm.float8_report", "--calibrate", "500", "--json", OUT_FILE),
        "agreement_nano",
    ),
)


@dataclass(frozen=True)
class Bar:
    """One bar: `measured` is None where nothing was; `lower` tells whether less is better."""

    name: str
    must: float
    aim: float
    measured: float | None
    lower: bool = True

    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        sign = 1 if self.lower else -1
        if sign * self.measured <= sign * self.aim:
            return "aim met"
        return "met" if sign * self.measured <= sign * self.must else "missed"


STEP_BARS = (  # milliseconds: name, must, aim, and the figure of the report
    ("decode step, batch 1, ms", 4.7, 4.2, ("decode step, batch 1", "device", "bfloat16")),
    ("decode step, float8, ms", 2.7, 2.2, ("decode step, batch 1", "device", "float8-all")),
    ("decode step, batch 32, ms", 8, 6, ("decode step, batch 32", "device", "bfloat16")),
    ("prefill of 512 rows, ms", 14, 11.5, ("prefill 512 rows on 0 cached", "wall", "bfloat16")),
    ("64 rows on 2000 cached, ms", 8, 5, ("prefill 64 rows on 2000 cached", "wall", "bfloat16")),
    (
        "time to first audio, 5 codes, ms",
        60,
        40,
        ("to the first 5 codes' samples, 512 rows", "wall", "bfloat16"),
    ),
)


def bars(reports: dict[str, dict[str, Any]]) -> list[Bar]:
    """The bars of the full size on one H200, from the reports by the names of their files."""
    full = reports.get("full_size", {})
    streams = full.get("streams", {}).get("load", [])
    in_time = [
        load["concurrency"]
        for load in streams
        if load["arrivals_per_s"] is None
        and load["late_chunks"] == 0
        and load["worst_rtf"] < REAL_TIME_RTF
    ]
    most = max(in_time, default=0) if streams else None
    speech_ms = figure_of(full, "per second of speech, 100 codes", "wall", "bfloat16")
    reserved_gb = reports.get("budget", {}).get("reserved_peak_gb")
    return [
        *(Bar(name, must, aim, figure_of(full, *found)) for name, must, aim, found in STEP_BARS),
        Bar("RTF of one stream", 0.08, 0.06, None if speech_ms is None else speech_ms / 1e3),
        Bar("streams in real time", 64, 256, most, lower=False),
        Bar("24 GB card: everything, GB", 22, 22, reserved_gb),
        *codec_bars(reports.get("codec", {}), reports.get("moss", {})),
    ]


def codec_bars(codec: dict[str, Any], moss: dict[str, Any]) -> list[Bar]:
    """The bars of the MOSS-Speech codec alone, and with the language model before it."""
    first, last = (codec.get(f"chunk_of_1_{part}_tenth_p50_ms") for part in ("first", "last"))
    return [
        Bar("codec, 5 codes of one reply, ms", 25, 25, codec.get("chunk_of_1_p50_ms")),
        Bar("codec, 5 codes of 16 replies, ms", 60, 60, codec.get("chunk_of_16_p50_ms")),
        Bar(
            "codec, end of 60 s against its start",
            1.1,
            1.0,
            last / first if first and last else None,
        ),
        Bar("codec, encode 10 s, ms", 25, 25, codec.get("encode_10_s_p50_ms")),
        Bar("codec in 16 bit, MB", 1600, 1600, codec.get("float16_one_voice_one_reply_mb")),
        Bar(
            "4 s of speech to first sound, ms",
            150,
            80,
            moss.get("speech_in_4_s_first_sound_p50_ms"),
        ),
        Bar("RTF with the codec", 0.15, 0.15, moss.get("listeners_1_worst_rtf")),
        Bar("late chunks of 16 listeners", 0, 0, moss.get("listeners_16_late_chunks")),
    ]


def figure_of(report: dict[str, Any], name: str, note: str, dtype: str) -> float | None:
    """Median of one figure of a full-size report, None where it was not measured."""
    return next(
        (
            f["median_ms"]
            for f in report.get("figures", [])
            if (f["name"], f["note"], f["dtype"]) == (name, note, dtype)
        ),
        None,
    )


def read_reports(folder: Path, card: str) -> dict[str, dict[str, Any]]:
    """Those files of the steps that are there."""
    paths = {step.file: folder / f"{card}_{step.file}.json" for step in STEPS if step.file}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def run_step(step: Step, folder: Path, card: str) -> str:
    """Run one step; what became of it, in a word or two."""
    file = str(folder / f"{card}_{step.file}.json")
    command = [sys.executable, "-m", *(file if part == OUT_FILE else part for part in step.command)]
    print(f"== {step.name}: {' '.join(command[1:])}", flush=True)
    start_s = time.monotonic()
    try:
        code = subprocess.run(command, cwd=REPO_ROOT, timeout=step.limit_s).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {step.limit_s} s"
    return (
        f"{'done' if code == 0 else f'failed with exit code {code}'} in "
        f"{time.monotonic() - start_s:.0f} s"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.measure_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--card", default="h200", help="first part of the files' names (h200)")
    parser.add_argument(
        "--only", metavar="NAME,...", help=f"of {', '.join(step.name for step in STEPS)} (all)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=REPO_ROOT / "assets" / "bench",
        metavar="DIR",
        help="folder of the files (assets/bench)",
    )
    parser.add_argument("--bars", action="store_true", help="run nothing, read what is there")
    args = parser.parse_args(argv)
    wanted = args.only.split(",") if args.only else [step.name for step in STEPS]
    unknown = set(wanted) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"--only names no step with {', '.join(sorted(unknown))}")
    outcomes = {
        step.name: run_step(step, args.out, args.card)
        for step in STEPS
        if step.name in wanted and not args.bars
    }
    for bar in bars(read_reports(args.out, args.card)):
        measured = "" if bar.measured is None else f"{bar.measured:.3f}"
        print(f"{bar.name:<38}{measured:>10}   must {bar.must:g}, aim {bar.aim:g}: {bar.verdict()}")
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int(any(not outcome.startswith("done") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
