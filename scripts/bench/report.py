"""The measurements of assets/bench in their places: headlines.md, what a visitor wants to know in
docs/speed.md, and summary.md, for README.md. `scripts.dev.readme` writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT

FOLDER = REPO_ROOT / "assets" / "bench"
IN_TIME_RTF = 0.9
"""A level of load is in real time if no chunk was late and every reply was made so much faster."""

Report = dict[str, Any]
Rows = Iterable[Sequence[object]]


def table(heads: Sequence[str], rows: Rows) -> list[str]:
    """Lines of a Markdown table."""
    shown = [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *shown]


Reports = dict[str, Report]
"""What every file of FOLDER holds, by its name without .json."""


def drawn(name: str) -> str:
    """The document NAME.md with the figures of all measurements in their places; raises MossError
    where one is missing or incomplete."""
    try:
        reports = {
            path.stem: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(FOLDER.glob("*.json"))
        }
        text = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
        return text.format(**reports, made=Made(reports)).strip()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MossError(
            f"{FOLDER} lacks a measurement, or a part of one ({error!r}); measure again."
        ) from None


class Made:
    """What the functions of MADE make: "NAME" of all reports, "NAME report ..." of one."""

    def __init__(self, reports: Reports):
        self._reports = reports

    def __getitem__(self, name: str) -> Any:
        function, *of = name.split()
        given = (self._reports[of[0]], *of[1:]) if of else (self._reports,)
        made = MADE[function](*given)
        return "\n".join(made) if isinstance(made, list) else made


def apart(parts: Iterable[list[str]]) -> str:
    """Parts with an empty line between them."""
    return "\n\n".join("\n".join(part) for part in parts)


def load_table(loads: list[Report]) -> list[str]:
    """Levels of load, a line each."""
    heads = ("listeners", "replies", "TTFA p50 / p95, ms", "RTF p50", "worst RTF", "late chunks",
             "s of audio a second")  # fmt: skip
    rows = [
        (listeners(load), load["replies"], spread(load, "ttfa_ms", ".0f"),
         f"{load['figures']['rtf']['p50']:.3f}", f"{load['worst_rtf']:.3f}", load["late_chunks"],
         f"{load['audio_s_per_s']:.1f}")
        for load in loads
    ]  # fmt: skip
    return table(heads, rows)


def listeners(load: Report) -> str:
    who = "each hears replies out" if load["hears_out"] else "who ask again at once"
    return f"{load['concurrency']}, {who}"


def spread(load: Report, name: str, form: str) -> str:
    figures = load["figures"][name]
    return f"{figures['p50']:{form}} / {figures['p95']:{form}}"


def load_parts(reports: Reports) -> str:
    """A whole program under load: a table for each machine that measured some."""
    by_machine: dict[str, list[Report]] = {}
    for report in reports.values():
        if isinstance(report.get("load"), list):
            by_machine.setdefault(machine_of(report["machine"]), []).extend(report["load"])
    return apart(
        [f"**The built-in voice**, {title}", "", *load_table(loads)]
        for title, loads in by_machine.items()
    )


def machine_of(values: Report) -> str:
    """The machine and the program of a load, in a line."""
    device = values["device"]
    if device == "CPU":
        device = f"{values['cpu']}, {values['cores']} cores"
    runtime = f"{values['runtime']} {values['version']}"
    return f"{device}, {runtime}, {values['dtype']}, checkpoint {values['checkpoint']}"


def echo_part(found: Report) -> list[str]:
    """What the page's own voice does at its microphone."""
    rows = [
        (
            name, run["stopped"], run["questions"], run["hesitations"],
            f"{run['visitor']['stopped']} of {run['visitor']['asked']}",
            f"{median(run['visitor']['after_ms']):.0f}",
        )
        for name, run in found.items() if isinstance(run, dict)
    ]  # fmt: skip
    head = ("comes back at, after", "answers stopped", "taken for a question", "hesitations",
            "a visitor's questions that stop one", "after, ms, p50")  # fmt: skip
    return [
        "Its own voice at the page's microphone, in a room where nothing else cancels it, "
        f"{found['minutes']:g} minutes each:",
        "",
        *table(head, rows),
    ]


