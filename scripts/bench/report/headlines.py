"""The measurements in assets/bench that the README shows.

The built-in voice, the full size against its bars, listeners, engine files. All measurements are in
assets/bench/README.md, which `scripts.bench.report.tables` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.bench.measure_gpu import Bar, bars
from scripts.bench.report.cards import side_by_side
from scripts.bench.report.full_tables import stream_lines
from scripts.bench.report.tables import (
    NONE_YET,
    load_lines,
    machine,
    pictures,
    read_all,
    table,
    title,
)

CARD = "h200"
SIDE_BY_SIDE = (
    ("decode step, batch 1", "device"),
    ("prefill 512 rows on 0 cached", "wall"),
    ("prefill 64 rows on 2000 cached", "wall"),
)
"""Steps of an engine file and of the torch runtime, each with the clock that both were timed by."""
TALK = (
    ("Hands-free, from the last word to the first sound of the answer", "first_sound"),
    ("From the first sound of speech over an answer until it is silent", "silence"),
)

LISTENERS = "**Listeners of the full size**"
Report = dict[str, Any]


def headlines() -> str:
    """What a visitor wants to know; raises MossError for a file that is no measurement."""
    reports = {path.stem: (path, report) for path, report in read_all().items()}
    if not reports:
        return NONE_YET
    parts = [
        table(path, lambda report=report: load_part(report))
        for path, report in reports.values()
        if "load" in report
    ]
    if "nano" in reports and "hands_free" in reports:
        (path, voice), (_, talk) = reports["nano"], reports["hands_free"]
        parts.append(table(path, lambda: voice_part(voice, talk)))
    by_name = {name: report for name, (_, report) in reports.items()}
    parts += [bar_part(by_name), side_by_side(by_name)]
    parts += [
        table(path, lambda report=report: [LISTENERS, "", *stream_lines(report["streams"])])
        for path, report in reports.values()
        if "streams" in report
    ]
    parts += [
        table(path, lambda report=report: engine_part(report))
        for path, report in reports.values()
        if "torch_runtime" in report
    ]
    parts.append(
        parity_part([(path, report) for path, report in reports.values() if "parity" in report])
    )
    return "\n\n".join("\n".join(part) for part in parts if part)


def load_part(report: Report) -> list[str]:
    """A whole program under load."""
    return [
        f"**The built-in voice**, {machine(report['machine'])}",
        "",
        *load_lines(report["load"]),
    ]


def voice_part(voice: Report, talk: Report) -> list[str]:
    """How well the built-in voice is understood, and how fast the page reacts to a voice."""
    lines = [
        f"- A recogniser ({voice['recogniser']}) mistakes {voice['wer_everyday_percent']} % of the "
        f"words of everyday sentences and {voice['wer_harvard_percent']} % of the Harvard "
        f"sentences'. The page takes {voice['app_memory_mb']} MB of memory."
    ]
    if "distillmos_harvard" in voice:
        lines += sound_table(voice)
    return lines + [
        f"- {what}: {talk[f'{name}_median_ms']:.0f} ms, at worst {talk[f'{name}_worst_ms']:.0f} ms "
        f"in {talk['turns']} turns."
        for what, name in TALK
    ]


def sound_table(voice: Report) -> list[str]:
    """How good the voice sounds to two judges, step by step from its teacher to whole replies, as
    far as that was judged."""
    steps = (
        ("the teacher, Harvard sentences", "teacher"),
        ("vocoder alone, from true mels", "true_mel"),
        ("codec and vocoder", "copy_synthesis"),
        ("whole replies, Harvard sentences", "harvard"),
        ("whole replies, everyday sentences", "everyday"),
    )
    rows = [
        f"| {what} | "
        + " | ".join(
            f"{voice[f'{judge}_{step}']:.2f} ({voice[f'{judge}_{step}_worst']:.2f})"
            for judge in ("distillmos", "dnsmos")
        )
        + " |"
        for what, step in steps
        if f"distillmos_{step}" in voice
    ]
    return [
        "",
        "Judged by two predictors of opinions, from 1 to 5, the mean and the worst sentence:",
        "",
        "| what is heard | DistillMOS | DNSMOS |",
        "|---|---|---|",
        *rows,
        "",
    ]


def bar_part(reports: dict[str, Report]) -> list[str]:
    """The full size against its bars."""
    found = bars(
        {
            name.removeprefix(f"{CARD}_"): report
            for name, report in reports.items()
            if name.startswith(CARD)
        }
    )
    if all(bar.measured is None for bar in found):
        return pictures()
    return [
        *(f"{picture}\n" for picture in pictures()),
        "**The full size on one NVIDIA H200**, with random weights, against what it must reach "
        "and aims at",
        "",
        "| what | measured | must | aim | |",
        "|---|---|---|---|---|",
        *(_bar_line(bar) for bar in found),
    ]


def _bar_line(bar: Bar) -> str:
    measured = "" if bar.measured is None else f"{bar.measured:.4g}"
    sign = "≤" if bar.lower else "≥"
    return (
        f"| {bar.name} | {measured} | {sign} {bar.must:g} | {sign} {bar.aim:g} | {bar.verdict()} |"
    )


def engine_part(report: Report) -> list[str]:
    """An engine file beside the torch runtime."""
    plan, torch = (
        _medians(figures) for figures in (report["figures"], report["torch_runtime"]["figures"])
    )
    dtype = report["torch_runtime"]["figures"][0]["dtype"]
    remark = f"; {report['note']}" if "note" in report else ""
    lines = [
        f"**An engine file of the full size**, {title(report)}, weights {report['weights']}: built "
        f"in {report['build_s']:.0f} s, loaded in {report['load_s']:.1f} s{remark}",
        "",
        f"| ms | engine file, {report['dtype']} | torch runtime, {dtype} |",
        "|---|---|---|",
    ]
    return lines + [
        f"| {key[0]} ({key[1]}) | {plan[key]:.2f} | {torch[key]:.2f} |"
        for key in SIDE_BY_SIDE
        if key in plan and key in torch
    ]


def _medians(figures: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {(figure["name"], figure["note"]): figure["median_ms"] for figure in figures}


def parity_part(reports: list[tuple[Path, Report]]) -> list[str]:
    """The built-in voice from engine files against the torch runtime in the same number format."""
    lines = [
        line
        for path, report in reports
        for line in table(path, lambda report=report: _parity_lines(report))
    ]
    head = [
        "**The built-in voice from an engine file** against the torch runtime in the same number "
        "format",
        "",
        "| engine file | rows with the same best id | largest difference of logits | replies of "
        "the same rows | of the same words |",
        "|---|---|---|---|---|",
    ]
    return [*head, *lines] if lines else []


def _parity_lines(report: Report) -> list[str]:
    words = report.get("equal_words", {})
    return [
        f"| {report['dtype']}, {check['weights']} | {check['agreeing_rows']} of {check['rows']} | "
        f"{check['largest_difference']:.2g} of {check['largest_logit']:.3g} | "
        f"{check['equal_replies']} of {check['sentences']} | {words.get(check['weights'], '')} |"
        for check in report["parity"]
    ]
