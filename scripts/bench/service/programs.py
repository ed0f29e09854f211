"""What the endpoints for programs add: `python -m scripts.bench.service.programs`, JSON on stdout.

The built-in voice is served on the page's port; a client in a process of its own asks for speech,
one reply after another. Measured is, on the machine's one clock, the time from the service having
made a reply's first samples to the client's first byte of sound, and the time from the client
closing its connection in mid-reply to no KV block being in use. Then the first of the two once more
with replies that nobody has to make: what the endpoints take where no network competes for the
processor.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Event
from moss_engine.api.request import Request
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.service.local import LocalService
from moss_engine.ui.config import PageConfig
from scripts.bench.service.programs_load import Prescribed

FIRST_BYTE_BAR_MS = 2.0
FREED_BAR_MS = 100.0
TEXT = "Good morning, how are you today?"
LONG_TEXT = "The lamp is on the table, and the book lies under it. " * 20
POLL_S = 0.004  # rarely, since asking takes time from what is measured
GAP_S = 0.2
PRESCRIBED_S = 0.4
Stamp = tuple[float, float]


class Stamped:
    """A reply that notes when its first samples were made."""

    def __init__(self, reply: Any, made_s: list[float]):
        self.request_id = reply.request_id
        self._reply = reply
        self._made_s = made_s

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        first = True
        events = self._reply.events(acknowledge=acknowledge)
        try:
            async for event in events:
                if first and isinstance(event, AudioChunk):
                    first = False
                    self._made_s.append(self._reply.accepted_s + event.time_s)
                yield event
        finally:
            await events.aclose()

    def cancel(self) -> None:
        self._reply.cancel()

    def acknowledge(self, samples: int) -> None:
        self._reply.acknowledge(samples)


def call(port: int, text: str, kind: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"model": "nano", "input": text, "response_format": kind})
    connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
    return connection.getresponse()


def client(port: int, runs: int, closes: bool) -> list[Stamp]:
    """When the first byte came, and when a second, longer reply was closed (if `closes`), run by
    run."""
    stamps = []
    for _ in range(runs):
        answer = call(port, TEXT, "pcm")
        answer.read(1)
        first_s = time.monotonic()
        answer.read()
        time.sleep(GAP_S)
        if closes:
            answer = call(port, LONG_TEXT, "pcm")
            answer.read(4800)
        closed_s = time.monotonic()
        answer.close()
        stamps.append((first_s, closed_s))
        time.sleep(3 * GAP_S if closes else 0)
    return stamps


def measure(port: int, runs: int) -> dict[str, Any]:
    """Both figures of every run, the first left out."""
    from moss_engine.ui.server import launch

    service = build_service(EngineConfig())
    made_s: list[float] = []
    submit = service.submit

    async def stamped(request: Request) -> Any:
        return Stamped(await submit(request), made_s)

    async def prescribed(request: Request) -> Any:
        return Stamped(Prescribed(request, PRESCRIBED_S), made_s)

    service.submit = stamped  # type: ignore[method-assign]
    service.start()
    page = launch(service, PageConfig(port=port), model="nano")
    try:
        made_s.clear()
        stamps, freed_s = asyncio.run(follow(service, port, runs))
        found = report(stamps, made_s[::2], freed_s)
        made_s.clear()
        service.submit = prescribed  # type: ignore[method-assign]
        stamps, _ = asyncio.run(follow(service, port, runs, "--no-closes"))
        return found | summary("endpoints_alone", waits_ms(stamps, made_s))
    finally:
        page.close(verbose=False)
        service.close()


async def follow(
    service: LocalService, port: int, runs: int, *more: str
) -> tuple[list[Stamp], list[float]]:
    """What the client noted, and whenever the blocks in use became none meanwhile."""
    command = [sys.executable, "-m", "scripts.bench.service.programs", "--client"]
    numbers = ["--port", str(port), "--runs", str(runs + 1)]
    command += [*numbers, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        freed_s = await watch(service, process)
        assert process.stdout is not None
        return json.loads(process.stdout.read()), freed_s


async def watch(service: LocalService, process: subprocess.Popen[str]) -> list[float]:
    """Whenever the blocks in use became none, until the client is done."""
    freed_s, used = [], 0
    while process.poll() is None:
        before, used = used, (await service.stats()).engine.blocks_used
        if before and not used:
            freed_s.append(time.monotonic())
        await asyncio.sleep(POLL_S)
    return freed_s


def report(stamps: list[Stamp], made_s: list[float], freed_s: list[float]) -> dict[str, Any]:
    first_ms = waits_ms(stamps, made_s)
    freed_ms = [1000 * (min(s for s in freed_s if s > closed) - closed) for _, closed in stamps[1:]]
    return {
        "runs": len(first_ms),
        **summary("first_byte", first_ms),
        "first_byte_bar_ms": FIRST_BYTE_BAR_MS,
        **summary("freed", freed_ms),
        "freed_bar_ms": FREED_BAR_MS,
        "passed": statistics.median(first_ms) <= FIRST_BYTE_BAR_MS
        and max(freed_ms) <= FREED_BAR_MS,
    }


def waits_ms(stamps: list[Stamp], made_s: list[float]) -> list[float]:
    """From the first samples to the first byte, the first run left out."""
    return [1000 * (first - made) for (first, _), made in zip(stamps, made_s, strict=True)][1:]


def summary(name: str, values: list[float]) -> dict[str, float]:
    found = {
        "median": statistics.median(values),
        "p95": statistics.quantiles(values, n=20, method="inclusive")[-1],
        "min": min(values),
        "max": max(values),
    }
    return {f"{name}_{what}_ms": round(value, 2) for what, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="pairs of calls (20)")
    parser.add_argument("--port", type=int, default=7962, help="port for the page (7962)")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--closes", action=argparse.BooleanOptionalAction, default=True, help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.client:
        print(json.dumps(client(options.port, options.runs, options.closes)))
    else:
        print(json.dumps(measure(options.port, options.runs), indent=1))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
