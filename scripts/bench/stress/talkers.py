"""Several people who talk to the program at once: `python -m scripts.bench.stress.talkers`, JSON.

Each is a tab without a browser, as a browser would take the cores that the program is measured on:
a microphone in real time, hands-free, whose blocks go to the program as the page's do, and a player
of the page's rules (`playback.py`) that is fed as sound arrives. Everybody asks the same question
again and again, and interrupts the answer with the next one; their pauses differ, so that in the
course of the turns everything falls together with everything.

    first_sound   from the last loud block of the question to the first sample of the answer
    silence       from the first loud block of the voice to the answer falling silent
    gaps          where an answer stopped because its next sound was not there
    least_left    of an answer: the least sound that was left when more came
    cores         how many the program kept busy; and what else this machine did meanwhile
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.audio.pcm import read_wav
from moss_engine.talk.modes import TALK
from scripts.bench.service.hands_free import LOUD, summary, write_question
from scripts.bench.stress.playback import Playback, Played
from scripts.bench.stress.program import Program, machine_busy_s, plain, running
from scripts.bench.stress.visitor import Visitor, functions_of
from scripts.progress import Progress

RATE_HZ = 16_000
RATE_OUT_HZ = 24_000
POLL_S = 0.005
BLOCK = 1024  # samples of the page's microphone at a time
MORE_PAUSE_S = 0.5  # of each person than of the one before
NEW_VOICE_S = 1.0  # of silence before it
TURN_LIMIT_S = 60.0


@dataclass
class Seen:
    """Of one person: milliseconds, and the answers as they were heard."""

    starts: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    answers: list[Played] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


class Talker:
    """One person. `sound` [n] int16 at RATE_HZ is heard by the microphone over and over."""

    def __init__(self, visitor: Visitor, sound: np.ndarray):
        self.seen = Seen()
        self._visitor = visitor
        self._sound = sound
        self._player = Playback()
        self._run = ""  # of the answer that is waited for or heard; none after it was interrupted
        self._work: asyncio.Task[None] = asyncio.ensure_future(asyncio.sleep(0))
        self._blocks: list[np.ndarray] = []
        self._hearing = False
        self._loud_s = self._onset_s = 0.0
        self._asked_s: float | None = None  # the last loud block of a question without an answer

    async def talk(self, turns: int, progress: Progress) -> None:
        """So many turns. Raises MossError where one gets no answer."""
        key, seq = await self._visitor.microphone(), 0
        microphone = asyncio.ensure_future(self._listen())
        heard_s = _now()
        try:
            while len(self.seen.starts) < turns or self._run:
                await asyncio.sleep(POLL_S)
                if self._work.done():
                    self._work.result()
                if self._note_start():
                    progress.advance(1)
                    heard_s = _now()
                if _now() - heard_s > TURN_LIMIT_S:
                    raise MossError(f"A question got no answer: {self.seen.ends[-3:]}")
                if self._blocks:
                    block = np.concatenate(self._blocks)
                    self._blocks.clear()
                    sounds = self._run and self._player.sounds(_now())
                    heard = await self._visitor.say(key, seq, block, answering=bool(sounds))
                    seq += 1
                    self._take(heard, asks=len(self.seen.starts) < turns)
            await self._work
        finally:
            microphone.cancel()
            self._work.cancel()

    async def _listen(self) -> None:
        """The microphone: a block when its time is over."""
        began_s, at = _now(), 0
        while True:
            block = np.take(self._sound, range(at, at + BLOCK), mode="wrap")
            at += BLOCK
            await asyncio.sleep(began_s + at / RATE_HZ - _now())
            if np.abs(block).max() > LOUD * 32768:
                if _now() - self._loud_s > NEW_VOICE_S:
                    self._onset_s = _now()
                self._loud_s = _now()
            self._blocks.append(block)

    def _take(self, heard: dict[str, Any], *, asks: bool) -> None:
        """What the page does at a word from its microphone's line."""
        begins, self._hearing = heard["talking"] and not self._hearing, heard["talking"]
        waits = bool(self._run) and not self._player.over(_now())
        if begins and waits:
            self._player.hold(_now())
            self.seen.stops.append(1000 * (_now() - self._onset_s))
        meant = heard["utterance"] or (self._hearing and heard["sure"])
        if waits and self._player.held and meant:
            self._leave()
        elif not self._hearing:
            self._player.go_on(_now())
        if heard["utterance"]:
            self._leave()
            if asks:
                self._run, self._asked_s = secrets.token_hex(4), self._loud_s
                self._work = asyncio.ensure_future(
                    self._ask(self._work, self._run, heard["utterance"])
                )

    def _leave(self) -> None:
        """The answer, if there is one, makes room for the next one."""
        if not self._run:
            return
        run, self._run = self._run, ""
        played = self._player.leave(_now())
        self.seen.answers.append(played)
        self._work = asyncio.ensure_future(self._stop(self._work, run, played))

    async def _stop(self, before: asyncio.Task[None], run: str, played: Played) -> None:
        await self._visitor.stop(f"{run}:{round(played.heard_s * RATE_OUT_HZ)}")
        await before

    async def _ask(self, before: asyncio.Task[None], run: str, utterance: str) -> None:
        def take(message: dict[str, Any]) -> None:
            if run != self._run:
                return
            if message["pcm"]:
                samples = len(base64.b64decode(message["pcm"])) // 2
                self._player.push(_now(), samples / message["rate"])
            if message["end"]:
                self._player.end(_now())

        await before
        answer = await self._visitor.ask(on_message=take, mode=TALK, utterance=utterance, run=run)
        self.seen.ends.append(f"{answer.end} {answer.note}".strip())

    def _note_start(self) -> bool:
        """Whether an answer has begun to sound."""
        began_s = self._player.now(_now()).began_s
        if began_s is None or self._asked_s is None:
            return False
        self.seen.starts.append(1000 * (began_s - self._asked_s))
        self._asked_s = None
        return True


