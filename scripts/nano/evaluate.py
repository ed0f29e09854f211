"""Stage 9: the figures of the built-in voice, through the real service, with default settings and fixed seeds.

    python -m scripts.nano.evaluate [--checkpoint assets/nano] [--float FOLDER] [--work DIR] [--out FILE]

--float names the same checkpoint exported with `--dtype float`, to compare the word error rates; with --work the copy
synthesis is judged too (it needs the teacher). Prints a table and writes it as JSON. Nothing else should run meanwhile:
the speeds are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from moss_engine.build import build_service
from moss_engine.config import NANO_CHECKPOINT, REPO_ROOT, EngineConfig
from moss_engine.errors import MossError
from moss_engine.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.request import Message, Request, Text
from moss_engine.service import Service
from moss_engine.spoken.text import spoken_text
from scripts.nano.alignment import longest_gap
from scripts.nano.copy_synthesis import copies, teacher_waves
from scripts.nano.judge import ErrorCount, Recogniser, count_errors, spoken_words
from scripts.nano.sentences import EVERYDAY, HARVARD, STRESS

if TYPE_CHECKING:
    from moss_engine.processor import Processor

SEED = 1
TWELVE_WORDS = "The old captain carried two silver keys across the bridge before sunrise."
SPEED_REPLIES = 12
START_LIMIT_S = 120.0
SUSPECT_GAP = 3
"""So many neighbouring words too few or too many count as skipped or repeated; fewer are the recogniser's slips."""


@dataclass(frozen=True)
class Spoken:
    """One reply: what was asked, its caption, its sound and its figures."""

    asked: str
    caption: str
    wave: np.ndarray
    reason: FinishReason
    metrics: RequestMetrics


async def speak(service: Service, text: str, number: int) -> Spoken:
    processor = cast("Processor", service.engine.processor)
    request = Request(
        f"evaluate-{number}-{time.monotonic_ns()}",
        f"evaluate-{number}",
        (Message("user", Text(text)),),
        processor.default_mode.name,
        dataclasses.replace(processor.default_sampling, seed=SEED),
    )
    timeline, caption, parts = Timeline(), "", []
    async for event in service.stream(request):
        timeline = fold(timeline, event)
        if isinstance(event, TextDelta):
            caption += event.text
        elif isinstance(event, AudioChunk):
            parts.append(event.samples)
        elif isinstance(event, Failed):
            raise MossError(f"{text!r}: {event.message}")
        elif isinstance(event, Finished):
            wave = np.concatenate(parts) if parts else np.zeros(1, np.float32)
            return Spoken(text, caption, wave, event.reason, measure(timeline))
    raise AssertionError("the stream ended without a last word")


async def speak_all(service: Service, texts: Sequence[str], concurrency: int) -> list[Spoken]:
    """Every text once, `concurrency` at a time, in order."""
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, text: str) -> Spoken:
        async with slots:
            return await speak(service, text, number)

    return list(await asyncio.gather(*(one(k, text) for k, text in enumerate(texts))))


def word_errors(recogniser: Recogniser, spoken: Sequence[Spoken], rate_hz: int) -> tuple[ErrorCount, list[str]]:
    """The errors of all replies together, and what was heard of each."""
    total, heard = ErrorCount(), []
    for reply in spoken:
        heard.append(recogniser.transcribe(reply.wave, rate_hz))
        errors = count_errors(reply.asked, heard[-1])
        total += errors
        if errors.word_edits:
            print(f"  {errors.word_edits} wrong | {spoken_text(reply.asked)} | heard: {heard[-1]}", flush=True)
    return total, heard


def is_faithful(reply: Spoken, heard: str) -> bool:
    """Stopped by itself, wrote exactly the text, and no run of words was heard too few or too many."""
    exact = " ".join(reply.caption.split()) == spoken_text(reply.asked)
    gap = longest_gap(spoken_words(reply.asked), spoken_words(heard))
    return reply.reason is FinishReason.STOP and exact and gap < SUSPECT_GAP


def rate_of(errors: ErrorCount) -> float:
    return round(100 * errors.word_error_rate, 2)


def judge_sets(config: EngineConfig, recogniser: Recogniser, stress: bool) -> dict[str, object]:
    """Word error rates of one checkpoint, and with `stress` how many of 100 prompts went well."""
    service = build_service(config)
    service.start()
    figures: dict[str, object] = {}
    try:
        rate_hz = service.codec.sample_rate_hz
        for name, texts in (("harvard", HARVARD), ("everyday", EVERYDAY)):
            errors, _ = word_errors(recogniser, asyncio.run(speak_all(service, texts, 2)), rate_hz)
            figures[f"wer_{name}_percent"] = rate_of(errors)
        if stress:
            spoken = asyncio.run(speak_all(service, STRESS, 2))
            errors, heard = word_errors(recogniser, spoken, rate_hz)
            faithful = [is_faithful(reply, text) for reply, text in zip(spoken, heard)]
            for reply, text, good in zip(spoken, heard, faithful):
                if not good:
                    print(f"  not faithful ({reply.reason.value}) | {reply.caption} | heard: {text}", flush=True)
            figures |= {
                "wer_stress_percent": rate_of(errors),
                "stress_stopped": sum(r.reason is FinishReason.STOP for r in spoken),
                "stress_faithful": sum(faithful),
                "stress_of": len(STRESS),
            }
    finally:
        service.close()
    return figures


