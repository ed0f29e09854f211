"""Stage 9: the figures of the built-in voice, through the real service, with default settings and
fixed seeds.

    python -m scripts.nano.evaluate [--checkpoint assets/nano] [--float FOLDER]
        [--work DIR] [--out FILE]

--float names the same checkpoint exported with `--dtype float`, to compare the word error rates;
with --work the copy synthesis is judged too (it needs the teacher). Prints a table and writes it as
JSON. Nothing else should run meanwhile: the speeds are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from moss_engine.api.errors import MossError
from moss_engine.api.events import FinishReason
from moss_engine.build import build_service
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.copy_synthesis import kinds_of_copies, teacher_waves
from scripts.nano.judge import ErrorCount, Recogniser, count_errors, spoken_words
from scripts.nano.judges.alignment import longest_gap
from scripts.nano.judges.replies import SEED, Spoken, speak_all
from scripts.nano.judges.sound_judges import SoundJudges
from scripts.nano.judges.speeds import measure_speed, page_memory_mb, speed_in_own_process
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.text.hard_sentences import HARD
from scripts.nano.text.sentences import EVERYDAY, HARVARD, STRESS

SOUND_SETS = (
    ("teacher", "teacher"),
    ("from true mels", "true_mel"),
    ("copy synthesis", "copy_synthesis"),
    ("Harvard", "harvard"),
    ("everyday", "everyday"),
)
SOUND_BARS = {
    "true_mel": ">= 4.0",
    "copy_synthesis": ">= 4.35",
    "harvard": ">= 4.2 / 4.35",
    "everyday": ">= 4.2 / 4.35",
}
SUSPECT_GAP = 3
"""So many neighbouring words too few or too many count as skipped or repeated; fewer are the
recogniser's slips."""


def word_errors(
    recogniser: Recogniser, spoken: Sequence[Spoken], rate_hz: int
) -> tuple[ErrorCount, list[str]]:
    """The errors of all replies together, and what was heard of each."""
    total, heard = ErrorCount(), []
    for reply in spoken:
        heard.append(recogniser.transcribe(reply.wave, rate_hz))
        errors = count_errors(reply.asked, heard[-1])
        total += errors
        if errors.word_edits:
            print(
                f"  {errors.word_edits} wrong | {spoken_text(reply.asked)} | heard: {heard[-1]}",
                flush=True,
            )
    return total, heard


def is_faithful(reply: Spoken, heard: str) -> bool:
    """Stopped by itself, wrote exactly the text, and no run of words was skipped or repeated."""
    exact = letters(reply.caption) == letters(spoken_text(reply.asked))
    gap = longest_gap(spoken_words(reply.asked), spoken_words(heard))
    return reply.reason is FinishReason.STOP and exact and gap < SUSPECT_GAP


def letters(text: str) -> str:
    """Without case and end marks, which a typed line may lack."""
    return " ".join(text.lower().rstrip(".?! ").split())


def rate_of(errors: ErrorCount) -> float:
    return round(100 * errors.word_error_rate, 2)


def judge_sets(
    config: EngineConfig, recogniser: Recogniser, judges: SoundJudges, stress: bool
) -> dict[str, object]:
    """Word error rates and sound of one checkpoint, and with `stress` how many of 100 prompts went
    well."""
    service = build_service(config)
    service.start()
    figures: dict[str, object] = {}
    try:
        rate_hz = asyncio.run(service.describe()).sample_rate_hz
        for name, texts in (("harvard", HARVARD), ("everyday", EVERYDAY)):
            replies = asyncio.run(speak_all(service, texts, 2))
            errors, _ = word_errors(recogniser, replies, rate_hz)
            figures[f"wer_{name}_percent"] = rate_of(errors)
            figures |= judges.figures(name, [reply.wave for reply in replies], rate_hz)
        errors, _ = word_errors(recogniser, asyncio.run(speak_all(service, HARD, 2)), rate_hz)
        figures["wer_hard_percent"] = rate_of(errors)
        if stress:
            spoken = asyncio.run(speak_all(service, STRESS, 2))
            errors, heard = word_errors(recogniser, spoken, rate_hz)
            faithful = [is_faithful(reply, text) for reply, text in zip(spoken, heard)]
            for reply, text, good in zip(spoken, heard, faithful):
                if not good:
                    print(
                        f"  not faithful ({reply.reason.value}) | {reply.caption} | heard: {text}",
                        flush=True,
                    )
            figures |= {
                "wer_stress_percent": rate_of(errors),
                "stress_stopped": sum(r.reason is FinishReason.STOP for r in spoken),
                "stress_faithful": sum(faithful),
                "stress_of": len(STRESS),
            }
    finally:
        service.close()
    return figures


