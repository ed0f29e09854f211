"""Fills the measurements of assets/bench into two templates: headlines.md, the tables of
docs/speed.md, and summary.md, the table of README.md. `scripts.dev.readme` writes them there.

Both are Jinja templates, to which every file of assets/bench is known by its name without .json.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from moss_engine.api.errors import MossError
from scripts.bench.common import FOLDER

IN_TIME_RTF = 0.9
"""In real time: no chunk was late, and every reply took less than this share of its length."""

Report = dict[str, Any]


def drawn(name: str) -> str:
    """The document NAME.md with the figures of all measurements in their places; raises MossError
    where one is missing or incomplete."""
    filters = {"alone": alone, "held": held, "most_in_time": most_in_time, "step": step}
    jinja = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {**filters, "form": format, "median": median}
    text = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
    try:
        reports = {
            path.stem: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(FOLDER.glob("*.json"))
        }
        return jinja.from_string(text).render(reports).strip()
    except (ValueError, KeyError, TypeError, TemplateError) as error:
        raise MossError(
            f"{FOLDER} lacks a measurement, or a part of one ({error!r}); measure again."
        ) from None


def loads_of(report: Report) -> list[Report]:
    """A report's levels of load, of the bench `full_size` or of `load`."""
    return report["streams"]["load"] if "streams" in report else report["load"]


def alone(report: Report) -> Report:
    """The figures of one listener at a time."""
    return next(load for load in loads_of(report) if load["concurrency"] == 1)["figures"]


def most_in_time(report: Report) -> int:
    """The most listeners of a closed loop who were all served in real time."""
    return max(
        load["concurrency"]
        for load in loads_of(report)
        if not load["late_chunks"] and load["worst_rtf"] < IN_TIME_RTF
    )


def held(report: Report) -> str:
    """The most listeners who had no late chunk on any of the machine's starts on which so many were
    measured, and the number of these starts."""
    starts: dict[int, dict[str, bool]] = {}
    for load in loads_of(report):
        starts[load["concurrency"]] = {"": not load["late_chunks"]}
    for run in report["streams"].get("repeated", ()):
        found, start = starts.setdefault(run["listeners"], {}), run["start"].partition(",")[0]
        found[start] = found.get(start, True) and not run["late_chunks"]
    most = max(listeners for listeners, found in starts.items() if all(found.values()))
    return f"{most}, on each of {len(starts[most])} starts of a machine"


def step(report: Report, name: str, dtype: str, clock: str | None = None) -> Report | None:
    """One of a report's figures by its name, the number format of the weights and the clock; one
    without a number format counts as bfloat16."""
    formats = (dtype, "") if dtype == "bfloat16" else (dtype,)
    found = (
        figure
        for figure in report["figures"]
        if figure["name"] == name and figure["dtype"] in formats
        if clock in (None, figure["note"])
    )
    return next(found, None)
