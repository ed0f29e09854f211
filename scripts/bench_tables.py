"""The measurements in assets/bench as tables: what the README shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moss_engine.config import REPO_ROOT
from moss_engine.errors import MossError

FOLDER = REPO_ROOT / "assets" / "bench"
NONE_YET = "No measurement is stored in `assets/bench`."
MAX_OPEN_LINES = 8  # longer tables are folded
UNITS = {"percent": "%", "ms": "ms", "mb": "MB"}


def benchmarks() -> str:
    """The picture of assets/bench, if there is one, and one table for each file, in the order of their names."""
    files = sorted(FOLDER.glob("*.json"))
    pictures = [f"![{path.stem.replace('_', ' ')}]({path.relative_to(REPO_ROOT).as_posix()})"
                for path in sorted(FOLDER.glob("*.png"))]
    return "\n\n".join([*pictures, *(_table(path) for path in files)]) if files else NONE_YET


def _table(path: Path) -> str:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if "load" in report:
            head, lines = _machine(report["machine"]), load_lines(report["load"])
        elif "ceilings" in report:
            float8 = report.get("float8", "none")
            head = f"{report['device']}, torch {report['torch']}, weights: {report['weights']}" \
                + (f", float8: {float8}" if float8 != "none" else "")
            lines = step_lines(report) if report["figures"] else []
            if "streams" in report:
                lines += ["", *stream_lines(report["streams"])]
        elif "host" in report:
            head = f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, Python {report['python']}"
            lines = host_lines(report)
        elif "agreement" in report:
            head = f"{report['device']}, torch {report['torch']}, weights: {report['weights']}, " \
                f"{report['prompts']} prompts, against {report['reference']}"
            lines = agreement_lines(report)
        elif "kernels" in report:
            head = f"{report['device']}, {report['library']}, {report['dtype']}, {report['layers']} layers"
            lines = engine_lines(report)
        else:
            head, lines = "", figure_lines(report)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None
    notes = [part for part in (head, report.get("note", "")) if part]
    title = path.relative_to(REPO_ROOT).as_posix() + (f" ({'; '.join(notes)})" if notes else "")
    if len(lines) <= MAX_OPEN_LINES:
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


def agreement_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.float8_report` found: formats against the reference, one line for each channel, then replies."""
    lines = ["| format | channel | rows | logit error | KL mean / p99, nats | same best id | ids changed |",
             "|---|---|---|---|---|---|---|"]
    for a in report["agreement"]:
        changed = "" if a["rows_changed"] is None else f"{a['rows_changed']:.1%}"
        lines.append(f"| {a['dtype']} | {a['channel']} | {a['rows']} | {a['logit_error']:.2%} | {a['kl_mean']:.2g} / "
                     f"{a['kl_p99']:.2g} | {a['same_best']:.2%} | {changed} |")
    for f in report["free"]:
        until = "" if f["rows_until_different"] is None else f", the others after {f['rows_until_different']:g} rows"
        lines += ["", f"{f['dtype']}, {f['replies']} replies by itself: {f['equal']:.0%} equal{until}."]
    return lines


def stream_lines(streams: dict[str, Any]) -> list[str]:
    """Many listeners of the full-size network: one line for each level of load."""
    setup = streams["setup"]
    lines = [f"{setup['prompt_rows']} rows of prompt, {setup['codes']} codes of reply, each heard to the end; "
             f"{streams['memory_gib']:.0f} GiB in all:", "",
             "| listeners | replies | TTFA p50 / p95 / p99, ms | RTF p50 / worst | late chunks | s of audio a second |",
             "|---|---|---|---|---|---|"]
    for load in streams["load"]:
        ttfa, rtf, rate = load["figures"]["ttfa_ms"], load["figures"]["rtf"], load["arrivals_per_s"]
        who = load["concurrency"] if rate is None else f"{rate:g} arrivals a second, up to {load['concurrency']}"
        lines.append(f"| {who} | {load['replies']} | {ttfa['p50']:.0f} / {ttfa['p95']:.0f} / {ttfa['p99']:.0f} | "
                     f"{rtf['p50']:.3f} / {load['worst_rtf']:.3f} | {load['late_chunks']} | "
                     f"{load['audio_s_per_s']:.1f} |")
    return lines


def step_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.bench --preset` measured: one line for each kind of step, with its share of the machine's limit."""
    lines = ["| what | median, ms | p90, ms | of the limit |", "|---|---|---|---|"]
    for figure in report["figures"]:
        share = f"{figure['limit_ms'] / figure['median_ms']:.0%}" if figure["limit_ms"] is not None else ""
        lines.append(f"| {figure['name']} ({figure['note']}) | {figure['median_ms']:.3f} | {figure['p90_ms']:.3f} | "
                     f"{share} |")
    return lines


def engine_lines(report: dict[str, Any]) -> list[str]:
    """What `scripts.bench_trt` measured of an engine file with random weights."""
    lines = ["| what | measured |", "|---|---|",
             f"| build, weights {report['weights']} | {report['build_s']:.1f} s, {report['plan_mb']:.1f} MB |"]
    lines += [f"| {figure['name']} ({figure['note']}) | {figure['median_ms']:.2f} ms |" for figure in report["figures"]]
    lines += [f"| of a {name}'s kernels, those that only convert weights | {kernels['conversions_us'] / 1e3:.2f} of "
              f"{kernels['total_us'] / 1e3:.2f} ms |" for name, kernels in report["kernels"].items()]
    return lines


def figure_lines(report: dict[str, Any]) -> list[str]:
    """Single figures, such as those of `scripts.nano.evaluate`."""
    lines = ["| what | measured |", "|---|---|"]
    for name, value in report.items():
        words, _, last = name.rpartition("_")
        unit = UNITS.get(last)
        lines.append(f"| {(words if unit else name).replace('_', ' ')} | {value}{f' {unit}' if unit else ''} |")
    return lines
