"""Attacks on the routes of the program: fuzzed calls, malformed recordings, and sockets that say
nothing. Parts of the bench `stress`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from typing import Any

import httpx

from scripts.bench.program import Program

AT_A_TIME = 16
SLOW_S = 1.0
WORDS = ["", "x", "../../etc/passwd", "%00", "%0aforged", "\\u0000", "-1", "1e999", "NaN", "null"]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    "",
    "Hello.",
    "half \ud800",
    [],
    {},
    [[]],
    "x" * 9999,
]
PATHS = (
    "/", "/config", "/login", "/logout", "/healthz", "/readyz", "/pwa_icon/8000", "/manifest.json",
    "/openapi.json", "/monitoring/summary", "/v1/models", "/v1/audio/speech", "/metrics",
    "/gradio_api/info", "/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/cancel",
    "/gradio_api/reset", "/gradio_api/run/stop", "/gradio_api/run/listen", "/gradio_api/call/reply",
    "/gradio_api/call/reply/x", "/gradio_api/file=/etc/passwd", "/gradio_api/upload",
    "/gradio_api/hear/aaaaaaaaaaaaaaaaaaaaaa", "/gradio_api/hear/aaaaaaaaaaaaaaaaaaaaaa/file",
    "/assets/x.js", "/static/x", "/theme.css", "/gradio_api/component_server",
)  # fmt: skip
HEADERS = {
    "range": ["bytes=5-1", "bytes=--", "bytes=0-", "x"],
    "x-forwarded-host": ["[::1", "evil.example", "a b"],
    "origin": ["null", "http://localhost:1", "http://evil.example"],
    "cookie": ["a=" + '\\"' * 30_000, "a"],
    "content-type": ["application/json", "multipart/form-data", "text/plain"],
    "accept": ["text/html", "*/*"],
}


def draw(chance: random.Random, num_functions: int) -> httpx.Request:
    path = chance.choice(PATHS)
    if chance.random() < 0.2:
        path += "/" + chance.choice(WORDS)
    headers = {
        name: chance.choice(values) for name, values in HEADERS.items() if chance.random() < 0.15
    }
    method = chance.choice(["GET", "GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS"])
    body = b""
    if method == "POST":
        message = {
            "fn_index": chance.choice([*range(num_functions), -1, None, "x"]),
            "session_hash": chance.choice(["fuzz", "", None, 5, "x" * 99]),
            "event_id": "x",
            "data": [chance.choice(VALUES) for _ in range(chance.randrange(24))],
        }
        body = json.dumps(message).encode()
        if chance.random() < 0.3:
            body = body[: chance.randrange(len(body))]
        headers.setdefault("content-type", "application/json")
    return httpx.Request(method, f"http://fuzz{path}", headers=headers, content=body)


async def measure_calls(program: Program, count: int, seed: int = 0) -> dict[str, Any]:
    """Send `count` fuzzed calls; statuses, what was slow, and what the program wrote."""
    chance, statuses, slow = random.Random(seed), Counter[str](), []
    numbers, stalls = iter(range(count)), list[float]()
    before = program.counts()
    limits = httpx.Limits(max_connections=AT_A_TIME + 1)

    async with httpx.AsyncClient(base_url=program.url, limits=limits, timeout=30.0) as client:
        num_functions = len((await client.get("/config")).json()["dependencies"])

        async def caller() -> None:
            for _ in numbers:
                drawn = draw(chance, num_functions)
                request = client.build_request(
                    drawn.method, drawn.url.raw_path.decode(), headers=drawn.headers,
                    content=drawn.content,
                )  # fmt: skip
                request.headers["host"] = client.base_url.netloc.decode()
                began_s = time.monotonic()
                try:
                    async with client.stream(request.method, request.url, headers=request.headers,
                                             content=drawn.content) as answer:  # fmt: skip
                        statuses[str(answer.status_code)] += 1
                        if answer.status_code >= 500 and answer.status_code != 503:
                            slow.append(f"{answer.status_code} {request.method} {request.url.path}")
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                if time.monotonic() - began_s > SLOW_S:
                    slow.append(f"{request.method} {request.url.path}")

        watching = asyncio.ensure_future(_watch(client, stalls))
        await asyncio.gather(*(caller() for _ in range(AT_A_TIME)))
        watching.cancel()
    written = program.written()
    return {
        "calls": count,
        "statuses": dict(statuses),
        "noteworthy": slow[:20],
        "longest_healthz_s": round(max(stalls), 3),
        "tracebacks": written.count("Traceback"),
        "written_bytes": len(written),
        "before": before,
        "after": program.counts(),
    }


async def _watch(client: httpx.AsyncClient, stalls_s: list[float]) -> None:
    """Note how long the program's event loop lets a light question wait."""
    while True:
        began_s = time.monotonic()
        await client.get("/healthz")
        stalls_s.append(time.monotonic() - began_s)
        await asyncio.sleep(0.1)


async def measure_recordings(program: Program, count: int, seed: int = 0) -> dict[str, Any]:
    """Send `count` malformed files as recordings."""
    chance, statuses, longest_s = random.Random(seed), Counter[int](), 0.0
    good = (
        b"RIFF\x24\x7d\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\0\x7d\0\0"
    )
    async with httpx.AsyncClient(base_url=program.url, timeout=30.0) as client:
        key = ""
        for number in range(count):
            if number % 50 == 0:
                body = {"data": [], "session_hash": f"rec{number}"}
                key = (await client.post("/gradio_api/run/listen", json=body)).json()["data"][0]
            data = bytearray(good + chance.randbytes(32_000))
            for _ in range(chance.randrange(12)):
                data[chance.randrange(64)] = chance.randrange(256)
            del data[chance.choice([0, 10, 44, 60, 20_000, 40_000]) :]
            if number % 5 == 0:
                data = bytearray(chance.choice([b"fLaC", b"OggS", b"ID3", b"<html>"])) + data
            began_s = time.monotonic()
            answer = await client.post(f"/gradio_api/hear/{key}/file", content=bytes(data))
            statuses[answer.status_code] += 1
            longest_s = max(longest_s, time.monotonic() - began_s)
    return {
        "recordings": count,
        "statuses": {str(status): n for status, n in statuses.items()},
        "longest_s": round(longest_s, 3),
        "tracebacks": program.written().count("Traceback"),
    }


async def measure_sockets(program: Program, count: int) -> dict[str, Any]:
    """Open `count` sockets that send half a head; how a visitor is answered meanwhile, and when the
    last of them is closed."""
    host, port = program.url.removeprefix("http://").split(":")
    began_s = time.monotonic()
    opened = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: half")
            opened.append((reader, writer))
    answers = []
    for _ in range(20):
        asked_s = time.monotonic()
        async with httpx.AsyncClient(timeout=10.0) as client:
            answer = await client.get(f"{program.url}/config")
        answers.append((answer.status_code, time.monotonic() - asked_s))
    for reader, writer in opened:
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
    return {
        "sockets": len(opened),
        "answered": sum(status == 200 for status, _ in answers),
        "asked": len(answers),
        "slowest_answer_s": round(max(s for _, s in answers), 3),
        "all_closed_after_s": round(time.monotonic() - began_s, 1),
        "written_bytes": len(program.written()),
    }
