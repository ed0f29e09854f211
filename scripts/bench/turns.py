"""Somebody speaks turns to /v1/realtime, from outside the program and in real time.

The program runs in a process of its own; the turns are those of the testing half of
`python -m scripts.turns data FOLDER`, as many whole ones as ones with a pause inside, each on a
connection of its own, in blocks of 20 ms. A turn takes 4.6 s.

    first_sound     from the last sample of the last word to the first sound that arrives
    torn            turns with a pause of which two parts were kept as two questions
    sounded_before  turns with a pause in which an answer was heard before the person went on
    gaps            silences within the last answers, for a client that begins to play BUFFER_S
                    after the first sound
    ahead           answers that were begun before their turn was over: how many were used, how many
                    thrown away, and how long in a minute of the run the latter took
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import connect

from scripts.bench.common import Report, machine, spread
from scripts.bench.program import running
from scripts.command import count
from scripts.turns.data import (
    HESITATES,
    RATE_HZ,
    SOFTEST,
    TEST,
    WHOLE,
    Turn,
    load,
    room,
    with_noise,
)

BLOCK = RATE_HZ // 50
BEFORE_S, AFTER_S, LONGEST_S = 0.3, 1.6, 8.0
BUFFER_S = 0.05
COUNTS = {
    "released": 'ahead_total{outcome="released"}',
    "thrown_away": 'ahead_total{outcome="thrown_away"}',
    "worked_for_nothing_s": "ahead_wasted_seconds_total",
    "mended": "turns_mended_total",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, help="with the turns")
    add("--turns", type=count, default=100, metavar="N",
        help="whole ones, and as many with a pause (100)")  # fmt: skip
    add("--noise", type=int, metavar="DB", help="so far below the speech")
    add("--together", type=count, default=1, metavar="N", help="who speak (1)")
    add("--port", type=int, default=7871)
    add("--server-vad", action="store_true", help="turns end by silence, not by the judge")
    add("--full-size", action="store_true", help="a model of random weights, on a GPU")
    add("--transcribe", action="store_true", help="there with the recogniser beside its encoder")


class Ear:
    """What a client hears in one turn, in seconds after the end of the last word."""

    def __init__(self, begun_s: float, last_s: float):
        self._zero_s = begun_s + last_s
        self.sounds: list[float] = []
        self.items: set[str] = set()
        self.over = False
        self.gaps_ms: list[float] = []
        self._dry_s: float | None = None

    def now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    def take(self, event: dict[str, Any]) -> None:
        kind, now_s = event["type"], self.now_s()
        if kind == "response.created":
            self.over, self.gaps_ms, self._dry_s = False, [], None
        elif kind == "response.output_audio.delta":
            self.sounds.append(now_s)
            begins_s = now_s + BUFFER_S if self._dry_s is None else max(now_s, self._dry_s)
            if self._dry_s is not None and now_s > self._dry_s:
                self.gaps_ms.append(round(1000 * (now_s - self._dry_s), 1))
            self._dry_s = begins_s + len(event["delta"]) * 3 / 8 / RATE_HZ
        elif kind == "response.done":
            self.over = True
        elif kind == "input_audio_buffer.committed":
            self.items.add(event["item_id"])
        elif kind == "conversation.item.deleted":
            self.items.discard(event["item_id"])

    def row(self, turn: Turn, folder: Path) -> dict[str, Any]:
        firsts = [1000 * s for s in self.sounds if s > 0]
        rest_s = (len(np.load(folder / f"{turn.name}.npy")) - turn.cut) / RATE_HZ
        return {
            "kind": turn.kind,
            "first_ms": round(firsts[0], 1) if firsts else None,
            "torn": turn.kind != WHOLE and len(self.items) > 1,
            "before": turn.kind != WHOLE and any(s < -rest_s for s in self.sounds),
            "gaps_ms": self.gaps_ms,
        }


async def speak(url: str, turn: Turn, args: argparse.Namespace) -> dict[str, Any]:
    """Speak one turn on a connection of its own; the row of the report about it."""
    said = turn.sound(args.folder)
    said = said if args.noise is None else with_noise(said, args.noise)
    before, after = room(round(BEFORE_S * RATE_HZ)), room(round(LONGEST_S * RATE_HZ))
    pcm = np.concatenate([before, said, after])
    async with connect(f"{url}/v1/realtime", max_size=None) as socket:
        await socket.recv()
        if args.server_vad:
            detection = {"turn_detection": {"type": "server_vad"}}
            session = {"type": "realtime", "audio": {"input": detection}}
            await socket.send(json.dumps({"type": "session.update", "session": session}))
            while json.loads(await socket.recv())["type"] != "session.updated":
                pass
        begun_s = time.perf_counter()
        ear = Ear(begun_s, (len(before) + len(said)) / RATE_HZ)

        async def listen() -> None:
            async for told in socket:
                ear.take(json.loads(told))

        listening = asyncio.create_task(listen())
        for start in range(0, len(pcm), BLOCK):
            await asyncio.sleep(begun_s + (start + BLOCK) / RATE_HZ - time.perf_counter())
            data = base64.b64encode(pcm[start : start + BLOCK].tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            if ear.now_s() > AFTER_S and ear.over and ear.sounds and ear.sounds[-1] > 0:
                break
        listening.cancel()
    return ear.row(turn, args.folder)


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, found in (
        ("first_sound", [row for row in rows if row["kind"] == WHOLE]),
        ("first_sound_behind_pauses", [row for row in rows if row["kind"] != WHOLE]),
    ):
        answered = [row["first_ms"] for row in found if row["first_ms"] is not None]
        values |= spread(name, answered) if answered else {}
    values["unanswered"] = sum(row["first_ms"] is None for row in rows)
    values["gaps"] = sum(len(row["gaps_ms"]) for row in rows)
    for kind in (HESITATES, SOFTEST):
        turns = [row for row in rows if row["kind"] == kind]
        torn, before = (sum(row[what] for row in turns) for what in ("torn", "before"))
        values[kind] = {"turns": len(turns), "torn": torn, "sounded_before": before}
    return values


def counted(url: str) -> dict[str, float]:
    found = dict.fromkeys(COUNTS, 0.0)
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        key, _, value = line.rpartition(" ")
        found |= {name: float(value) for name in COUNTS if key == f"moss_speech_{COUNTS[name]}"}
    return found


def chosen(turns: list[Turn], num: int) -> list[Turn]:
    """`num` whole turns of the testing half and as many with a pause, alternately."""
    found = [turn for turn in turns if turn.half == TEST]
    whole = [turn for turn in found if turn.kind == WHOLE]
    paused = [turn for turn in found if turn.cut]
    if min(len(whole), len(paused)) < num:
        raise SystemExit(f"There are fewer than {num} of a kind; `scripts.turns data` says more.")
    return [turn for pair in zip(whole[:num], paused[:num], strict=True) for turn in pair]


def run(args: argparse.Namespace, report: Report) -> None:
    turns, rows = chosen(load(args.folder), args.turns), list[dict[str, Any]]()
    name = "silence" if args.server_vad else "judge"
    report.add(machine=machine(), noise_db=args.noise, together=args.together)
    options = ("--transcribe",) if args.transcribe else ()
    command, ready = ("app.py",), "readyz"
    if args.full_size:
        command, ready = ("-m", "scripts.bench.full_size_program"), "v1/models"
    with running(args.port, *options, command=command, ready=ready) as program:
        url, begun_s = program.url.replace("http", "ws"), time.monotonic()

        async def speak_all(found: list[Turn]) -> list[dict[str, Any]]:
            return list(await asyncio.gather(*(speak(url, turn, args) for turn in found)))

        for at in range(0, len(turns), args.together):
            rows += asyncio.run(speak_all(turns[at : at + args.together]))
            seconds, ahead = time.monotonic() - begun_s, counted(program.url)
            found = figures(rows)
            report.add(
                turns=len(rows), seconds=round(seconds, 1), ahead=ahead,
                wasted_s_a_minute=round(60 * ahead["worked_for_nothing_s"] / seconds, 3),
                memory_mb=program.memory_mb(), **{name: found}, rows={name: rows},
            )  # fmt: skip
            report.say(f"{len(rows)} turns: {json.dumps(found)}")