def measure_speed(config: EngineConfig) -> dict[str, object]:
    """Real-time factor and time to first audio of one warm stream, and underruns of several streams."""
    service = build_service(config)
    service.start()
    try:
        asyncio.run(speak_all(service, (TWELVE_WORDS, TWELVE_WORDS), 1))
        texts = [
            f"{name} {TWELVE_WORDS[4:]}"
            for name in ("My", "Our", "That", "This", "One", "Another", "Every", "His", "Her", "Your", "No", "Some")
        ]
        alone = [r.metrics for r in asyncio.run(speak_all(service, texts[:SPEED_REPLIES], 1))]
        figures: dict[str, object] = {
            "rtf_median": round(statistics.median(m.rtf for m in alone if m.rtf), 3),
            "rtf_worst": round(max(m.rtf for m in alone if m.rtf), 3),
            "ttfa_median_ms": round(statistics.median(m.ttfa_ms for m in alone if m.ttfa_ms), 1),
            "ttfa_worst_ms": round(max(m.ttfa_ms for m in alone if m.ttfa_ms), 1),
        }
        for streams in (2, 3):
            together = [r.metrics for r in asyncio.run(speak_all(service, STRESS[60 : 60 + 4 * streams], streams))]
            figures[f"underruns_of_{streams}_streams"] = sum(m.underruns for m in together)
    finally:
        service.close()
    figures["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return figures


def speed_in_own_process(checkpoint: Path) -> dict[str, object]:
    """`measure_speed` without the recogniser and the teacher in memory."""
    command = [sys.executable, "-m", "scripts.nano.evaluate", "--checkpoint", str(checkpoint), "--only-speed"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MossError(f"the speed could not be measured: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def page_memory_mb(checkpoint: Path) -> int:
    """Peak resident memory of app.py, started and with its page fetched once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "app.py", "--checkpoint", str(checkpoint), "--port", str(port)]
    process = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
                    page.read()
            except OSError:
                time.sleep(0.5)
                continue
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024
        raise MossError("app.py did not start; run it by hand to see why.")
    finally:
        process.terminate()
        process.wait()


def copy_figures(work: Path, checkpoint: Path, recogniser: Recogniser) -> dict[str, object]:
    originals = teacher_waves(HARVARD, work / "harvard")
    figures: dict[str, object] = {}
    for name, waves in (("teacher", originals), ("copy_synthesis", copies(originals, checkpoint, torch.device("cpu")))):
        total = ErrorCount()
        for wave, text in zip(waves, HARVARD):
            total += count_errors(text, recogniser.transcribe(wave, 24_000))
        figures[f"wer_{name}_percent"] = rate_of(total)
    return figures


def table(figures: dict[str, object]) -> str:
    """The bars of the voice beside what was measured; a figure that was not measured is left out."""
    bars = (
        ("WER, 20 Harvard sentences", "wer_harvard_percent", "%", "<= 8 / 4"),
        ("the same, weights in float", "float_wer_harvard_percent", "%", ""),
        ("WER, 40 everyday sentences", "wer_everyday_percent", "%", "<= 10 / 6"),
        ("the same, weights in float", "float_wer_everyday_percent", "%", ""),
        ("WER, copy synthesis", "wer_copy_synthesis_percent", "%", "<= 5 / 3.5"),
        ("WER, teacher", "wer_teacher_percent", "%", ""),
        ("faithful of 100 prompts", "stress_faithful", "", ">= 95 / 100"),
        ("stopped of 100 prompts", "stress_stopped", "", ""),
        ("RTF, median", "rtf_median", "", "< 0.5 / 0.3"),
        ("TTFA, median", "ttfa_median_ms", "ms", "< 300 / 180"),
        ("underruns, 2 streams", "underruns_of_2_streams", "", "0"),
        ("underruns, 3 streams", "underruns_of_3_streams", "", "0 aimed at"),
        ("peak memory, speaking, no page", "peak_memory_mb", "MB", "< 1200 / 800"),
        ("peak memory, app.py started", "app_memory_mb", "MB", "< 1200 / 800"),
    )
    lines = [f"{'what':32s} {'measured':>12s}   must / aim"]
    lines += [
        f"{name:32s} {f'{figures[key]} {unit}'.strip():>12s}   {bar}" for name, key, unit, bar in bars if key in figures
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT)
    parser.add_argument("--float", type=Path, dest="float_checkpoint", help="the same in float")
    parser.add_argument("--work", type=Path, help="folder for the teacher's sentences; judges the copy synthesis")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--no-stress", action="store_true", help="leave out the 100 prompts")
    parser.add_argument("--only-speed", action="store_true", help="print the speeds as one line of JSON")
    args = parser.parse_args()
    config = EngineConfig(checkpoint=args.checkpoint)
    if args.only_speed:
        print(json.dumps(measure_speed(config)))
        return
    recogniser = Recogniser()
    figures: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "seed": SEED,
        "recogniser": "moonshine-voice 0.0.65 tiny-en",
        **speed_in_own_process(args.checkpoint),
        "app_memory_mb": page_memory_mb(args.checkpoint),
        **judge_sets(config, recogniser, stress=not args.no_stress),
    }
    if args.float_checkpoint is not None:
        compared = judge_sets(EngineConfig(checkpoint=args.float_checkpoint), recogniser, stress=False)
        figures |= {f"float_{name}": value for name, value in compared.items()}
    if args.work is not None:
        figures |= copy_figures(args.work, args.checkpoint, recogniser)
    print(table(figures))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
