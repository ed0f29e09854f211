"""The measurements of assets/bench as tables: what a visitor wants to know in docs/speed.md, and
the summary in README.md. `scripts.dev.readme` writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT

FOLDER = REPO_ROOT / "assets" / "bench"
IN_TIME_RTF = 0.9
"""A level of load is in real time if no chunk was late and every reply was made so much faster."""
JUDGES = ("distillmos", "dnsmos")

Report = dict[str, Any]
Rows = Iterable[Sequence[object]]


def table(heads: Sequence[str], rows: Rows) -> list[str]:
    """Lines of a Markdown table; the one way in which one is written."""
    shown = [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *shown]


Reports = dict[str, Report]
"""What every file of FOLDER holds, by its name without .json."""


def drawn(make: Callable[[Reports], str]) -> str:
    """What `make` draws from all measurements; raises MossError where one is missing or
    incomplete."""
    try:
        return make({
            path.stem: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(FOLDER.glob("*.json"))
        })  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MossError(
            f"{FOLDER} lacks a measurement, or a part of one ({error!r}); measure again."
        ) from None


def shown(value: object) -> str:
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
    who = "each hears replies out" if load["hears_out"] else "who ask again at once"
    return f"{load['concurrency']}, {who}"


def spread(load: Report, name: str, form: str) -> str:
    figures = load["figures"][name]
    return f"{figures['p50']:{form}} / {figures['p95']:{form}}"


def headlines() -> str:
    """The tables of docs/speed.md."""
    return drawn(lambda reports: "\n\n".join("\n".join(part) for part in parts_of(reports)))


def parts_of(reports: Reports) -> Iterator[list[str]]:
    yield from load_parts(reports)
    yield voice_part(reports["nano"])
    yield exchange_part(reports["exchange"], reports["page"])
    yield talk_part(reports["hands_free"])
    yield echo_part(reports["echo"])
    yield judge_part(reports["turn_judge"])
    yield turns_part(reports)
    yield full_part(reports)
    yield side_by_side(reports)
    yield packed_part(reports["h200_packed"])
    for report in reports.values():
        if "streams" in report:
            yield stream_part(report["streams"])
        if "torch_runtime" in report:
            yield engine_part(report)
    yield parity_part(reports)
    yield text_part(reports["patterns"])


def load_parts(reports: Reports) -> list[list[str]]:
    """A whole program under load: a table for each machine that measured some."""
    by_machine: dict[str, list[Report]] = {}
    for report in reports.values():
        if isinstance(report.get("load"), list):
            by_machine.setdefault(machine_of(report["machine"]), []).extend(report["load"])
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


def voice_part(voice: Report) -> list[str]:
    """How well the built-in voices are understood, and how good they sound to two judges, step by
    step from their teacher to whole replies."""
    steps = {
        "the teacher, Harvard sentences": "teacher",
        "vocoder alone, from true mels": "true_mel",
        "codec and vocoder": "copy_synthesis",
        "whole replies, Harvard sentences": "harvard",
        "whole replies, everyday sentences": "everyday",
    }
    voices = {"Ada": "", "Ben": "_ben"}

    def judged(judge: str, step: str) -> str:
        return f"{voice[f'{judge}_{step}']:.2f} ({voice[f'{judge}_{step}_worst']:.2f})"

    heads = [f"{name}, {judge}" for name in voices for judge in ("DistillMOS", "DNSMOS")]
    rows = [
        (what, *(judged(judge, step + end) for end in voices.values() for judge in JUDGES))
        for what, step in steps.items()
    ]
    wrong = "; ".join(
        f"of {name} {voice[f'wer_everyday{end}_percent']} % of the words of everyday sentences and "
        f"{voice[f'wer_harvard{end}_percent']} % of the Harvard sentences'"
        for name, end in voices.items()
    )
    return [
        f"- A recogniser ({voice['recogniser']}) mistakes {wrong}.",
        f"- The page takes {voice['app_memory_mb']} MB of memory.",
        "",
        "Judged by two predictors of opinions, from 1 to 5, the mean and the worst sentence:",
        "",
        *table(("what is heard", *heads), rows),
    ]


def talk_part(talk: Report) -> list[str]:
    """How fast the page reacts to a voice."""
    what = {
        "first_sound": "Hands-free, from the last word to the first sound of the answer",
        "silence": "From the first sound of speech over an answer until it is silent",
    }
    return [
        f"- {words}: {talk[f'{name}_median_ms']:.0f} ms, at worst "
        f"{talk[f'{name}_worst_ms']:.0f} ms in {talk['turns']} turns."
        for name, words in what.items()
    ]


def exchange_part(asked: Report, visited: Report) -> list[str]:
    """How soon the page is there and answers, in Chromium on the same two cores."""

    def at(report: Report, name: str) -> str:
        return f"{report[f'{name}_median_ms']:.0f} / {report[f'{name}_worst_ms']:.0f}"

    rows = [
        ("a visit until the page is painted", at(visited, "first_paint")),
        ("until it can be used", at(visited, "usable")),
        ("from the key to the first sound, from rest", at(asked, "from_rest")),
        ("the same over a reply that sounds", at(asked, "over")),
        ("until that one is silent", at(asked, "fade")),
        ("from the server's first sound to the ear", at(visited, "server_to_ear")),
        ("what the page shows, against what was heard", at(asked, "page_off")),
    ]
    head = (f"the page in Chromium, {asked['machine']}, by an outer clock", "ms, median / worst")
    lost = f"{asked['quick_lost']} of 200 sentences typed in a row are lost"
    gaps = f"60 replies of four pages at once have {asked['four_gaps']} gaps"
    return [*table(head, rows), "", f"{lost}; {gaps}, all on the same two cores."]


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
            f"{100 * judge['hesitates']:.1f} %", f"{100 * judge['softest']:.1f} %",
        )
        for name, judge in found["judges"].items()
    ]  # fmt: skip
    head = ("ends of turns by", "ms, mean", "p50 / p95", "hesitating", "at soft places")
    return [
        f"Half of {found['turns']} turns that tuned nothing, half of them with a pause of 0.25 to "
        "0.9 s inside: from the last word of a whole one to the first sound of the answer, and "
        "behind how many pauses an answer would have sounded before the person went on, by where "
        "they are:",
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
    alone = reports["turns"]
    return [
        f"Turns through `/v1/realtime`, from outside, {alone['machine']}:",
        "",
        *table(head, sorted(rows, key=lambda row: "server" in str(row[0]))),
        "",
        "Of the answers that are begun before the turn of one person is over, "
        f"{ahead_share(alone):.0f} % are thrown away; {alone['wasted_s_a_minute']} seconds of a "
        "minute of talk are worked for them.",
    ]


def ahead_share(found: Report) -> float:
    """Percent of the answers begun that nobody was told of."""
    ahead = found["ahead"]
    return 100 * ahead["thrown_away"] / max(1, ahead["released"] + ahead["thrown_away"])


def full_part(reports: Reports) -> list[str]:
    """The full size beside its steps: the codec, the memory, and how many are served."""
    codec, moss = reports["h200_codec"], reports["h200_moss"]
    first, last = (codec[f"chunk_of_1_{part}_tenth_p50_ms"] for part in ("first", "last"))
    found = {
        "everything within a 24 GB card, GB": reports["h200_budget"]["reserved_peak_gb"],
        "codec, 5 codes of one reply, ms": codec["chunk_of_1_p50_ms"],
        "codec, 5 codes of 16 replies, ms": codec["chunk_of_16_p50_ms"],
        "codec, 5 codes of 64 replies, ms": codec["another_start"]["chunk_of_64_p50_ms"],
        "codec, end of 60 s against its start": last / first,
        "codec, encode 10 s, ms": codec["encode_10_s_p50_ms"],
        "codec in 16 bit, MB": codec["float16_one_voice_one_reply_mb"],
        "4 s of speech to first sound, ms": moss["speech_in_4_s_first_sound_p50_ms"],
        "listeners without a late chunk": held(moss),
        "listeners in real time, every reply in 0.9 of its length": most_in_time(moss),
        "the same on an H100": most_in_time(reports["h100_moss"]),
        "listeners in real time, stand-in codec": most_in_time(reports["h200_full_size"]),
    }
    title = "**The full size on one NVIDIA H200**, with random weights and the published codec"
    rows = [(name, shown(value)) for name, value in found.items()]
    return [title, "", *table(("what", "measured"), rows)]


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


def text_part(found: Report) -> list[str]:
    """What texts take that are made to take long."""
    shown = {"spoken_text": "what is said", "doubt": "its language", "calculator": "a sum"}
    rows = [(what, found[n]["worst_ms"], found[n]["growth"] or "-") for n, what in shown.items()]
    title = f"The worst of {found['patterns']} texts of {found['characters']:,} characters"
    return [f"{title}:", "", *table(("found is", "processor, ms", "most by a doubling"), rows)]


# The README's one table


def summary() -> str:
    """The built-in voice beside the full size."""
    return drawn(lambda reports: "\n".join(summary_of(reports)))


def summary_of(reports: Reports) -> list[str]:
    cpu, voice = reports["cpu"], reports["nano"]
    full, moss = reports["h200_full_size"], reports["h200_moss"]
    decode_ms = next(
        f["median_ms"]
        for f in full["figures"]
        if (f["name"], f["note"], f["dtype"]) == ("decode step, batch 1", "device", "bfloat16")
    )
    rows = [
        ("time to first audio, median", f"{first(cpu, 'ttfa_ms'):.0f} ms",
         f"{first(moss, 'ttfa_ms'):.0f} ms"),
        ("real-time factor of one reply, median", f"{first(cpu, 'rtf'):.2f}",
         f"{first(moss, 'rtf'):.2f}"),
        ("listeners at a time without a gap", most_in_time(cpu), held(moss)),
        ("the same with a stand-in for the codec, a BigVGAN of 116 M", "", held(full)),
        ("decode step of one reply", "", f"{decode_ms:.3g} ms"),
        ("words that a recogniser mistakes, of either voice",
         f"{voice['wer_everyday_percent']:.3g}, {voice['wer_everyday_ben_percent']:.3g} %",
         "not known"),
        ("how good they sound, by DistillMOS, 1 to 5",
         f"{voice['distillmos_harvard']:.3g}, {voice['distillmos_harvard_ben']:.3g}", "not known"),
        ("memory", f"{voice['app_memory_mb']:.3g} MB",
         f"{moss['streams']['memory_gib']:.3g} GiB"),
    ]  # fmt: skip
    heads = ("", "built-in voice, 2 CPU cores", "full size, random weights, one H200")
    return table(heads, rows)


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
