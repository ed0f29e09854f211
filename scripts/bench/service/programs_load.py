"""Many programs at once: `python -m scripts.bench.service.programs_load`, JSON on stdout.

The endpoints run in a process of their own, in front of a voice that makes nothing: its replies are
prescribed sound at the pace of speech, so that what is measured is the endpoints alone. First the
CPU time of a stream: of replies that are listened to inside the process, and of the same ones sent
to programs, with /metrics read every second. Then realtime WebSockets, all at once: every event
must come in the order of the protocol, and the sound must be the prescribed one to the last sample.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import numpy as np
import uvicorn
import websockets

from moss_engine.api.errors import MossError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.request import Request
from moss_engine.api.tokens import Modality, Row
from moss_engine.audio.pcm import to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.figures import Figures
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.watched import WatchedService

RATE_HZ = 24_000
CHUNK_S = 0.08  # of sound, as a code of the built-in voice
CPU_BAR_PERCENT = 1.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MODEL = "nano"
BEFORE = [
    "response.created", "response.output_item.added", "conversation.item.added",
    "response.content_part.added",
]  # fmt: skip
DURING = {"response.output_audio.delta", "response.output_audio_transcript.delta"}
AFTER = [
    "response.output_audio.done", "response.output_audio_transcript.done",
    "response.content_part.done", "response.output_item.done", "conversation.item.done",
    "response.done",
]  # fmt: skip


def sound(seconds: float) -> np.ndarray:
    """float32 [n]: a tone that glides, so that no two stretches are alike."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (0.4 * np.sin(2 * np.pi * (200 * t + 90 * t * t))).astype(np.float32)


class Prescribed:
    """A reply of `seconds` of sound, at the pace at which it is heard."""

    def __init__(self, request: Request, seconds: float):
        self.request_id = request.request_id
        self.accepted_s = time.monotonic()
        self._wave = sound(seconds)

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        key, begun_s, step = self.request_id, self.accepted_s, round(CHUNK_S * RATE_HZ)
        yield Accepted(key, 0.0, 0, 20)
        yield Started(key, 0.0, 0, 0)
        starts = range(0, len(self._wave), step)
        for rows, start in enumerate(starts, 1):
            await asyncio.sleep(begun_s + start / RATE_HZ - time.monotonic())
            now_s = time.monotonic() - begun_s
            yield Sampled(key, now_s, rows, Row(0, rows), Modality.AUDIO)
            if rows % 4 == 1:
                yield TextDelta(key, now_s, rows, " word", start)
            yield AudioChunk(key, now_s, rows, self._wave[start : start + step], start, RATE_HZ)
        yield Finished(key, time.monotonic() - begun_s, len(starts), FinishReason.STOP, ())

    def cancel(self) -> None:
        """Nobody stops these."""

    def acknowledge(self, samples: int) -> None:
        """Nothing is made ahead."""


def serve(port: int, seconds: float, streams: int) -> None:
    """The endpoints on a port, or, with `streams`, so many replies listened to in this process."""
    service = build_service(EngineConfig())

    async def submit(request: Request) -> Any:
        return Prescribed(request, seconds)

    service.submit = submit  # type: ignore[method-assign]
    info = asyncio.run(service.describe())
    if streams:
        asyncio.run(listen(service, seconds, streams))
        return
    figures = Figures()
    watched = WatchedService(service, figures, counts_refusals=False)
    app = make_app(Server(watched, info, MODEL, Access(open_to_all=True), figures))
    uvicorn.run(app, port=port, log_level="error", lifespan="off", ws_per_message_deflate=False)


async def listen(service: Any, seconds: float, streams: int) -> None:
    """Print the CPU seconds that all replies took."""

    async def one(number: int) -> None:
        async for _ in Prescribed(
            Request(str(number), "", (), "", info.sampling), seconds
        ).events():
            pass

    info = await service.describe()
    begun_s = time.process_time()
    await asyncio.gather(*(one(number) for number in range(streams)))
    print(time.process_time() - begun_s)


class Served:
    """The endpoints in a process, until they are left."""

    def __init__(self, port: int, seconds: float):
        self.url = f"http://127.0.0.1:{port}"
        self._process = start(port, seconds, 0)

    def __enter__(self) -> Served:
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            try:
                httpx.get(f"{self.url}/v1/models")
                return self
            except httpx.TransportError:
                time.sleep(0.1)
        raise MossError("The endpoints did not start within a minute; see above.")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S