def judge_part(found: Report) -> list[str]:
    """What the judge of a turn's end decides, beside Smart Turn as Pipecat uses it."""
    rows = [
        (
            name, f"{1000 * judge['mean']:.0f}",
            f"{1000 * judge['p50']:.0f} / {1000 * judge['p95']:.0f}",
            f"{1000 * judge['ordinary_mean']:.0f}", f"{1000 * judge['ordinary_p50']:.0f}",
            f"{100 * judge['hesitates']:.1f} %", f"{100 * judge['softest']:.1f} %",
        )
        for name, judge in found["judges"].items()
    ]  # fmt: skip
    head = ("ends of turns by", "ms, mean", "p50 / p95", "ordinary ones", "p50", "hesitating",
            "at soft places")  # fmt: skip
    return [
        f"Half of {found['turns']} turns, of which the other half tuned the judge: 600 whole ones, "
        "148 ordinary short ones, and as many as the first with a pause of 0.25 to 0.9 s inside. "
        "From the last word of a whole one to the first sound of the answer, and behind how many "
        "pauses an answer would have sounded before the person went on, by where they are:",
        "",
        *table(head, rows),
    ]


TURNS = {
    "turns": "", "turns_two": ", two people at once", "turns_20db": ", 20 dB of noise",
    "turns_10db": ", 10 dB of noise", "turns_server": "",
}  # fmt: skip


def turns_part(reports: Reports) -> list[str]:
    """Turns through /v1/realtime, from outside."""
    names = {"judge": "`semantic_vad`", "silence": "`server_vad`, 0.64 s"}
    rows = []
    for file, where in TURNS.items():
        found = reports.get(file, {})
        for key in names.keys() & found.keys():
            run = found[key]
            paused = [run["hesitates"], run["softest"]]
            num = sum(kind["turns"] for kind in paused)
            before = [f"{kind['sounded_before']} of {kind['turns']}" for kind in paused]
            rows.append((
                f"{names[key]}{where}", found["turns"],
                f"{run['first_sound_median_ms']:.0f} / {run['first_sound_p95_ms']:.0f}",
                f"{sum(kind['torn'] for kind in paused)} of {num}", *before, run["gaps"],
            ))  # fmt: skip
    head = ("turn detection", "turns", "last word to first sound, ms, p50 / p95", "torn",
            "sounded before, hesitating", "at soft places", "gaps")  # fmt: skip
    return [
        f"Turns through `/v1/realtime`, from outside, {reports['turns']['machine']}:",
        "",
        *table(head, sorted(rows, key=lambda row: "server" in str(row[0]))),
    ]


def ahead_share(found: Report) -> float:
    """Percent of the answers begun that nobody was told of."""
    ahead = found["ahead"]
    return 100 * ahead["thrown_away"] / max(1, ahead["released"] + ahead["thrown_away"])


def loads_of(report: Report) -> list[Report]:
    """Its levels of load, through the whole service or of a whole program."""
    return report["streams"]["load"] if "streams" in report else report["load"]


def most_in_time(report: Report, rtf: float = IN_TIME_RTF) -> int:
    """Listeners of the largest closed loop without a late chunk, every reply made below `rtf`."""
    return max(
        load["concurrency"]
        for load in loads_of(report)
        if not load["late_chunks"] and load["worst_rtf"] < rtf
    )


FORMATS = ("bfloat16", "float8-all")
SHOWN = (
    re.compile(r"decode step, batch (1|8|64|256)(, speaking, rows drawn)?$"),
    re.compile(r"prefill (512 rows on 0|64 rows on \d+) cached$"),
    re.compile(r"(plain|compiled) PyTorch, CUDA graph$"),
    re.compile(r"transformers generate"),
)


def side_by_side(reports: Reports) -> list[str]:
    """Steps of the full size where several GPUs were measured."""
    full = [report for name, report in reports.items() if name.endswith("_full_size")]
    columns = [(report, dtype) for report in full for dtype in FORMATS]
    found = [
        {
            (f["name"], f["note"]): f"{f['median_ms']:.2f}"
            + (f", {f['limit_ms']:.2f}" if f["limit_ms"] else "")
            for f in report["figures"]
            if (f["dtype"] or FORMATS[0]) == dtype
        }
        for report, dtype in columns
    ]
    names = dict.fromkeys(
        (f["name"], f["note"])
        for report in full
        for f in report["figures"]
        if any(form.match(f["name"]) for form in SHOWN)
    )
    rows = ((name, *(column.get((name, note)) for column in found)) for name, note in names)
    heads = [f"{report['device'].split()[1]}, {dtype}" for report, dtype in columns]
    title = f"**The full size on {len(full)} GPUs**, each beside its own rates"
    return [title, "", *table(("ms, least time", *heads), rows)]


def packed_part(found: Report) -> list[str]:
    """Steps of the full size with weights of 8 and 4 bits."""
    rows = [
        (step["what"], *(f"{step[f'{name}_ms']:.2f}" for name in ("bfloat16", "int8", "int4")))
        for step in found["steps"]
    ]
    title = f"**8 and 4 bits at full size**, one start of one {found['device']}"
    return [title, "", *table(("ms", "bfloat16", "int8", "int4"), rows)]


