"""The measurements in assets/bench as tables: all of them, as assets/bench/README.md shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT
from scripts.bench.report.full_tables import agreement_lines, full_size_tables

FOLDER = REPO_ROOT / "assets" / "bench"
NONE_YET = "No measurement is stored in `assets/bench`."
UNITS = {"percent": "%", "ms": "ms", "mb": "MB", "gb": "GB", "s": "s"}
INTRODUCTION = """# Measurements

Every file of this folder as a table; made by `python -m scripts.dev.readme --write`. The commands
that measure them again are in [docs/speed.md](../../docs/speed.md), the meanings of the figures in
[docs/options.md](../../docs/options.md#figures)."""

Report = dict[str, Any]


def measurements() -> str:
    """Every measurement of assets/bench, one section a file: the text of assets/bench/README.md."""
    parts = [
        f"## {path.name}\n\n" + "\n".join(table(path, lambda report=report: _section(report)))
        for path, report in read_all().items()
    ]
    return "\n\n".join([INTRODUCTION, *(parts or [NONE_YET])]) + "\n"


def pictures() -> list[str]:
    """The folder's pictures, for documents in docs/; dark ones where NAME_dark exists."""
    shown = []
    for path in sorted(FOLDER.glob("*.svg")):
        if path.stem.endswith("_dark"):
            continue
        name, dark = f"../{path.relative_to(REPO_ROOT).as_posix()}", f"{path.stem}_dark.svg"
        source = ""
        if path.with_name(dark).exists():
            srcset = name.replace(path.name, dark)
            source = f'<source media="(prefers-color-scheme: dark)" srcset="{srcset}">'
        shown.append(
            f'<picture>{source}<img alt="{path.stem.replace("_", " ")}" src="{name}"></picture>'
        )
    return shown


def read_all() -> dict[Path, Report]:
    """What every file holds, by path; raises MossError for one that is no measurement."""
    return {path: _read(path) for path in sorted(FOLDER.glob("*.json"))}


def _read(path: Path) -> Report:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(report, dict)
    except (ValueError, AssertionError) as error:
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None
    return report


def table(path: Path, make: Callable[[], list[str]]) -> list[str]:
    """Lines that `make` draws from the report of `path`; raises MossError if it is incomplete."""
    try:
        return make()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None


def _section(report: Report) -> list[str]:
    said = [sentence for sentence in (title(report), report.get("note", "")) if sentence]
    return [*([f"{'. '.join(said)}.", ""] if said else []), *_lines(report)]


def title(report: Report) -> str:
    """Title of a report: machine, library, number format and weights."""
    if "load" in report:
        return machine(report["machine"])
    if "ceilings" in report:
        return f"{report['device']}, torch {report['torch']}, weights: {report['weights']}"
    if "host" in report:
        return (
            f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, Python "
            f"{report['python']}"
        )
    if "attention" in report:
        return f"{report['device']}, torch {report['torch']}"
    if "agreement" in report:
        return (
            f"{report['device']}, torch {report['torch']}, weights: {report['weights']}, "
            f"{report['prompts']} prompts, against {report['reference']}"
        )
    if "parity" in report:
        return f"{report['device']}, {report['library']}, {report['dtype']}"
    if "kernels" in report:
        return (
            f"{report['device']}, {report['library']}, {report['dtype']}, {report['layers']} layers"
        )
    return ""


def _lines(report: Report) -> list[str]:
    if "load" in report:
        return load_lines(report["load"])
    if "ceilings" in report:
        return full_size_tables(report)
    if "host" in report:
        return host_lines(report)
    if "attention" in report:
        return attention_lines(report)
    if "agreement" in report:
        return agreement_lines(report)
    if "parity" in report:
        return parity_lines(report)
    if "answers" in report:
        return answer_lines(report)
    return engine_lines(report) if "kernels" in report else figure_lines(report)


def answer_lines(report: Report) -> list[str]:
    """Answers that a reader judged: how many of each verdict; they themselves stay in the file."""
    return figure_lines({name: value for name, value in report.items() if name != "answers"})


def machine(values: dict[str, Any]) -> str:
    """The machine and the program of a load, in a line."""
    device = (
        values["device"]
        if values["device"] != "CPU"
        else f"{values['cpu']}, {values['cores']} cores"
    )
    return (
        f"{device}, {values['runtime']} {values['version']}, {values['dtype']}, checkpoint "
        f"{values['checkpoint']}"
    )


def load_lines(loads: list[dict[str, Any]]) -> list[str]:
    """What `scripts.bench` measured: one line for each number of listeners."""
    lines = [
        "| at a time | TTFA p50 / p95, ms | prefill p50, ms | RTF p50 / p95 | rows/s, all | "
        "without underrun |",
        "|---|---|---|---|---|---|",
    ]
    for load in loads:
        ttfa, prefill, rtf = (load["figures"][name] for name in ("ttfa_ms", "prefill_ms", "rtf"))
        lines.append(
            f"| {load['concurrency']} | {ttfa['p50']:.0f} / {ttfa['p95']:.0f} | "
            f"{prefill['p50']:.1f} | {rtf['p50']:.3f} / {rtf['p95']:.3f} | "
            f"{load['rows_per_s']:.0f} | {load['without_underrun']:.0%} |"
        )
    return lines


def host_lines(report: Report) -> list[str]:
    """A table of `scripts.bench.service.host`: host overhead by number of streams."""
    lines = [
        "| streams | engine's thread, CPU ms a step | all threads, CPU ms a step | share of an "
        "interpreter |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {h['streams']} | {h['engine_thread_ms']:.2f} | {h['all_threads_ms']:.2f} | "
        f"{h['interpreter_share']:.1%} |"
        for h in report["host"]
    ]


def attention_lines(report: Report) -> list[str]:
    """What `scripts.bench.lm.attention` measured: one line a case, one column a method."""
    rows = report["attention"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["case"], row["method"]): _attention_cell(row) for row in rows}
    lines = [
        "Microseconds a layer: with the norms, the rotary embedding, the KV write and any "
        "gathering; in brackets attention alone.",
        "",
        f"| case | reading the KV | {' | '.join(methods)} |",
        "|---|---|" + "---|" * len(methods),
    ]
    for first in (row for row in rows if "limit_us" in row):
        found = " | ".join(cells.get((first["case"], method), "") for method in methods)
        lines.append(f"| {first['case']} | {first['limit_us']:.1f} | {found} |")
    refused = [
        f"- Not measured: {name}: {reason}." for name, reason in report["not_measured"].items()
    ]
    return [*lines, *(["", *refused] if refused else [])]


