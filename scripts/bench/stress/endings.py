"""Listeners who take nothing, and a program that is killed: what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from moss_engine.config import EngineConfig
from moss_engine.ui.entrance.process import PREFIX
from scripts.bench.stress.newcomer import long_text
from scripts.bench.stress.program import Program, running
from scripts.bench.visitor import Visitor, functions_of

LISTENERS = 4
PATIENCE_S = 60.0


def measure_never_readers(port: int) -> dict[str, Any]:
    """LISTENERS ask for long readings; half of them never open the stream of messages, the others
    open it and read nothing from the socket. For how long each held its place, by the program's own
    log of replies."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "replies"
        with running(port, "--reply-log", str(log)) as program:
            known = len(_lines(log))
            opened = asyncio.run(_ask(program))
            deadline_s = time.monotonic() + PATIENCE_S
            while len(_lines(log)) < known + LISTENERS and time.monotonic() < deadline_s:
                time.sleep(0.2)
            for one in opened:
                one.close()
            ended = _lines(log)[known:]
    return {
        "listeners": LISTENERS,
        "places_given_back": len(ended),
        "lease_s": EngineConfig().lease_s,
        "longest_held_s": max((line["seconds"] for line in ended), default=None),
        "held_s": [line["seconds"] for line in ended],
    }


async def _ask(program: Program) -> list[socket.socket]:
    opened, visitors = [], []
    async with httpx.AsyncClient(base_url=program.url, timeout=30.0) as client:
        functions = await functions_of(client)
        for number in range(LISTENERS):
            visitor = Visitor(client, functions)
            visitors.append(visitor)
            await visitor.join("reply", {"text": long_text(number)})
            if number % 2:
                opened.append(_open_stream(program, visitor.session))
        # the tabs stay open: nothing but the lease tells that nobody listens
        await asyncio.sleep(EngineConfig().lease_s + 5.0)
        for visitor in visitors:
            await visitor.leave()
    return opened


def _open_stream(program: Program, session: str) -> socket.socket:
    host, port = program.url.removeprefix("http://").split(":")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.connect((host, int(port)))
    path = f"/gradio_api/queue/data?session_hash={session}"
    opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    return opened


def _lines(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def measure_kills(port: int) -> dict[str, Any]:
    """Kill the program while a reply plays, start it again, end that by SIGTERM: the folders with
    sound files that are left after each, and whether a reply sounds without anything cleaned by
    hand."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        try:
            with running(port) as killed:
                asyncio.run(_reply(killed, whole=False))
                killed.process.send_signal(signal.SIGKILL)
                killed.process.wait()
            after_kill = _folders(scratch)
            began_s = time.monotonic()
            with running(port) as again:
                ready_s = time.monotonic() - began_s
                after_start = _folders(scratch)
                first_s = asyncio.run(_reply(again, whole=True))
                again.process.send_signal(signal.SIGTERM)
                code = _exit_code(again.process)
            after_end = _folders(scratch)
        finally:
            del os.environ["TMPDIR"]
    return {
        "folders_after_kill": len(after_kill),
        "of_them_after_next_start": len(after_kill & after_start),
        "folders_after_sigterm": len(after_end),
        "sigterm_exit_code": code,
        "ready_again_s": round(ready_s, 1),
        "first_sound_again_s": None if first_s is None else round(first_s, 3),
    }


async def _reply(program: Program, *, whole: bool) -> float | None:
    """Seconds to the first sound of a reply; without `whole` it goes on."""
    async with httpx.AsyncClient(base_url=program.url, timeout=30.0) as client:
        visitor = Visitor(client, await functions_of(client))
        if whole:
            answer = await visitor.ask(text="Hello.")
            await visitor.stop()
            return answer.first_s
        await visitor.ask(text="Hello.")
        await visitor.stop()  # which writes its sound
        await visitor.join("reply", {"text": long_text(0)})
        await asyncio.sleep(1.0)
        return None


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        return None


def _folders(scratch: str) -> set[Path]:
    return set(Path(scratch).glob(f"{PREFIX}*"))
