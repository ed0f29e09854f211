"""The measurements of assets/bench as tables: what a visitor wants to know in docs/speed.md, and
the summary in README.md. `scripts.dev.readme` writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT

FOLDER = REPO_ROOT / "assets" / "bench"
NONE_YET = "No measurement is stored in `assets/bench`."
IN_TIME_RTF = 0.9
"""A level of load is in real time if no chunk was late and every reply was made so much faster."""

Report = dict[str, Any]
Rows = Iterable[Sequence[object]]


def table(heads: Sequence[str], rows: Rows) -> list[str]:
    """Lines of a Markdown table; the one way in which one is written."""
    shown = [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *shown]


def read_all() -> dict[str, Report]:
    """What every file holds, by its name without .json; raises MossError for no measurement."""
    found = {}
    for path in sorted(FOLDER.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(found[path.stem], dict)
        except (ValueError, AssertionError) as error:
            raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None
    return found


def whole(name: str, make: Callable[[], list[str]]) -> list[str]:
    """What `make` draws from the file; raises MossError if that is incomplete."""
    try:
        return make()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        path = FOLDER / f"{name}.json"
        raise MossError(f"{path} is no measurement ({error!r}); measure again.") from None


def shown(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
    if load["arrivals_per_s"] is not None:
        return f"{load['arrivals_per_s']:g} arrivals a second, up to {load['concurrency']}"
    who = "each hears replies out" if load["hears_out"] else "who ask again at once"
    return f"{load['concurrency']}, {who}"


def spread(load: Report, name: str, form: str) -> str:
    figures = load["figures"][name]
    return f"{figures['p50']:{form}} / {figures['p95']:{form}}"


def headlines() -> str:
    """The tables of docs/speed.md."""
    reports = read_all()
    if not reports:
        return NONE_YET
    parts = [
        *load_parts(reports),
        whole("nano", lambda: voice_part(reports)) if "nano" in reports else [],
        whole("hands_free", lambda: talk_part(reports)) if "hands_free" in reports else [],
        whole("turn_judge", lambda: judge_part(reports)) if "turn_judge" in reports else [],
        whole("turns", lambda: turns_part(reports)) if "turns" in reports else [],
        full_part(reports),
        side_by_side(reports),
        whole("h200_packed", lambda: packed_part(reports)) if "h200_packed" in reports else [],
    ]
    for name, report in reports.items():
        if "streams" in report:
            parts.append(whole(name, lambda report=report: stream_part(report["streams"])))
        if "torch_runtime" in report:
            parts.append(whole(name, lambda report=report: engine_part(report)))
    parts.append(parity_part(reports))
    return "\n\n".join("\n".join(part) for part in parts if part)


def load_parts(reports: dict[str, Report]) -> list[list[str]]:
    """A whole program under load: a table for each machine that measured some."""
    by_machine: dict[str, list[Report]] = {}
    for name, report in reports.items():
        if isinstance(report.get("load"), list):
            title = whole(name, lambda report=report: [machine_of(report["machine"])])[0]
            by_machine.setdefault(title, []).extend(report["load"])
    return [
        [f"**The built-in voice**, {title}", "", *load_table(loads)]
        for title, loads in by_machine.items()
    ]


def machine_of(values: Report) -> str:
    """The machine and the program of a load, in a line."""
    device = values["device"]
    if device == "CPU":
        device = f"{values['cpu']}, {values['cores']} cores"
    runtime = f"{values['runtime']} {values['version']}"
    return f"{device}, {runtime}, {values['dtype']}, checkpoint {values['checkpoint']}"


def voice_part(reports: dict[str, Report]) -> list[str]:
    """How well the built-in voice is understood, and how good it sounds to two judges, step by step
    from its teacher to whole replies."""
    voice = reports["nano"]
    steps = {
        "the teacher, Harvard sentences": "teacher",
        "vocoder alone, from true mels": "true_mel",
        "codec and vocoder": "copy_synthesis",
        "whole replies, Harvard sentences": "harvard",
        "whole replies, everyday sentences": "everyday",
    }

    def judged(judge: str, step: str) -> str:
        return f"{voice[f'{judge}_{step}']:.2f} ({voice[f'{judge}_{step}_worst']:.2f})"

    rows = [
        (what, judged("distillmos", step), judged("dnsmos", step))
        for what, step in steps.items()
        if f"distillmos_{step}" in voice
    ]
    lines = [
        f"- A recogniser ({voice['recogniser']}) mistakes {voice['wer_everyday_percent']} % of the "
        f"words of everyday sentences and {voice['wer_harvard_percent']} % of the Harvard "
        f"sentences'. The page takes {voice['app_memory_mb']} MB of memory."
    ]
    said = "Judged by two predictors of opinions, from 1 to 5, the mean and the worst sentence:"
    if rows:
        lines += ["", said, "", *table(("what is heard", "DistillMOS", "DNSMOS"), rows)]
    return lines


def talk_part(reports: dict[str, Report]) -> list[str]:
    """How fast the page reacts to a voice."""
    talk = reports["hands_free"]
    what = {
        "first_sound": "Hands-free, from the last word to the first sound of the answer",
        "silence": "From the first sound of speech over an answer until it is silent",
    }
    return [
        f"- {words}: {talk[f'{name}_median_ms']:.0f} ms, at worst "
        f"{talk[f'{name}_worst_ms']:.0f} ms in {talk['turns']} turns."
        for name, words in what.items()
    ]


def judge_part(reports: dict[str, Report]) -> list[str]:
    """What the judge of a turn's end decides, beside Smart Turn as Pipecat uses it."""
    found = reports["turn_judge"]
    rows = [
        (
            name, f"{1000 * judge['mean']:.0f}",
            f"{1000 * judge['p50']:.0f} / {1000 * judge['p95']:.0f}",
            f"{100 * judge['hesitates']:.0f} %", f"{100 * judge['softest']:.0f} %",
        )
        for name, judge in found["judges"].items()
    ]  # fmt: skip
    head = ("ends of turns by", "wait, ms, mean", "p50 / p95", "hesitating", "at soft places")
    return [
        f"Half of {found['turns']} turns that tuned nothing, half of them with a pause of 0.25 to "
        "0.9 s inside: how long the end of a whole one is waited for (at least "
        f"{1000 * found['soonest_s']:.0f} ms, in which the answer is made), and how many pauses "
        "were taken for an end, by where they are:",
        "",
        *table(head, rows),
    ]