def copy_figures(
    work: Path, config: EngineConfig, recogniser: Recogniser, judges: SoundJudges
) -> dict[str, object]:
    """The teacher, and what codec and vocoder leave of it, in words and in sound."""
    originals = teacher_waves(HARVARD, work / "harvard")
    figures: dict[str, object] = {}
    for name, waves in kinds_of_copies(originals, config).items():
        figures[f"wer_{name}_percent"] = rate_of(misheard(recogniser, waves, HARVARD))
        figures |= judges.figures(name, waves, SAMPLE_RATE_HZ)
    hard = misheard(recogniser, teacher_waves(HARD, work / "hard"), HARD)
    return figures | {"wer_teacher_hard_percent": rate_of(hard)}


def misheard(
    recogniser: Recogniser, waves: Sequence[np.ndarray], texts: Sequence[str]
) -> ErrorCount:
    """The errors of waves at the teacher's rate together."""
    return sum(
        (
            count_errors(text, recogniser.transcribe(wave, SAMPLE_RATE_HZ))
            for wave, text in zip(waves, texts, strict=True)
        ),
        ErrorCount(),
    )


def table(figures: dict[str, object]) -> str:
    """The bars of the voice beside what was measured; what was not measured is left out."""
    bars = (
        ("WER, 20 Harvard sentences", "wer_harvard_percent", "%", "<= 3.5 / 2.5"),
        ("the same, weights in float", "float_wer_harvard_percent", "%", ""),
        ("WER, 40 everyday sentences", "wer_everyday_percent", "%", "<= 1.2 / 0.6"),
        ("the same, weights in float", "float_wer_everyday_percent", "%", ""),
        ("WER, 60 hard sentences", "wer_hard_percent", "%", "<= teacher's + 4"),
        ("the same, teacher", "wer_teacher_hard_percent", "%", ""),
        ("WER, copy synthesis", "wer_copy_synthesis_percent", "%", "<= 5 / 3.5"),
        ("WER, teacher", "wer_teacher_percent", "%", ""),
        ("faithful of 100 prompts", "stress_faithful", "", ">= 95 / 100"),
        ("stopped of 100 prompts", "stress_stopped", "", ""),
        *(
            (f"{judge}, {what}{worst}", f"{judge.lower()}_{key}{'_worst' * bool(worst)}", "", bar)
            for judge, bars_of in (("DistillMOS", SOUND_BARS), ("DNSMOS", {}))
            for what, key in SOUND_SETS
            for worst, bar in (("", bars_of.get(key, "")), (", worst", ""))
        ),
        ("RTF, median", "rtf_median", "", "<= 0.18 / 0.13"),
        ("TTFA, median", "ttfa_median_ms", "ms", "<= 130 / 90"),
        ("underruns, 2 streams", "underruns_of_2_streams", "", "0"),
        ("underruns, 4 streams", "underruns_of_4_streams", "", "0"),
        ("peak memory, speaking, no page", "peak_memory_mb", "MB", "<= 500"),
        ("peak memory, app.py started", "app_memory_mb", "MB", "<= 500"),
    )
    lines = [f"{'what':32s} {'measured':>12s}   must / aim"]
    lines += [
        f"{name:32s} {f'{figures[key]} {unit}'.strip():>12s}   {bar}"
        for name, key, unit, bar in bars
        if key in figures
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT)
    parser.add_argument("--vocoder", default="auto", help="as the program's option")
    parser.add_argument("--float", type=Path, dest="float_checkpoint", help="the same in float")
    parser.add_argument(
        "--work", type=Path, help="folder for the teacher's sentences; judges the copy synthesis"
    )
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--no-stress", action="store_true", help="leave out the 100 prompts")
    parser.add_argument(
        "--only-speed", action="store_true", help="print the speeds as one line of JSON"
    )
    args = parser.parse_args()
    config = EngineConfig(checkpoint=args.checkpoint, vocoder=args.vocoder)
    if args.only_speed:
        print(json.dumps(measure_speed(config)))
        return
    recogniser, judges = Recogniser(), SoundJudges()
    figures: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "seed": SEED,
        "recogniser": "moonshine-voice 0.0.65 tiny-en",
        "vocoder": args.vocoder,
        "judges": "distillmos 0.9.1, speechmos 0.0.1.1 (DNSMOS)",
        **speed_in_own_process(config),
        "app_memory_mb": page_memory_mb(args.checkpoint),
        **judge_sets(config, recogniser, judges, stress=not args.no_stress),
    }
    if args.float_checkpoint is not None:
        compared = judge_sets(
            EngineConfig(checkpoint=args.float_checkpoint), recogniser, judges, stress=False
        )
        figures |= {f"float_{name}": value for name, value in compared.items()}
    if args.work is not None:
        figures |= copy_figures(args.work, config, recogniser, judges)
    print(table(figures))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
