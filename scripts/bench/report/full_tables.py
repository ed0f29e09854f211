"""The full-size measurements of `scripts.bench --preset` as tables. Used by
`scripts.bench.report.tables`."""

from __future__ import annotations

import re
from typing import Any

Figures = list[dict[str, Any]]
HEADLINES = (
    ("device", re.compile(r"decode step, batch \d+(, speaking, rows drawn)?$")),
    ("wall", re.compile(r"prefill (512|64) rows on \d+ cached$")),
)
"""What is shown of the steps at first sight, and by which clock."""


def full_size_tables(report: dict[str, Any]) -> list[str]:
    """What one wants to know first, then every figure."""
    figures: Figures = report["figures"]
    parts = [_headlines(figures), _singles(figures)]
    if "agreement" in report:
        parts.append(agreement_lines(report))
    if "streams" in report:
        parts.append(stream_lines(report["streams"]))
    every = ["Every figure:", "", *figure_lines(figures)] if figures else []
    return [line for part in (*parts, every) if part for line in (*part, "")][:-1]


def _headlines(figures: Figures) -> list[str]:
    """A table of steps by number format: milliseconds, share of the limit."""
    shown = [
        f
        for f in figures
        if any(f["note"] == note and form.match(f["name"]) for note, form in HEADLINES)
    ]
    dtypes = list(dict.fromkeys(f["dtype"] for f in shown))
    if not shown:
        return []
    cells = {(f["name"], f["dtype"]): _cell(f) for f in shown}
    lines = [f"| ms, share of the limit | {' | '.join(dtypes)} |", "|---|" + "---|" * len(dtypes)]
    for name in dict.fromkeys(f["name"] for f in shown):
        lines.append(f"| {name} | {' | '.join(cells.get((name, dtype), '') for dtype in dtypes)} |")
    return lines


def _cell(figure: dict[str, Any]) -> str:
    share = (
        f", {figure['limit_ms'] / figure['median_ms']:.0%}"
        if figure["limit_ms"] is not None
        else ""
    )
    return f"{figure['median_ms']:.2f}{share}"


def _singles(figures: Figures) -> list[str]:
    """One stream, and what else there is."""
    wall = {
        f["name"]: f["median_ms"]
        for f in figures
        if f["note"] == "wall" and f["dtype"] in ("", "bfloat16")
    }
    compiled = next((f["median_ms"] for f in figures if f["name"].startswith("compiled")), None)
    lines = []
    for name, value in wall.items():
        if name.startswith("to the first"):
            lines.append(
                f"- {name[0].upper()}{name[1:]} (bfloat16 and a BigVGAN of 112 M): {value:.1f} ms."
            )
        if name.startswith("per second of speech"):
            lines.append(f"- Real-time factor of one stream with that vocoder: {value / 1e3:.3f}.")
    row = wall.get("forward of one row, batch 1")
    tokens = {
        cache: wall[name]
        for cache in ("dynamic", "static")
        if (name := f"transformers generate, {cache} cache, a token") in wall
    }
    if tokens and row:
        times = [
            f"{ms:.1f} ms a token with its {cache} cache ({ms / row:.1f} times as long)"
            for cache, ms in tokens.items()
        ]
        beside = (
            f"; plain PyTorch, compiled and in a CUDA graph, takes {compiled:.2f} ms a step"
            if compiled
            else ""
        )
        lines.append(f"- `transformers` with the same layers: {', '.join(times)}{beside}.")
    return lines


def agreement_lines(report: dict[str, Any]) -> list[str]:
    """Formats against the reference, one line for each channel, then replies."""
    lines = [
        "| format | channel | rows | logit error | KL mean / p99, nats | same best id | ids "
        "changed |",
        "|---|---|---|---|---|---|---|",
    ]
    for a in report["agreement"]:
        changed = "" if a["rows_changed"] is None else f"{a['rows_changed']:.1%}"
        lines.append(
            f"| {a['dtype']} | {a['channel']} | {a['rows']} | {a['logit_error']:.2%} | "
            f"{a['kl_mean']:.2g} / {a['kl_p99']:.2g} | {a['same_best']:.2%} | {changed} |"
        )
    for f in report["free"]:
        until = (
            ""
            if f["rows_until_different"] is None
            else f", the others after {f['rows_until_different']:g} rows"
        )
        lines += [
            "",
            f"{f['dtype']}, {f['replies']} replies by itself: {f['equal']:.0%} equal{until}.",
        ]
    return lines


def stream_lines(streams: dict[str, Any]) -> list[str]:
    """A table of many listeners: a line for each level of load."""
    setup = streams["setup"]
    memory = f"; {streams['memory_gib']:.0f} GiB in all" if "memory_gib" in streams else ""
    lines = [
        f"{setup['prompt_rows']} rows of prompt, {setup['codes']} codes of reply{memory}:",
        "",
        "| listeners | replies | TTFA p50 / p95 / p99, ms | RTF p50 | worst RTF | late chunks | "
        "s of audio a second |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [_stream_line(load) for load in streams["load"]]


def _stream_line(load: dict[str, Any]) -> str:
    ttfa, rtf, rate = load["figures"]["ttfa_ms"], load["figures"]["rtf"], load["arrivals_per_s"]
    who = (
        f"{load['concurrency']}, each hears replies out"
        if load["hears_out"]
        else f"{load['concurrency']}, who ask again at once"
    )
    if rate is not None:
        who = f"{rate:g} arrivals a second, up to {load['concurrency']}"
    return (
        f"| {who} | {load['replies']} | {ttfa['p50']:.0f} / {ttfa['p95']:.0f} / {ttfa['p99']:.0f} "
        f"| {rtf['p50']:.3f} | {load['worst_rtf']:.3f} | {load['late_chunks']} | "
        f"{load['audio_s_per_s']:.1f} |"
    )


def figure_lines(figures: Figures) -> list[str]:
    """Every figure with its share of the machine's limit."""
    lines = ["| what | format | median, ms | p90, ms | of the limit |", "|---|---|---|---|---|"]
    for figure in figures:
        share = (
            f"{figure['limit_ms'] / figure['median_ms']:.0%}"
            if figure["limit_ms"] is not None
            else ""
        )
        lines.append(
            f"| {figure['name']} ({figure['note']}) | {figure['dtype']} | "
            f"{figure['median_ms']:.3f} | {figure['p90_ms']:.3f} | {share} |"
        )
    return lines
