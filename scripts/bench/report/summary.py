"""The README's one table of figures: the built-in voice beside the full size."""

from __future__ import annotations

from typing import Any

from scripts.bench.measure_gpu import figure_of
from scripts.bench.report.tables import NONE_YET, read_all

Report = dict[str, Any]
IN_TIME_RTF = 0.9
"""A listener is served in time if no chunk was late and the reply was made this much faster."""


def summary() -> str:
    """Raises MossError for a file that is no measurement."""
    reports = {path.stem: report for path, report in read_all().items()}
    cpu, voice, full = (reports.get(name, {}) for name in ("cpu", "nano", "h200_full_size"))
    if not cpu and not full:
        return NONE_YET
    small, large = cpu.get("load", []), full.get("streams", {}).get("load", [])
    decode = figure_of(full, "decode step, batch 1", "device", "bfloat16")
    lines = [
        ("time to first audio, median", _first(small, "ttfa_ms"), _first(large, "ttfa_ms")),
        ("real-time factor of one reply, median", _first(small, "rtf"), _first(large, "rtf")),
        ("listeners at a time without a gap", _in_time(small), _in_time(large)),
        ("decode step of one reply", "", _with_unit(decode, "ms")),
        (
            "words that a recogniser mistakes",
            _with_unit(voice.get("wer_everyday_percent"), "%"),
            "not known",
        ),
        (
            "how good it sounds, by DistillMOS, 1 to 5",
            _with_unit(voice.get("distillmos_harvard"), "").strip(),
            "not known",
        ),
        (
            "memory",
            _with_unit(voice.get("app_memory_mb"), "MB"),
            _with_unit(full.get("streams", {}).get("memory_gib"), "GiB"),
        ),
    ]
    return "\n".join(
        [
            "| | built-in voice, 2 CPU cores | full size, random weights, one H200 |",
            "|---|---|---|",
            *(f"| {name} | {left} | {right} |" for name, left, right in lines),
        ]
    )


def _first(levels: list[Report], name: str) -> str:
    """The median of one listener."""
    value = next(
        (load["figures"][name]["p50"] for load in levels if load["concurrency"] == 1), None
    )
    return "" if value is None else f"{value:.0f} ms" if name.endswith("_ms") else f"{value:.2f}"


def _in_time(levels: list[Report]) -> str:
    found = [
        load["concurrency"]
        for load in levels
        if load.get("arrivals_per_s") is None
        and load["without_underrun"] == 1
        and load.get("worst_rtf", 0) < IN_TIME_RTF
    ]
    return f"{max(found)}" if found else ""


def _with_unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}"