def turns_part(reports: dict[str, Report]) -> list[str]:
    """Turns through /v1/realtime, from outside."""
    found = reports["turns"]
    names = {"judge": "`semantic_vad`", "silence": "`server_vad`, 0.64 s"}
    rows = []
    for key, name in names.items():
        if (run := found.get(key)) is None:
            continue
        paused = [run["hesitates"], run["softest"]]
        num = sum(kind["turns"] for kind in paused)
        before = [f"{kind['sounded_before']} of {kind['turns']}" for kind in paused]
        rows.append((
            name, f"{run['first_sound_median_ms']:.0f} / {run['first_sound_p95_ms']:.0f}",
            f"{sum(kind['torn'] for kind in paused)} of {num}", *before,
        ))  # fmt: skip
    head = ("turn detection", "last word to first sound, ms, p50 / p95", "torn",
            "sounded before, hesitating", "at soft places")  # fmt: skip
    title = f"{found['done']} turns each through `/v1/realtime`, from outside, {found['machine']}:"
    return [title, "", *table(head, rows)]


def full_part(reports: dict[str, Report]) -> list[str]:
    """The full size beside its steps: the codec, the memory, and how many are served."""
    codec, budget = reports.get("h200_codec", {}), reports.get("h200_budget", {})
    moss, stand_in = reports.get("h200_moss", {}), reports.get("h200_full_size", {})
    first, last = (codec.get(f"chunk_of_1_{part}_tenth_p50_ms") for part in ("first", "last"))
    found = {
        "everything within a 24 GB card, GB": budget.get("reserved_peak_gb"),
        "codec, 5 codes of one reply, ms": codec.get("chunk_of_1_p50_ms"),
        "codec, 5 codes of 16 replies, ms": codec.get("chunk_of_16_p50_ms"),
        "codec, 5 codes of 64 replies, ms": codec.get("another_start", {}).get(
            "chunk_of_64_p50_ms"
        ),
        "codec, end of 60 s against its start": last / first if first and last else None,
        "codec, encode 10 s, ms": codec.get("encode_10_s_p50_ms"),
        "codec in 16 bit, MB": codec.get("float16_one_voice_one_reply_mb"),
        "4 s of speech to first sound, ms": moss.get("speech_in_4_s_first_sound_p50_ms"),
        "listeners without a late chunk": held(moss),
        "listeners in real time, every reply in 0.9 of its length": most_in_time(moss),
        "the same on an H100, 16 replies in a run": most_in_time(reports.get("h100_moss", {})),
        "listeners in real time, stand-in codec": most_in_time(stand_in),
    }
    rows = [(name, shown(value)) for name, value in found.items() if value]
    title = "**The full size on one NVIDIA H200**, with random weights and the published codec"
    return [title, "", *table(("what", "measured"), rows)] if rows else []


def loads_of(report: Report) -> list[Report]:
    return report.get("streams", {}).get("load", [])


def most_in_time(report: Report, rtf: float = IN_TIME_RTF) -> int | None:
    """Listeners of the largest closed loop without a late chunk, every reply made below `rtf`."""
    found = [
        load["concurrency"]
        for load in loads_of(report) or report.get("load", [])
        if load.get("arrivals_per_s") is None
        and not load["late_chunks"]
        and load["worst_rtf"] < rtf
    ]
    return max(found, default=None)


