"""A long day: `python -m scripts.bench.stress.soak --out FILE -- --checkpoint DIR ...`.

Two listeners, one who stops at random moments and one who talks hands-free (a third listener where
nobody can talk) visit the program for as long as is asked for; every minute its memory, threads and
open files are noted, and at the end how they grew and how long first sounds took. What follows `--`
are options of app.py. Each run adds a part to the file, which is written anew every minute, so that
a run that is cut short counts, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.audio.file import read_audio
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.rate import Downsampler
from moss_engine.config import REPO_ROOT
from scripts.bench.common.machine import cpu_name
from scripts.bench.stress.program import Program, plain, running
from scripts.bench.visitor import Answer, Visitor, functions_of
from scripts.sentences import sentence

SAMPLE_S = 60.0
SETTLED_S = 1800.0  # what is kept for a while has reached its full size by then
PART_S = 900.0  # first sounds are told of parts of this length
HOUR_S = 3600.0
PAUSE_S = 4.0
STOP_S = 1.0
QUESTIONS_A_TAB = 40
BLOCK = 4000  # samples of the microphone at 16 kHz
SPOKEN = REPO_ROOT / "assets" / "samples" / "good_morning.flac"
MAX_ROWS = 60
TALKING = "speech-to-speech"


class Soak:
    """One run against a program. `report` is what is known so far."""

    def __init__(self, program: Program, client: httpx.AsyncClient, seed: int = 0):
        self._program, self._client = program, client
        self._chance = random.Random(seed)
        self._began_s = time.monotonic()
        self._first: list[tuple[float, float]] = []  # (seconds into the run, to the first sound)
        self._ends: Counter[str] = Counter()
        self._samples: list[tuple[float, dict[str, int]]] = []
        self._functions: dict[str, tuple[int, dict[Any, Any]]] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self, length_s: float, save: Callable[[dict[str, Any]], None]) -> None:
        self._functions = await functions_of(self._client)
        talks = await offers(self._client, TALKING)
        people = (self._listen, self._listen, self._cancel, self._talk if talks else self._listen)
        visits = [asyncio.ensure_future(self._visit(person)) for person in people]
        try:
            while self.seconds < length_s:
                left_s = min(SAMPLE_S, length_s - self.seconds)
                await asyncio.wait(visits, timeout=left_s, return_when="FIRST_COMPLETED")
                for visit in visits:
                    if visit.done():
                        visit.result()
                self._samples.append((self.seconds, self._program.counts()))
                save(self.report())
        finally:
            for visit in visits:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    def report(self) -> dict[str, Any]:
        settled = [sample for sample in self._samples if sample[0] >= SETTLED_S]
        parts = [
            [took_s for at_s, took_s in self._first if number <= at_s / PART_S < number + 1]
            for number in range(int(self.seconds / PART_S) + 1)
        ]
        first = [took_s for at_s, took_s in self._first if at_s < HOUR_S]
        last = [took_s for at_s, took_s in self._first if at_s >= self.seconds - HOUR_S]
        return {
            "minutes": round(self.seconds / 60, 1),
            "ends": dict(self._ends),
            "first_sound_s_p50_first_hour": median_of(first),
            "first_sound_s_p50_last_hour": median_of(last),
            "first_sound_s_p50_by_quarter_hour": [median_of(part) for part in parts if part],
            "rss_mb_an_hour": slope(self._samples, "rss_kb"),
            "rss_mb_an_hour_after_half_hour": slope(settled, "rss_kb"),
            "tracebacks": self._program.written().count("Traceback"),
            **{
                name: [sample[name] for _, sample in self._samples]
                for name in ("rss_mb", "threads", "handles")
            },
        }

    async def _visit(self, person: Callable[[Visitor], Awaitable[None]]) -> None:
        """One tab after another, closed and opened anew."""
        while True:
            visitor = Visitor(self._client, self._functions)
            try:
                await person(visitor)
            except httpx.HTTPError as error:
                self._ends[f"failed: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                await visitor.leave()

    async def _listen(self, visitor: Visitor) -> None:
        for _ in range(QUESTIONS_A_TAB):
            text = sentence(self._chance.randrange(10_000))
            self._note("reading", await visitor.ask(text=text, max_rows=MAX_ROWS))
            await visitor.stop()  # which answers with the conversation and writes its sound
            await asyncio.sleep(PAUSE_S * (0.5 + self._chance.random()))

    async def _cancel(self, visitor: Visitor) -> None:
        """Stops at a random moment, by the button or by closing the tab."""

        async def stop(_answer: Answer) -> None:
            await asyncio.sleep(STOP_S * self._chance.random())
            await visitor.stop()

        for _ in range(QUESTIONS_A_TAB):
            text = sentence(self._chance.randrange(10_000))
            if self._chance.random() < 0.1:
                asking = asyncio.ensure_future(visitor.ask(text=text))
                await asyncio.wait({asking}, timeout=STOP_S * self._chance.random())
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                self._ends["closed tab"] += 1
                return
            self._note("stopped", await visitor.ask(while_heard=stop, text=text))
            await asyncio.sleep(PAUSE_S * self._chance.random())

    async def _talk(self, visitor: Visitor) -> None:
        """Says a sentence, hears the answer, says another; blocks come as a microphone's do."""
        key, seq, spoken = await visitor.microphone(), 0, spoken_16k()
        for _ in range(QUESTIONS_A_TAB):
            utterance = ""
            turn = np.concatenate([spoken, np.zeros(6 * 16_000, np.int16)])
            for start in range(0, len(turn), BLOCK):
                heard = await visitor.say(key, seq, turn[start : start + BLOCK])
                seq += 1
                utterance = heard["utterance"] or utterance
                if utterance:
                    break
                await asyncio.sleep(BLOCK / 16_000)
            if not utterance:
                self._ends["spoken: not heard"] += 1
                continue
            answer = await visitor.ask(mode=TALKING, utterance=utterance, max_rows=MAX_ROWS)
            self._note("spoken", answer)

    def _note(self, asked: str, answer: Answer) -> None:
        self._ends[f"{asked}: {answer.end}"] += 1
        if answer.first_s is not None:
            self._first.append((self.seconds, answer.first_s))


