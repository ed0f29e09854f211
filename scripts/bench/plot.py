"""Draw the full-size figures of assets/bench: `python -m scripts.bench.plot [FILE.json]`.

Left the time of a decode step against the number of sequences, beside the least that the GPU's
rates allow; right the share of that limit which each kind of step reaches. Needs matplotlib. Writes
assets/bench/full_size.svg for bright pages and full_size_dark.svg for dark ones.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moss_engine.api.errors import MissingPackageError, MossError
from scripts.bench.report import FOLDER

OUT = FOLDER / "full_size.svg"
DECODE = re.compile(r"decode step, batch (\d+)$")
LABEL_GAP = 0.055
"""Between two names, of the highest time."""
PREFILL = re.compile(r"prefill (\d+) rows on (\d+) cached$")


@dataclass(frozen=True)
class Look:
    """Colours of one kind of page; `formats` are those of the number formats in turn."""

    suffix: str
    ink: str
    faint: str
    grid: str
    formats: tuple[str, ...]


LOOKS = (
    Look("", "#24292f", "#6e7781", "#d0d7de", ("#0969da", "#bf3989", "#1a7f37")),
    Look("_dark", "#e6edf3", "#8d96a0", "#30363d", ("#58a6ff", "#f778ba", "#56d364")),
)


def decode_points(report: dict[str, Any]) -> dict[str, list[tuple[int, float, float | None]]]:
    """(sequences, ms, least ms) of decode steps on the device, for each number format."""
    found: dict[str, list[tuple[int, float, float | None]]] = {}
    for figure in report["figures"]:
        match = DECODE.match(figure["name"])
        if match and figure["note"] == "device":
            point = int(match[1]), figure["median_ms"], figure["limit_ms"]
            found.setdefault(figure["dtype"], []).append(point)
    return {dtype: sorted(points) for dtype, points in found.items()}


def shares(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Step -> number format -> share of the limit: decode on the device, prefill on the host."""
    found: dict[str, dict[str, float]] = {}
    for figure in report["figures"]:
        decode, prefill = DECODE.match(figure["name"]), PREFILL.match(figure["name"])
        if (
            figure["limit_ms"] is None
            or figure["note"] != ("device" if decode else "wall")
            or not (decode or prefill)
        ):
            continue
        name = f"decode {decode[1]}" if decode else f"prefill {prefill[1]}" if prefill else ""
        if prefill and prefill[2] != "0":
            name += f" on {prefill[2]}"
        found.setdefault(name, {})[figure["dtype"]] = figure["limit_ms"] / figure["median_ms"]
    return found


def draw(report: dict[str, Any], out: Path) -> list[Path]:
    """Both pictures; raises MissingPackageError, or MossError for a report without decode steps."""
    points, steps = decode_points(report), shares(report)
    if not points:
        raise MossError("The file holds no decode step; measure with --parts decode first.")
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise MissingPackageError(
            "The picture needs the package matplotlib; install it with: pip install matplotlib"
        ) from None
    matplotlib.use("svg")
    from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports]

    written = []
    for look in LOOKS:
        style: dict[Any, Any] = {
            "text.color": look.ink,
            "axes.labelcolor": look.faint,
            "axes.edgecolor": look.grid,
            "axes.titlecolor": look.ink,
            "xtick.color": look.faint,
            "ytick.color": look.faint,
            "font.size": 10,
            "font.family": "sans-serif",
            "svg.fonttype": "none",
            "svg.hashsalt": "full size",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": look.grid,
        }
        with plt.rc_context(style):
            figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
            _draw_times(left, points, look)
            _draw_shares(right, steps, list(points), look)
            path = out.with_name(f"{out.stem}{look.suffix}.svg")
            figure.savefig(path, transparent=True, metadata={"Date": None})
            plt.close(figure)
        written.append(path)
    return written


def _draw_times(
    axes: Any, points: dict[str, list[tuple[int, float, float | None]]], look: Look
) -> None:
    ends = {dtype: found[-1][1] for dtype, found in points.items()}
    heights = label_heights(
        ends, LABEL_GAP * max(time for found in points.values() for _, time, _ in found)
    )
    for colour, (dtype, found) in zip(look.formats, points.items(), strict=False):
        counts, times, _ = zip(*found, strict=True)
        axes.plot(counts, times, "o-", color=colour, linewidth=2, markersize=4.5, clip_on=False)
        limits = [(count, limit) for count, _, limit in found if limit is not None]
        if limits:
            axes.plot(*zip(*limits, strict=True), ":", color=colour, linewidth=1.5)
        axes.annotate(
            dtype,
            (counts[-1], heights[dtype]),
            (6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            annotation_clip=False,
        )
    axes.set(
        xscale="log", xlabel="sequences in a step (dotted: the least possible)", ylim=(0, None)
    )
    axes.set_title("Time of a decode step, ms", loc="left", fontsize=11)
    ticks = sorted({count for found in points.values() for count, *_ in found})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", linewidth=0.6)


def label_heights(ends: dict[str, float], gap: float) -> dict[str, float]:
    """Heights of labels for lines that end at `ends`, at least `gap` apart."""
    heights: dict[str, float] = {}
    for name in sorted(ends, key=ends.__getitem__):
        heights[name] = max([ends[name], *(height + gap for height in heights.values())])
    return heights


def _draw_shares(
    axes: Any, steps: dict[str, dict[str, float]], dtypes: list[str], look: Look
) -> None:
    for place, of_step in enumerate(steps.values()):
        axes.plot(
            [100 * min(of_step.values()), 100 * max(of_step.values())],
            [place, place],
            color=look.grid,
            zorder=1,
        )
        for colour, dtype in zip(look.formats, dtypes, strict=False):
            if dtype in of_step:
                axes.plot(
                    100 * of_step[dtype], place, "o", color=colour, markersize=6.5, clip_on=False
                )
    axes.set_yticks(range(len(steps)), list(steps))
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="% of the least possible, by rates of the same run")
    axes.set_title("Share of the limit, by kind of step", loc="left", fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE.json",
        default=FOLDER / "h200_full_size.json",
        help="what the bench full_size wrote",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="FILE.svg",
        help="picture to write, with a dark one beside it",
    )
    args = parser.parse_args()
    for path in draw(json.loads(args.file.read_text(encoding="utf-8")), args.out):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