def figure_of(report: Report, name: str, note: str, dtype: str) -> float | None:
    """Median of one figure of a full-size report, None where it was not measured."""
    for f in report.get("figures", []):
        if (f["name"], f["note"], f["dtype"]) == (name, note, dtype):
            return f["median_ms"]
    return None


FORMATS = ("bfloat16", "float8-all")
SHOWN = (
    re.compile(r"decode step, batch (1|8|64|256)(, speaking, rows drawn)?$"),
    re.compile(r"prefill (512 rows on 0|64 rows on \d+) cached$"),
    re.compile(r"(plain|compiled) PyTorch, CUDA graph$"),
    re.compile(r"transformers generate"),
)


def side_by_side(reports: dict[str, Report]) -> list[str]:
    """Steps of the full size where several GPUs were measured."""
    full = [report for name, report in reports.items() if name.endswith("_full_size")]
    if len(full) < 2:
        return []
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


def packed_part(reports: dict[str, Report]) -> list[str]:
    """Steps of the full size with weights of 8 and 4 bits."""
    found = reports["h200_packed"]
    rows = [
        (step["what"], *(f"{step[f'{name}_ms']:.2f}" for name in ("bfloat16", "int8", "int4")))
        for step in found["steps"]
    ]
    title = f"**8 and 4 bits at full size**, one start of one {found['device']}"
    return [title, "", *table(("ms", "bfloat16", "int8", "int4"), rows)]


def stream_part(streams: Report) -> list[str]:
    """Many listeners of the full size."""
    setup = streams["setup"]
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
        if name in ours and name in torch
    ]
    return [
        f"**An engine file of the full size**, {what}, {report['layers']} layers, weights "
        f"{report['weights']}: built in {report['build_s']:.0f} s, loaded in "
        f"{report['load_s']:.1f} s",
        "",
        *table(("ms", f"engine file, {report['dtype']}", f"torch runtime, {dtype}"), rows),
    ]


def parity_part(reports: dict[str, Report]) -> list[str]:
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
    title = (
        "**The built-in voice from an engine file** against the torch runtime in the same number"
    )
    return [f"{title} format", "", *table(heads, rows)] if rows else []


# The README's one table


def summary() -> str:
    """The built-in voice beside the full size."""
    reports = read_all()
    cpu, voice, full, moss, h100 = (
        reports.get(name, {})
        for name in ("cpu", "nano", "h200_full_size", "h200_moss", "h100_moss")
    )
    if not cpu and not full:
        return NONE_YET
    decode = figure_of(full, "decode step, batch 1", "device", "bfloat16")
    rows = [
        ("time to first audio, median", first(cpu, "ttfa_ms", "{:.0f} ms"),
         first(moss, "ttfa_ms", "{:.0f} ms")),
        ("real-time factor of one reply, median", first(cpu, "rtf", "{:.2f}"),
         first(moss, "rtf", "{:.2f}")),
        ("listeners at a time without a gap", most_in_time(cpu), held(moss)),
        ("the same with a stand-in for the codec, a BigVGAN of 116 M", "", held(full)),
        ("decode step of one reply", "", form("{:.3g} ms", decode)),
        ("words that a recogniser mistakes", form("{:.3g} %", voice.get("wer_everyday_percent")),
         "not known"),
        ("how good it sounds, by DistillMOS, 1 to 5",
         form("{:.3g}", voice.get("distillmos_harvard")), "not known"),
        ("memory", form("{:.3g} MB", voice.get("app_memory_mb")),
         form("{:.3g} GiB, on an H100", h100.get("streams", {}).get("memory_gib"))),
    ]  # fmt: skip
    heads = ("", "built-in voice, 2 CPU cores", "full size, random weights, one H200")
    return "\n".join(table(heads, rows))


def first(report: Report, name: str, text: str) -> str:
    """The median of one listener."""
    for load in loads_of(report) or report.get("load", []):
        if load["concurrency"] == 1:
            return text.format(load["figures"][name]["p50"])
    return ""


def held(report: Report) -> str:
    """The most listeners without a late chunk, and on how many starts of a machine that held: this
    one, and those on which it was measured again, if no run there had a late chunk."""
    most, starts = most_in_time(report, math.inf), dict[str, bool]()
    for run in report.get("streams", {}).get("repeated", ()):
        if run["listeners"] == most:
            start = run["start"].partition(",")[0]
            starts[start] = starts.get(start, True) and not run["late_chunks"]
    if most is None:
        return ""
    return f"{most}, on {1 + sum(starts.values())} of {1 + len(starts)} starts of a machine"


def form(text: str, value: object) -> str:
    return "" if value is None else text.format(value)
