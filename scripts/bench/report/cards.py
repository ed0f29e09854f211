"""The full size on several GPUs side by side, and what their one-row steps predict for others.

A step that reads its weights in `read` ms and computes for `work` ms beside takes about
(read^2 + work^2)^0.5: so it is on both GPUs that were measured, whose arithmetic is the same and
whose memory is not. Elsewhere `work` is taken to grow as the card's float32 arithmetic shrinks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Report = dict[str, Any]
FORMATS = ("bfloat16", "float8-all")
STEPS = (
    ("decode step, batch 1", "device"),
    ("decode step, batch 1, speaking, rows drawn", "device"),
    ("decode step, batch 8", "device"),
    ("decode step, batch 64", "device"),
    ("decode step, batch 256", "device"),
    ("prefill 64 rows on 0 cached", "wall"),
    ("prefill 64 rows on 2000 cached", "wall"),
    ("prefill 512 rows on 0 cached", "wall"),
    ("to the first 5 codes' samples, 512 rows", "wall"),
)
OTHERS = (
    ("plain PyTorch, CUDA graph", "device"),
    ("compiled PyTorch, CUDA graph", "device"),
    ("transformers generate, dynamic cache, a token", "wall"),
    ("transformers generate, static cache, a token", "wall"),
)
MEASURED_TFLOPS = 66.9
"""float32 arithmetic of an H100 or H200 by their data sheet, outside tensor cores."""


class Card(NamedTuple):
    """A card by its data sheet: memory rate, float32 arithmetic outside tensor cores."""

    name: str
    gb_per_s: float
    tflops: float
    format: str


CARDS = (
    Card("RTX 3060", 360, 12.7, "int4"),
    Card("RTX 4070", 504, 29.1, "int4"),
    Card("RTX 4060 Ti", 288, 22.1, "int8"),
    Card("RTX A4000", 448, 19.2, "int8"),
    Card("RTX 4080", 717, 48.7, "int8"),
    Card("L4", 300, 30.3, "int8"),
    Card("A10", 600, 31.2, "int8"),
    Card("RTX 3090", 936, 35.6, "int8"),
    Card("RTX 4090", 1008, 82.6, "int8"),
)


def side_by_side(reports: dict[str, Report]) -> list[str]:
    """Tables of the reports by file name, as far as there are any: steps of the full size where
    several GPUs were measured, and those in 8 and 4 bits, for cards that were not, too."""
    full = [report for name, report in reports.items() if name.endswith("_full_size")]
    cards = [report for name, report in reports.items() if name.endswith("_cards")]
    return (_full_size(full) if len(full) > 1 else []) + (_predicted(cards) if cards else [])


def _full_size(full: list[Report]) -> list[str]:
    columns = [(_cells(report), dtype) for report in full for dtype in FORMATS]
    heads = [f"{report['device'].split()[1]}, {dtype}" for report in full for dtype in FORMATS]
    lines = [f"| ms, least time | {' | '.join(heads)} |", "|---|" + "---|" * len(columns)]
    for name, note in (*STEPS, *OTHERS):
        cells = (figures.get((name, note, dtype), "") for figures, dtype in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [f"**The full size on {len(full)} GPUs**, each beside its own rates", "", *lines, ""]


def _cells(report: Report) -> dict[tuple[str, str, str], str]:
    """Cells by name, clock and format; what others take is in bfloat16."""
    return {
        (f["name"], f["note"], f["dtype"] or FORMATS[0]): f"{f['median_ms']:.2f}"
        + (f", {f['limit_ms']:.2f}" if f["limit_ms"] else "")
        for f in report["figures"]
    }


def _predicted(reports: list[Report]) -> list[str]:
    """The steps that were measured and what they leave beside reading, then other cards."""
    lines = [
        "**A step of one row in 8 and 4 bits**, measured and, from these, predicted",
        "",
        "| card | format | reading alone, ms | arithmetic beside it, ms | step, ms | share of the "
        "read rate |",
        "|---|---|---|---|---|---|",
    ]
    work_ms: list[float] = []
    weights_gb: dict[str, float] = {}
    for report in reports:
        for step in report["formats"]:
            if step["format"] in ("int8", "int4"):
                weights_gb[step["format"]] = step["step_weight_gb"]
                read_ms, step_ms = (
                    step["step_weight_gb"] / report["read_tb_per_s"],
                    step["decode_ms"]["1"],
                )
                work_ms.append((step_ms**2 - read_ms**2) ** 0.5)
                lines.append(_line(report["device"], step["format"], read_ms, work_ms[-1]))
    for card in CARDS:
        read_ms = 1e3 * weights_gb[card.format] / card.gb_per_s
        scaled_ms = sum(work_ms) / len(work_ms) * MEASURED_TFLOPS / card.tflops
        lines.append(_line(f"{card.name}, predicted", card.format, read_ms, scaled_ms))
    return lines


def _line(name: str, number_format: str, read_ms: float, work_ms: float) -> str:
    step_ms = (read_ms**2 + work_ms**2) ** 0.5
    return (
        f"| {name} | {number_format} | {read_ms:.2f} | {work_ms:.2f} | {step_ms:.2f} | "
        f"{read_ms / step_ms:.0%} |"
    )
