"""Draw the full-size figures of assets/bench as a picture: `python -m scripts.bench_plot [FILE.json ...]`.

Left the time of a decode step against the number of sequences, beside the least that the GPU's rates allow; right the
share of that limit which each kind of work reaches. Needs matplotlib. Writes assets/bench/full_size.png.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from moss_engine.errors import MissingPackageError, MossError
from scripts.bench_tables import FOLDER

OUT = FOLDER / "full_size.png"
DECODE = re.compile(r"decode step, batch (\d+)$")
NAMES = {"none": "bfloat16", "trunk": "float8", "all": "float8-all"}


def decode_points(report: dict[str, Any]) -> list[tuple[int, float, float | None]]:
    """(sequences, ms, least ms) of every decode step, by its time on the device."""
    found = []
    for figure in report["figures"]:
        match = DECODE.match(figure["name"])
        if match and figure["note"] == "device":
            found.append((int(match[1]), figure["median_ms"], figure["limit_ms"]))
    return sorted(found)


def shares(report: dict[str, Any]) -> list[tuple[str, float]]:
    """(what, share of the limit) of everything that has a limit, by its time on the device."""
    return [(figure["name"], figure["limit_ms"] / figure["median_ms"]) for figure in report["figures"]
            if figure["limit_ms"] is not None and figure["note"] == "device"]


def draw(reports: list[dict[str, Any]], out: Path) -> None:
    """Raises MissingPackageError without matplotlib, MossError where no report has a decode step."""
    points = {NAMES[report["float8"]]: decode_points(report) for report in reports}
    if not any(points.values()):
        raise MossError("None of the files holds a decode step; measure with --parts decode first.")
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingPackageError("The picture needs the package matplotlib; install it with: "
                                  "pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for index, (name, found) in enumerate(points.items()):
        if found:
            counts, times, _ = zip(*found, strict=True)
            left.plot(counts, times, "o-", color=f"C{index}", label=name)
            limits = [(count, limit) for count, _, limit in found if limit is not None]
            if limits:
                left.plot(*zip(*limits, strict=True), "--", color=f"C{index}", label=f"{name}, least possible")
    left.set(xscale="log", xlabel="sequences in a step", ylabel="ms", ylim=(0, None),
             title="decode step, context 600")
    left.set_xticks(ticks := sorted({count for found in points.values() for count, *_ in found}), map(str, ticks))
    left.minorticks_off()
    left.legend(frameon=False)
    bars = shares(reports[0])
    right.barh([name for name, _ in bars], [100 * share for _, share in bars], color="C0")
    right.invert_yaxis()
    right.set(xlim=(0, 100), xlabel="% of the limit measured in the same run", title=NAMES[reports[0]["float8"]])
    right.tick_params(axis="y", labelsize=7)
    figure.suptitle(f"MOSS-Speech at full size, random weights, {reports[0]['device']}", fontsize=10)
    figure.savefig(out, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.json",
                        default=[path for path in sorted(FOLDER.glob("h200*.json")) if _has_decode(path)],
                        help="what scripts.bench --preset wrote; the first gives the bars")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.png")
    args = parser.parse_args()
    draw([json.loads(path.read_text(encoding="utf-8")) for path in args.files], args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1000:.0f} kB")


def _has_decode(path: Path) -> bool:
    report = json.loads(path.read_text(encoding="utf-8"))
    return "float8" in report and bool(decode_points(report))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
