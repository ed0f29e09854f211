"""Turns of somebody who speaks, through /v1/realtime from outside, in real time.

The program runs in a process of its own; the turns are those of the testing half of
`python -m scripts.turns data FOLDER`, as many whole ones as ones with a pause inside, each on a
connection of its own, in blocks of 20 ms.

    first_sound     from the last sample of the last word to the first sound that arrives
    torn            turns with a pause of which two parts were kept as two questions
    sounded_before  turns with a pause in which an answer was heard before the person went on
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

from scripts.bench.common import Report, count, machine, spread
from scripts.bench.program import running
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
SETTINGS: dict[str, dict[str, Any] | None] = {
    "judge": None,  # what a session has that sets nothing
    "silence": {"type": "server_vad"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="with the turns")
    parser.add_argument(
        "--turns", type=count, default=200, metavar="N", help="of each setting (200)"
    )
    parser.add_argument("--noise", type=int, metavar="DB", help="so far below the speech")
    parser.add_argument("--port", type=int, default=7871)
    parser.add_argument("--settings", default="judge,silence")


async def speak(url: str, turn: Turn, folder: Path, detection: dict | None, noise: int | None):
    """What happened, in seconds behind the last word: `sounds`, and the questions that remain."""
    said = turn.sound(folder)
    said = said if noise is None else with_noise(said, noise)
    before, after = room(round(BEFORE_S * RATE_HZ)), room(round(LONGEST_S * RATE_HZ))
    pcm = np.concatenate([before, said, after])
    last_s = (len(before) + len(said)) / RATE_HZ
    sounds: list[float] = []
    items: set[str] = set()
    async with connect(f"{url}/v1/realtime?model=nano", max_size=None) as socket:
        await socket.recv()
        if detection is not None:
            session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
            await socket.send(json.dumps({"type": "session.update", "session": session}))
            while json.loads(await socket.recv())["type"] != "session.updated":
                pass
        begun_s = time.perf_counter()

        async def listen() -> None:
            async for said in socket:
                event, now_s = json.loads(said), time.perf_counter() - begun_s - last_s
                if event["type"] == "response.output_audio.delta":
                    sounds.append(now_s)
                elif event["type"] == "input_audio_buffer.committed":
                    items.add(event["item_id"])
                elif event["type"] == "conversation.item.deleted":
                    items.discard(event["item_id"])

        listening = asyncio.create_task(listen())
        for start in range(0, len(pcm), BLOCK):
            await asyncio.sleep(begun_s + (start + BLOCK) / RATE_HZ - time.perf_counter())
            data = base64.b64encode(pcm[start : start + BLOCK].tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            now_s = time.perf_counter() - begun_s - last_s
            if now_s > AFTER_S and sounds and sounds[-1] > 0:
                break
        listening.cancel()
    return sounds, items


def figures(found: list[tuple[Turn, list[float], set[str]]], folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    firsts = {kind: [] for kind in (WHOLE, HESITATES, SOFTEST)}
    for turn, sounds, _ in found:
        firsts[turn.kind] += [1000 * s for s in sounds if s > 0][:1]
    if firsts[WHOLE]:
        values |= spread("first_sound", firsts[WHOLE])
    paused = firsts[HESITATES] + firsts[SOFTEST]
    values |= spread("first_sound_behind_pauses", paused) if paused else {}
    values["unanswered"] = sum(not any(s > 0 for s in sounds) for _, sounds, _ in found)
    for kind in (HESITATES, SOFTEST):
        turns = [(turn, sounds, items) for turn, sounds, items in found if turn.kind == kind]
        values[kind] = {
            "turns": len(turns),
            "torn": sum(len(items) > 1 for *_, items in turns),
            "sounded_before": sum(
                any(s < -_rest_s(turn, folder) for s in sounds) for turn, sounds, _ in turns
            ),
        }
    return values


def _rest_s(turn: Turn, folder: Path) -> float:
    """From where the person goes on to the last word."""
    return (len(np.load(folder / f"{turn.name}.npy")) - turn.cut) / RATE_HZ


def run(args: argparse.Namespace, report: Report) -> None:
    turns = [turn for turn in load(args.folder) if turn.half == TEST][: args.turns]
    report.add(machine=machine(), turns=len(turns), noise_db=args.noise)
    with running(args.port) as program:
        url = program.url.replace("http", "ws")
        found: dict[str, list] = {name: [] for name in args.settings.split(",")}
        for at, turn in enumerate(turns):
            for name, results in found.items():
                results.append((turn, *asyncio.run(
                    speak(url, turn, args.folder, SETTINGS[name], args.noise)
                )))  # fmt: skip
            if at % 5 == 4 or at + 1 == len(turns):
                values = {name: figures(results, args.folder) for name, results in found.items()}
                report.add(done=at + 1, **values)
                report.say(json.dumps(values))
        lines = httpx.get(f"{program.url}/metrics").text.splitlines()
        kept = [line for line in lines if "ahead" in line or "mended" in line]
        report.add(metrics=[line for line in kept if not line.startswith("#")])
        report.add(memory_mb=program.counts()["rss_mb"])