def _attention_cell(row: Report) -> str:
    alone = "" if row["attention_us"] is None else f" ({row['attention_us']:.1f})"
    return f"{row['layer_us']:.1f}{alone}{'' if row['agrees'] else ', differs'}"


def engine_lines(report: Report) -> list[str]:
    """What `scripts.bench.lm.trt` measured of an engine file with random weights."""
    lines = [
        "| what | measured |",
        "|---|---|",
        f"| build, weights {report['weights']} | {report['build_s']:.1f} s, "
        f"{report['plan_mb']:.1f} MB |",
    ]
    if "load_s" in report:
        lines.append(f"| load | {report['load_s']:.2f} s |")
    lines += [
        f"| {figure['name']} ({figure['note']}) | {figure['median_ms']:.2f} ms |"
        for figure in report["figures"]
    ]
    measured = {(figure["name"], figure["note"]) for figure in report["figures"]}
    lines += [
        f"| the torch runtime in {figure['dtype']}: {figure['name']} ({figure['note']}) | "
        f"{figure['median_ms']:.2f} ms |"
        for figure in report.get("torch_runtime", {}).get("figures", ())
        if (figure["name"], figure["note"]) in measured
    ]
    lines += [
        f"| of a {name}'s kernels, those that only convert weights | "
        f"{kernels['conversions_us'] / 1e3:.2f} of {kernels['total_us'] / 1e3:.2f} ms |"
        for name, kernels in report["kernels"].items()
    ]
    return lines


def parity_lines(report: Report) -> list[str]:
    """A table of `scripts.bench.lm.trt`: the built-in voice's engine against torch."""
    lines = [
        "| weights | built in | rows with the same best id | largest difference | equal replies | "
        "equal words |",
        "|---|---|---|---|---|---|",
    ]
    for check in report["parity"]:
        words = report.get("equal_words", {}).get(check["weights"], "")
        lines.append(
            f"| {check['weights']} | {check['build_s']:.1f} s | {check['agreeing_rows']} of "
            f"{check['rows']} | {check['largest_difference']:.2g} of {check['largest_logit']:.3g} "
            f"| {check['equal_replies']} of {check['sentences']} | {words} |"
        )
    return lines


def figure_lines(report: Report) -> list[str]:
    """Single figures, such as those of `scripts.nano.evaluate`."""
    lines = ["| what | measured |", "|---|---|"]
    for name, value in report.items():
        if name == "note":
            continue
        words, _, last = name.rpartition("_")
        unit = UNITS.get(last)
        lines.append(
            f"| {(words if unit else name).replace('_', ' ')} | "
            f"{value}{f' {unit}' if unit else ''} |"
        )
    return lines
