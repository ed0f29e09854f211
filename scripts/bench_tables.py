"""The measurements in assets/bench as tables: what the README shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moss_engine.config import REPO_ROOT
from moss_engine.errors import MossError
from scripts.bench_full_tables import agreement_lines, full_size_tables

FOLDER = REPO_ROOT / "assets" / "bench"
NONE_YET = "No measurement is stored in `assets/bench`."
UNITS = {"percent": "%", "ms": "ms", "mb": "MB", "gb": "GB", "s": "s"}
ALWAYS_OPEN = ("load", "ceilings", "source")  # a report with one of these and no note is shown at first sight


def benchmarks() -> str:
    """The pictures of assets/bench, then what each file holds: open for a whole program under load, else folded."""
    paths = sorted(FOLDER.glob("*.json"))
    if not paths:
        return NONE_YET
    reports = {path: _read(path) for path in paths}
    is_open = {path: "note" not in report and any(name in report for name in ALWAYS_OPEN)
               for path, report in reports.items()}
    paths.sort(key=lambda path: not is_open[path])
    tables = [_table(path, reports[path], is_open=is_open[path]) for path in paths]
    return "\n\n".join([*_pictures(), *tables])


def _pictures() -> list[str]:
    """Each for bright pages, and for dark ones where NAME_dark is there."""
    shown = []
    for path in sorted(FOLDER.glob("*.svg")):
        if path.stem.endswith("_dark"):
            continue
        name, dark = path.relative_to(REPO_ROOT).as_posix(), path.with_name(f"{path.stem}_dark.svg")
        source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark.relative_to(REPO_ROOT).as_posix()}">' \
            if dark.exists() else ""
        shown.append(f'<picture>{source}<img alt="{path.stem.replace("_", " ")}" src="{name}"></picture>')
    return shown


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(report, dict)
    except (ValueError, AssertionError) as error:
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None
    return report


def _table(path: Path, report: dict[str, Any], *, is_open: bool) -> str:
    try:
        if "load" in report:
            head, lines = _machine(report["machine"]), load_lines(report["load"])
        elif "ceilings" in report:
            head = f"{report['device']}, torch {report['torch']}, weights: {report['weights']}"
            lines = full_size_tables(report)
        elif "host" in report:
            head = f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, Python {report['python']}"
            lines = host_lines(report)
        elif "agreement" in report:
            head = f"{report['device']}, torch {report['torch']}, weights: {report['weights']}, " \
                f"{report['prompts']} prompts, against {report['reference']}"
            lines = agreement_lines(report)
        elif "parity" in report:
            head = f"{report['device']}, {report['library']}, {report['dtype']}"
            lines = parity_lines(report)
        elif "kernels" in report:
            head = f"{report['device']}, {report['library']}, {report['dtype']}, {report['layers']} layers"
            lines = engine_lines(report)
        else:
            head, lines = "", figure_lines(report)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None
    notes = [part for part in (head, report.get("source", "") if head else "", report.get("note", "")) if part]
    title = path.relative_to(REPO_ROOT).as_posix() + (f" ({'; '.join(notes)})" if notes else "")
    if is_open:
        return "\n".join([f"{title}:", "", *lines])
    return "\n".join([f"<details><summary>{title}</summary>", "", *lines, "", "</details>"])


def _machine(values: dict[str, Any]) -> str:
    device = values["device"] if values["device"] != "CPU" else f"{values['cpu']}, {values['cores']} cores"
    return f"{device}, {values['runtime']} {values['version']}, {values['dtype']}, checkpoint {values['checkpoint']}"


def load_lines(loads: list[dict[str, Any]]) -> list[str]:
    """What `scripts.bench` measured: one line for each number of listeners."""
    lines = ["| at a time | TTFA p50 / p95, ms | prefill p50, ms | RTF p50 / p95 | rows/s, all | without underrun |",
             "|---|---|---|---|---|---|"]
    for load in loads:
        ttfa, prefill, rtf = (load["figures"][name] for name in ("ttfa_ms", "prefill_ms", "rtf"))
        lines.append(f"| {load['concurrency']} | {ttfa['p50']:.0f} / {ttfa['p95']:.0f} | {prefill['p50']:.1f} | "
                     f"{rtf['p50']:.3f} / {rtf['p95']:.3f} | {load['rows_per_s']:.0f} | "
                     f"{load['without_underrun']:.0%} |")
    return lines


def host_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.bench_host` measured: the program around the network, by the number of streams."""
    lines = ["| streams | engine's thread, CPU ms a step | all threads, CPU ms a step | share of an interpreter |",
             "|---|---|---|---|"]
    return lines + [f"| {h['streams']} | {h['engine_thread_ms']:.2f} | {h['all_threads_ms']:.2f} | "
                    f"{h['interpreter_share']:.1%} |" for h in report["host"]]


def engine_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.bench_trt` measured of an engine file with random weights."""
    lines = ["| what | measured |", "|---|---|",
             f"| build, weights {report['weights']} | {report['build_s']:.1f} s, {report['plan_mb']:.1f} MB |"]
    if "load_s" in report:
        lines.append(f"| load | {report['load_s']:.2f} s |")
    lines += [f"| {figure['name']} ({figure['note']}) | {figure['median_ms']:.2f} ms |" for figure in report["figures"]]
    measured = {(figure["name"], figure["note"]) for figure in report["figures"]}
    lines += [f"| the torch runtime in {figure['dtype']}: {figure['name']} ({figure['note']}) | "
              f"{figure['median_ms']:.2f} ms |" for figure in report.get("torch_runtime", {}).get("figures", ())
              if (figure["name"], figure["note"]) in measured]
    lines += [f"| of a {name}'s kernels, those that only convert weights | {kernels['conversions_us'] / 1e3:.2f} of "
              f"{kernels['total_us'] / 1e3:.2f} ms |" for name, kernels in report["kernels"].items()]
    return lines


def parity_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.bench_trt` found of the built-in voice's engine, against the torch runtime."""
    lines = ["| weights | built in | rows with the same best id | largest difference | equal replies | equal words |",
             "|---|---|---|---|---|---|"]
    for check in report["parity"]:
        words = report.get("equal_words", {}).get(check["weights"], "")
        lines.append(f"| {check['weights']} | {check['build_s']:.1f} s | {check['agreeing_rows']} of {check['rows']} | "
                     f"{check['largest_difference']:.2g} of {check['largest_logit']:.3g} | {check['equal_replies']} of "
                     f"{check['sentences']} | {words} |")
    return lines


def figure_lines(report: dict[str, Any]) -> list[str]:
    """Single figures, such as those of `scripts.nano.evaluate`."""
    lines = ["| what | measured |", "|---|---|"]
    for name, value in report.items():
        words, _, last = name.rpartition("_")
        unit = UNITS.get(last)
        lines.append(f"| {(words if unit else name).replace('_', ' ')} | {value}{f' {unit}' if unit else ''} |")
    return lines