def start(port: int, seconds: float, streams: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scripts.bench.service.programs_load", "--serve"]
    numbers = ["--port", str(port), "--seconds", str(seconds), "--streams", str(streams)]
    return subprocess.Popen([*command, *numbers], stdout=subprocess.PIPE, text=True)


async def http_streams(url: str, streams: int, expected: bytes) -> None:
    """So many replies at once, each to its last byte, and /metrics beside them."""
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def one() -> None:
            body = {"model": MODEL, "input": "Good morning.", "response_format": "pcm"}
            answer = await http.post(f"{url}/v1/audio/speech", json=body)
            assert answer.content == expected, "the sound is another one"

        async def watch() -> None:
            while True:
                (await http.get(f"{url}/metrics")).raise_for_status()
                await asyncio.sleep(1)

        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(one() for _ in range(streams)))
        watching.cancel()


async def talk(url: str, turns: int, expected: bytes) -> int:
    """One WebSocket; the number of its events. Raises AssertionError for one out of order."""
    address = f"{url.replace('http', 'ws')}/v1/realtime?model={MODEL}"
    number = 0
    async with websockets.connect(address, max_size=None) as socket:

        async def next_event() -> dict[str, Any]:
            nonlocal number
            number += 1
            return json.loads(await asyncio.wait_for(socket.recv(), 60))

        assert (await next_event())["type"] == "session.created"
        for _ in range(turns):
            content = [{"type": "input_text", "text": "How are you?"}]
            item = {"type": "message", "role": "user", "content": content}
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create"}))
            kinds = [(await next_event())["type"] for _ in range(2)]
            assert kinds == ["conversation.item.added", "conversation.item.done"], kinds
            kinds, pcm = [], b""
            while not kinds or kinds[-1] != AFTER[-1]:
                event = await next_event()
                kinds.append(event["type"])
                if event["type"] == "response.output_audio.delta":
                    pcm += base64.b64decode(event["delta"])
            during = kinds[len(BEFORE) : -len(AFTER)]
            assert (kinds[: len(BEFORE)], kinds[-len(AFTER) :]) == (BEFORE, AFTER), kinds
            assert set(during) == DURING, set(during)
            assert pcm == expected, "the sound is another one"
    return number


def measure(port: int, seconds: float, streams: int, sockets: int, turns: int) -> dict[str, Any]:
    expected = to_pcm16(sound(seconds)).astype("<i2").tobytes()
    alone = start(port, seconds, streams).communicate()[0]
    with Served(port, seconds) as served:
        before_s = served.cpu_s()
        asyncio.run(http_streams(served.url, streams, expected))
        sent_s = served.cpu_s() - before_s
    with Served(port, seconds) as served:
        before_s, begun_s = served.cpu_s(), time.monotonic()

        async def all_sockets() -> list[int]:
            return await asyncio.gather(
                *(talk(served.url, turns, expected) for _ in range(sockets))
            )

        numbers = asyncio.run(all_sockets())
        wall_s = time.monotonic() - begun_s
        talking_s = served.cpu_s() - before_s
    percent = 100 * (sent_s - float(alone)) / (streams * seconds)
    return {
        "replies_at_once": streams,
        "seconds": seconds,
        "cpu_of_a_stream_percent": round(percent, 2),
        "cpu_of_a_stream_bar_percent": CPU_BAR_PERCENT,
        "sockets": sockets,
        "turns_each": turns,
        "events_in_order": sum(numbers),
        "all_turns_s": round(wall_s, 2),
        "cpu_of_a_socket_percent": round(100 * talking_s / (sockets * wall_s), 2),
        "passed": percent <= CPU_BAR_PERCENT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.programs_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=7963, help="port for the endpoints (7963)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of sound in a reply (12)")
    parser.add_argument("--streams", type=int, default=16, help="replies over HTTP at once (16)")
    parser.add_argument("--sockets", type=int, default=64, help="WebSockets at once (64)")
    parser.add_argument("--turns", type=int, default=2, help="of each WebSocket (2)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.port, given.seconds, given.streams)
    else:
        report = measure(given.port, given.seconds, given.streams, given.sockets, given.turns)
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
