"""Callers who do their worst, 32 at once and again for some seconds, while another process asks for
/healthz.

p99_ms, worst_ms  of /healthz during an attack
faults            answers of 500 and above, but for 503, which says that all places are taken
unanswered        attempts without any answer
tracebacks        in the program's log, of the whole run
websockets        resident memory in MB: before, after 128 WebSockets with an unfinished message
                  of 15 MB each, `stayed` of which were not closed meanwhile, the highest until
                      then, and a minute after they were left
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from scripts.bench.common import Report, names_of
from scripts.bench.program import Program, running

AT_ONCE, SOCKETS, LIMIT_S, LEFT_S = 32, 128, 60.0, 60.0
ATTACK_S = 8.0
MESSAGE_BYTES, PIECE = 15 << 20, bytes(64 * 1024)
PRIMES = [n for n in range(1009, 4000) if all(n % d for d in range(2, 64))][:360]
SOUND = base64.b64encode(bytes(11 << 20)).decode()
RECORDING = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}
MANY = b'{"model": "tts-1", "messages": [' + b'{"role":"user","content":"a"},' * 500_000
WATCH = """
import sys, time, httpx
with httpx.Client(base_url=sys.argv[1], timeout=60) as client:
    while True:
        began_s = time.perf_counter()
        client.get("/healthz")
        print((time.perf_counter() - began_s) * 1000, flush=True)
        time.sleep(0.01)
"""
JSON = {"Content-Type": "application/json"}


def upload() -> Iterator[bytes]:
    """A form that begins, and goes on by single bytes."""
    yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + PIECE
    end_s = time.monotonic() + ATTACK_S
    while time.monotonic() < end_s:
        yield b"x"


def chat(content: object, **fields: object) -> tuple[str, str, bytes, dict[str, str]]:
    messages = [{"role": "user", "content": content}]
    body = json.dumps({"model": "gpt-4o", "messages": messages, **fields}).encode()
    return "POST", "/v1/chat/completions", body, JSON


def speech(text: str) -> tuple[str, str, bytes, dict[str, str]]:
    body = json.dumps({"model": "tts-1", "voice": "alloy", "input": text}).encode()
    return "POST", "/v1/audio/speech", body, JSON


Body = bytes | Callable[[], Iterator[bytes]]
ATTACKS: dict[str, tuple[str, str, Body, dict[str, str]]] = {
    "sum": chat("What is " + "+".join(f"1/{prime}^480" for prime in PRIMES)[:3900] + "?"),
    "power": chat("What is " + "*".join(["9^900"] * 600) + "?"),
    "repeat": chat("Repeat after me: " + "1 a " * 1019, stream=True, modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"}),
    "recording": chat([RECORDING]),
    "doubt": speech("?!" * 2048),
    "half_doubt": speech("½" * 4096),
    "messages": ("POST", "/v1/chat/completions", MANY, JSON),
    "upload": ("POST", "/v1/audio/transcriptions", upload,
        {"Content-Type": "multipart/form-data; boundary=b"}),
    "cookie": ("GET", "/config", b"", {"Cookie": 'a="' + '\\"' * 7500 + '"'}),
    "other_page": ("GET", "/?page=x", b"", {}),
    "long_static": ("GET", "/static/" + "a" * 300, b"", {}),
    "long_asset": ("GET", "/assets/" + "a" * 300, b"", {}),
    "foreign_socket": (
        "GET", "/v1/realtime", b"", {
            "Origin": "https://elsewhere.example", "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        },
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=7893)
    known = (*ATTACKS, "websockets")
    parser.add_argument("--only", type=names_of(known), default=list(known))


def run(args: argparse.Namespace, report: Report) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    with running(args.port) as program, httpx.Client(limits=limits, timeout=LIMIT_S) as client:
        httpx.post(f"{program.url}/v1/audio/speech", content=speech("Hello.")[2], headers=JSON)
        for name, (method, path, body, headers) in ATTACKS.items():
            if name not in args.only:
                continue
            report.say(name)
            answers: list[int] = []
            with watched(program) as waits_ms, ThreadPoolExecutor(AT_ONCE) as threads:
                tries = [
                    threads.submit(statuses, client, program.url + path, method, body, headers)
                    for _ in range(AT_ONCE)
                ]
                answers += [code for attempt in tries for code in attempt.result()]
            report.add(
                **{name: {
                    **figures(waits_ms),
                    "faults": sum(code >= 500 and code != 503 for code in answers),
                    "unanswered": answers.count(0),
                    "answers": {str(code): answers.count(code) for code in sorted(set(answers))},
                }}
            )  # fmt: skip
        if "websockets" in args.only:
            report.say("websockets")
            report.add(websockets=hostile_sockets(program, args.port))
        report.add(tracebacks=program.written().count("Traceback"))


def statuses(
    client: httpx.Client, url: str, method: str, body: Body, headers: dict[str, str]
) -> list[int]:
    """Of one answer after the other, each by a connection of its own, for ATTACK_S; 0 where none
    comes."""
    found, end_s = list[int](), time.monotonic() + ATTACK_S
    while not found or time.monotonic() < end_s:
        try:
            content = body() if callable(body) else body
            with client.stream(method, url, content=content, headers=headers) as answer:
                found.append(answer.status_code)
        except httpx.HTTPError:
            found.append(0)
    return found


@contextlib.contextmanager
def watched(program: Program) -> Iterator[list[float]]:
    """How long /healthz took, each time; complete behind the block."""
    found: list[float] = []
    command = [sys.executable, "-c", WATCH, program.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()  # it has begun
        try:
            yield found
        finally:
            time.sleep(0.5)
            watcher.terminate()
            found += [float(line) for line in watcher.stdout.read().split()]


def figures(waits_ms: list[float]) -> dict[str, float]:
    return {
        "asked": len(waits_ms),
        "p99_ms": round(float(np.percentile(waits_ms, 99)), 1),
        "worst_ms": round(max(waits_ms), 1),
    }


def hostile_sockets(program: Program, port: int) -> dict[str, float]:
    before, highest, sockets = program.memory_mb(), 0, list[ClientConnection]()
    with watched(program) as waits_ms:
        for _ in range(SOCKETS):
            with contextlib.suppress(OSError, WebSocketException):
                sockets.append(begin(port))
            highest = max(highest, program.memory_mb())
        after = program.memory_mb()
    for left in sockets:
        left.socket.close()
    time.sleep(LEFT_S)
    told = {
        "stayed": len(sockets),
        "before": before,
        "after": after,
        "highest": max(highest, after),
    }
    return {**figures(waits_ms), **told, "minute_later": program.memory_mb()}


def begin(port: int) -> ClientConnection:
    """A WebSocket with all but the last byte of a message. Raises OSError or WebSocketException
    where it is closed."""
    opened = connect(f"ws://127.0.0.1:{port}/v1/realtime", open_timeout=5, max_size=None)
    opened.socket.sendall(b"\x81\xff" + MESSAGE_BYTES.to_bytes(8, "big") + b"mask")
    for _ in range(MESSAGE_BYTES // len(PIECE) - 1):
        opened.socket.sendall(PIECE)
    return opened