async def offers(client: httpx.AsyncClient, mode: str) -> bool:
    """Whether the page has a mode of that name."""
    parts = (await client.get("/config")).json()["components"]
    return any(
        mode in choice for part in parts for choice in part["props"].get("choices") or () if choice
    )


def median_of(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def spoken_16k() -> np.ndarray:
    """int16 [n] of somebody who speaks, at 16 kHz."""
    wave, rate_hz = read_audio(SPOKEN)
    assert rate_hz == 24_000
    return Downsampler().push(to_pcm16(wave[: 3 * rate_hz]))


def slope(samples: list[tuple[float, dict[str, int]]], name: str) -> float | None:
    """Growth in thousands an hour, by least squares; None of less than ten samples."""
    if len(samples) < 10:
        return None
    hours = np.array([at_s / 3600 for at_s, _ in samples])
    values = np.array([sample[name] / 1024 for _, sample in samples])
    return round(float(np.polyfit(hours, values, 1)[0]), 2)


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.stress.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="(60)")
    parser.add_argument("--port", type=int, default=7992, help="port for the program (7992)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON to add to")
    options = parser.parse_args(arguments[:at])
    found: dict[str, Any] = {"cpu": cpu_name()}
    if options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    part = 1 + sum(name.endswith("_minutes") for name in found)

    def save(report: dict[str, Any]) -> None:
        found.update({f"part_{part}_{name}": plain(value) for name, value in report.items()})
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    async def soak(program: Program) -> None:
        async with httpx.AsyncClient(base_url=program.url, timeout=60.0) as client:
            await Soak(program, client).run(60 * options.minutes, save)

    with running(options.port, *arguments[at + 1 :]) as program:
        asyncio.run(soak(program))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