def stream_part(report: Report) -> list[str]:
    """Many listeners of the full size."""
    streams, setup = report["streams"], report["streams"]["setup"]
    memory = f"; {streams['memory_gib']:.0f} GiB in all" if "memory_gib" in streams else ""
    lines = [
        f"**Listeners of the full size**, codec: {streams['codec']}",
        "",
        f"{setup['prompt_rows']} rows of prompt, {setup['codes']} codes of reply{memory}:",
        "",
        *load_table(streams["load"]),
    ]
    if repeats := streams.get("repeated"):
        rows = [tuple(repeat.values()) for repeat in repeats]
        heads = [name.replace("_", " ") for name in repeats[0]]
        lines += ["", "The same on other machines and starts:", "", *table(heads, rows)]
    return lines


def engine_part(report: Report) -> list[str]:
    """An engine file beside the torch runtime."""

    def medians(figures: list[Report]) -> dict[str, float]:
        return {f"{f['name']} ({f['note']})": f["median_ms"] for f in figures}

    ours, torch = medians(report["figures"]), medians(report["torch_runtime"]["figures"])
    dtype = report["torch_runtime"]["figures"][0]["dtype"]
    what = ", ".join(f"{report[name]}" for name in ("device", "library", "dtype"))
    rows = [
        (name, f"{ours[name]:.2f}", f"{torch[name]:.2f}")
        for name in (
            "decode step, batch 1 (device)",
            "prefill 512 rows on 0 cached (wall)",
            "prefill 64 rows on 2000 cached (wall)",
        )
    ]
    return [
        f"**An engine file of the full size**, {what}, {report['layers']} layers, weights "
        f"{report['weights']}: built in {report['build_s']:.0f} s, loaded in "
        f"{report['load_s']:.1f} s",
        "",
        *table(("ms", f"engine file, {report['dtype']}", f"torch runtime, {dtype}"), rows),
    ]


def parity_part(reports: Reports) -> list[str]:
    """The built-in voice from engine files against the torch runtime in the same number format."""
    rows = [
        (f"{report['dtype']}, {check['weights']}", f"{check['agreeing_rows']} of {check['rows']}",
         f"{check['largest_difference']:.2g} of {check['largest_logit']:.3g}",
         f"{check['equal_replies']} of {check['sentences']}",
         report.get("equal_words", {}).get(check["weights"]))
        for report in reports.values()
        for check in report.get("parity", ())
    ]  # fmt: skip
    heads = ("engine file", "rows with the same best id", "largest difference of logits",
             "replies of the same rows", "of the same words")  # fmt: skip
    title = "**The built-in voice from an engine file** against the torch runtime in its format"
    return [title, "", *table(heads, rows)]


def first(report: Report, name: str) -> float:
    """The median of one listener."""
    loads = (load for load in loads_of(report) if load["concurrency"] == 1)
    return next(loads)["figures"][name]["p50"]


def held(report: Report) -> str:
    """The most listeners without a late chunk, and on how many starts of a machine that held: this
    one, and those on which it was measured again, if no run there had a late chunk."""
    most, starts = most_in_time(report, math.inf), dict[str, bool]()
    for run in report["streams"].get("repeated", ()):
        if run["listeners"] == most:
            start = run["start"].partition(",")[0]
            starts[start] = starts.get(start, True) and not run["late_chunks"]
    return f"{most}, on {1 + sum(starts.values())} of {1 + len(starts)} starts of a machine"


def codec_growth(found: Report) -> float:
    """The end of a long reply against its start."""
    first, last = (found[f"chunk_of_1_{part}_tenth_p50_ms"] for part in ("first", "last"))
    return last / first


def decode_ms(found: Report) -> float:
    """One reply's step."""
    step = ("decode step, batch 1", "device", "bfloat16")
    figures = found["figures"]
    return next(f["median_ms"] for f in figures if (f["name"], f["note"], f["dtype"]) == step)


def grown(found: Report, name: str) -> float | str:
    """The most that a doubling of texts made of a time."""
    return found[name]["growth"] or "-"


def engine_parts(reports: Reports) -> str:
    """Listeners of the full size, and engine files, report by report."""
    draws = {"streams": stream_part, "torch_runtime": engine_part}
    return apart(
        draws[key](report) for report in reports.values() for key in draws if key in report
    )


MADE: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        load_parts, echo_part, judge_part, turns_part, ahead_share, codec_growth, held,
        most_in_time, first, decode_ms, grown, side_by_side, packed_part, engine_parts, parity_part,
    )
}  # fmt: skip
