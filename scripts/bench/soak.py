"""Hours of visitors, or of none.

Two listeners, one who stops at random moments and one who talks hands-free (a third listener where
nobody can talk) visit the program for as long as is asked for; every minute its memory, threads,
open files and processor time are noted, and at the end how they grew and how long first sounds
took. With --idle nobody comes: what the program costs at rest. What follows `--` are options of
app.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Origin

from moss_engine.audio.file import read_audio
from moss_engine.audio.pcm import to_pcm16
from moss_engine.config import REPO_ROOT
from scripts.bench.common import Report, cpu_s, machine
from scripts.bench.program import Program, running
from scripts.sentences import sentence

SAMPLE_S = 60.0
SETTLED_S = 1800.0  # what is kept for a while has reached its full size by then
HOUR_S = 3600.0
PAUSE_S = 4.0
STOP_S = 1.0
QUESTIONS_A_TAB = 40
BLOCK = 4000  # samples of the microphone at 16 kHz
SPOKEN = REPO_ROOT / "assets" / "samples" / "good_morning.flac"
MAX_ROWS = 60
TALKING = ("talk", "speech-to-speech")  # modes, of voices that hear by a recogniser or themselves
PATIENCE_S = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, metavar="N", help="how long (60)")
    add("--idle", action="store_true", help="nobody comes")
    add("--port", type=int, default=7992, help="port for the program (7992)")
    add("app", nargs="*", metavar="-- OPTION", help="options of app.py")


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine())

    async def soak(program: Program) -> None:
        async with httpx.AsyncClient(base_url=program.url, timeout=60.0) as client:
            soak = Soak(program, client)
            await soak.run(60 * args.minutes, report, idle=args.idle)

    with running(args.port, *args.app) as program:
        asyncio.run(soak(program))


class Soak:
    """One run against a program. `figures` are what is known so far."""

    def __init__(self, program: Program, client: httpx.AsyncClient, seed: int = 0):
        self._program, self._client = program, client
        self._chance = random.Random(seed)
        self._began_s = time.monotonic()
        self._first: list[tuple[float, float]] = []  # (seconds into the run, to the first sound)
        self._ends: Counter[str] = Counter()
        self._samples: list[tuple[float, dict[str, int]]] = []
        self._busy_s = cpu_s(program.process.pid)
        self._talking: str | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self, length_s: float, report: Report, *, idle: bool = False) -> None:
        self._talking = await offered(self._client, TALKING)
        fourth = self._talk if self._talking else self._listen
        people = (self._listen, self._listen, self._cancel, fourth)
        visits = [asyncio.ensure_future(self._visit(person)) for person in people if not idle]
        try:
            while self.seconds < length_s:
                left_s = min(SAMPLE_S, length_s - self.seconds)
                done = asyncio.ensure_future(asyncio.sleep(left_s))
                await asyncio.wait([done, *visits], return_when="FIRST_COMPLETED")
                for visit in visits:
                    if visit.done():
                        visit.result()
                self._samples.append((self.seconds, self._program.counts()))
                report.add(**self.figures())
        finally:
            for visit in visits:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    def figures(self) -> dict[str, Any]:
        settled = [sample for sample in self._samples if sample[0] >= SETTLED_S]
        first = [took_s for at_s, took_s in self._first if at_s < HOUR_S]
        last = [took_s for at_s, took_s in self._first if at_s >= self.seconds - HOUR_S]
        return {
            "minutes": round(self.seconds / 60, 1),
            "cores": round((cpu_s(self._program.process.pid) - self._busy_s) / self.seconds, 3),
            "ends": dict(self._ends),
            "first_sound_s_p50_first_hour": median_of(first),
            "first_sound_s_p50_last_hour": median_of(last),
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
            visitor = await Visitor.open(self._program.url)
            try:
                await person(visitor)
            except (WebSocketException, OSError) as error:
                self._ends[f"failed: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                await visitor.leave()

    async def _listen(self, visitor: Visitor) -> None:
        for _ in range(QUESTIONS_A_TAB):
            text = sentence(self._chance.randrange(10_000))
            self._note("reading", await visitor.ask(text=text, max_rows=MAX_ROWS))
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
        spoken = spoken_16k()
        for _ in range(QUESTIONS_A_TAB):
            utterance = ""
            await visitor.talk()
            turn = np.concatenate([spoken, np.zeros(6 * 16_000, np.int16)])
            for start in range(0, len(turn), BLOCK):
                heard = await visitor.say(turn[start : start + BLOCK])
                utterance = heard["utterance"] or utterance
                if utterance:
                    break
                await asyncio.sleep(BLOCK / 16_000)
            if not utterance:
                self._ends["spoken: not heard"] += 1
                continue
            answer = await visitor.ask(mode=self._talking, utterance=utterance, max_rows=MAX_ROWS)
            self._note("spoken", answer)

    def _note(self, asked: str, answer: Answer) -> None:
        self._ends[f"{asked}: {answer.end}"] += 1
        if answer.first_s is not None:
            self._first.append((self.seconds, answer.first_s))


@dataclass
class Answer:
    """What came of a question: seconds to the first sound (None: there was none), and how it
    ended."""

    first_s: float | None = None
    end: str = "lost"


class Visitor:
    """A visitor of the page as an open tab is one, from `open` to `leave`, by its WebSocket
    (`moss_engine/ui/door.py`)."""

    def __init__(self, socket: ClientConnection):
        self._socket = socket
        self._last = -1
        self._recordings = 0

    @staticmethod
    async def open(url: str) -> Visitor:
        """A tab of the page at that address."""
        address = url.replace("http", "ws", 1).rstrip("/") + "/gradio_api/live"
        visitor = Visitor(await connect(address, origin=Origin(url.rstrip("/")), max_size=None))
        await visitor._send("session.open", visit=secrets.token_hex(16), key=secrets.token_hex(16))
        await visitor._event("session.opened")
        return visitor

    async def ask(
        self, *, while_heard: Callable[[Answer], Awaitable[None]] | None = None, **values: Any
    ) -> Answer:
        """Ask something and take the reply to its end; `while_heard` runs beside that."""
        answer, asked_s, run = Answer(), time.monotonic(), secrets.token_hex(4)
        await self._send("response.create", values=values, run=run)
        beside = asyncio.ensure_future(while_heard(answer)) if while_heard else None
        try:
            over = False
            while not over:
                event, sound = await self._event("response.update", run=run)
                if sound and answer.first_s is None:
                    answer.first_s = time.monotonic() - asked_s
                answer.end = event.get("state", answer.end)
                over = event.get("end", False)
        finally:
            if beside is not None and not beside.cancel():
                beside.result()
        return answer

    async def stop(self) -> None:
        """Stop what is heard; its `ask` takes what comes of that."""
        await self._send("response.cancel")

    async def talk(self) -> None:
        """Switch the microphone on, hands-free."""
        self._recordings += 1
        await self._send("input_audio_buffer.begin", recording=self._recordings, hands_free=True)

    async def say(self, pcm: np.ndarray) -> dict[str, Any]:
        """int16 samples at 16 kHz; what became of them."""
        await self._socket.send(pcm.tobytes())
        heard, _ = await self._event("input_audio_buffer.heard", recording=self._recordings)
        return heard

    async def leave(self) -> None:
        """Close the tab."""
        with contextlib.suppress(OSError):
            await self._send("session.close")
            await self._socket.close()

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def _event(self, kind: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        """The next event of that kind, with its sound."""
        while True:
            frame = await asyncio.wait_for(self._socket.recv(), PATIENCE_S)
            sound = b""
            if isinstance(frame, bytes):
                size = int.from_bytes(frame[:4], "little")
                frame, sound = frame[4 : 4 + size].decode(), frame[4 + size :]
            event = json.loads(frame)
            if "n" in event:
                self._last = event["n"]
                if self._last % 16 == 0:
                    await self._send("got", last=self._last)
            if event["type"] == "error":
                raise RuntimeError(event["message"])
            if event["type"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event, sound


async def offered(client: httpx.AsyncClient, names: tuple[str, ...]) -> str | None:
    """The first of these modes that the page has."""
    parts = (await client.get("/config")).json()["components"]
    known = {value for part in parts for _, value in part["props"].get("choices") or ()}
    return next((name for name in names if name in known), None)


def median_of(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def spoken_16k() -> np.ndarray:
    """int16 [n] of somebody who speaks, at 16 kHz."""
    wave, rate_hz = read_audio(SPOKEN)
    wave = wave[: 3 * rate_hz]
    times_s = np.arange(round(len(wave) / rate_hz * 16_000)) / 16_000
    return to_pcm16(np.interp(times_s, np.arange(len(wave)) / rate_hz, wave).astype(np.float32))


def slope(samples: list[tuple[float, dict[str, int]]], name: str) -> float | None:
    """Growth in thousands an hour, by least squares; None of less than ten samples."""
    if len(samples) < 10:
        return None
    hours = np.array([at_s / 3600 for at_s, _ in samples])
    values = np.array([sample[name] / 1024 for _, sample in samples])
    return round(float(np.polyfit(hours, values, 1)[0]), 2)