def measure(people: int, turns: int, port: int) -> dict[str, Any]:
    """The figures of all turns of all people."""
    with tempfile.TemporaryDirectory() as folder:
        sound, rate_hz = read_wav(write_question(Path(folder)))
    assert rate_hz == RATE_HZ
    with running(port) as program:
        seen, cores = asyncio.run(_talk(program, sound, people, turns))
        memory_mb = program.counts()["rss_mb"]
    answers = [answer for one in seen for answer in one.answers]
    left = [1000 * answer.least_left_s for answer in answers]
    return {
        **summary("first_sound", [value for one in seen for value in one.starts]),
        **summary("silence", [value for one in seen for value in one.stops]),
        "least_left_median_ms": round(statistics.median(left), 1),
        "least_left_worst_ms": round(min(left), 1),
        "answers": len(answers),
        "answers_heard_s": round(sum(answer.heard_s for answer in answers), 1),
        "gaps": sum(answer.gaps for answer in answers),
        "gaps_ms": round(1000 * sum(answer.gaps_s for answer in answers), 1),
        "answers_with_gaps": sum(answer.gaps > 0 for answer in answers),
        "ends": plain(dict(Counter(end for one in seen for end in one.ends))),
        **cores,
        "memory_mb": memory_mb,
    }


async def _talk(
    program: Program, sound: np.ndarray, people: int, turns: int
) -> tuple[list[Seen], dict[str, float]]:
    """What everybody has seen, and who kept how many cores busy meanwhile."""
    progress = Progress(people * turns, "turns")
    async with httpx.AsyncClient(base_url=program.url, timeout=TURN_LIMIT_S) as client:
        functions = await functions_of(client)
        visitors = [Visitor(client, functions) for _ in range(people)]
        talkers = []
        for number, visitor in enumerate(visitors):
            more = np.zeros(round(number * MORE_PAUSE_S * RATE_HZ), np.int16)
            talkers.append(Talker(visitor, np.concatenate([sound, more])))
        before = _busy(program)
        try:
            await asyncio.gather(*(talker.talk(turns, progress) for talker in talkers))
        finally:
            for visitor in visitors:
                await visitor.leave()
        took_s, mine, all_ = (after - b for after, b in zip(_busy(program), before, strict=True))
    progress.end()
    others = max(0.0, all_ / took_s)  # two clocks: less than nothing where nobody else did anything
    cores = {"cores": round(mine / took_s, 2), "cores_of_others": round(others, 2)}
    return [talker.seen for talker in talkers], cores


def _busy(program: Program) -> tuple[float, float, float]:
    """Now, and seconds of processor time: the program's, and those of all but it and us."""
    mine = program.busy_s()
    return _now(), mine, machine_busy_s() - mine - time.process_time()


def _now() -> float:
    return time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.stress.talkers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--people", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="of each (20)")
    parser.add_argument("--port", type=int, default=7964, help="port for the program (7964)")
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {busy:.1f} busy",
        "turns": options.turns,
        "people": options.people,
        **measure(options.people, options.turns, options.port),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
