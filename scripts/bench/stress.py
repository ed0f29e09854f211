"""The service and the program under attack.

newcomers, cancels and damage run in this process: a first sound beside long readings, replies that
are stopped at random moments, folders with a damaged file. calls, recordings, sockets,
never_readers and kills run against the program itself: fuzzed calls, malformed recordings,
half-sent requests at few file handles, listeners who take nothing, kill -9. What --out holds of
other parts is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.build import build_service
from moss_engine.checkup import check_network
from moss_engine.codec.files import read_config
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.service.local import LocalService
from moss_engine.ui.entrance.process import PREFIX
from scripts.bench.common import Report, count, cpu_name, names_of
from scripts.bench.listeners import Heard, hear, request_of
from scripts.bench.program import Program, running
from scripts.bench.stress_calls import measure_calls, measure_recordings, measure_sockets
from scripts.bench.visitor import Visitor, functions_of
from scripts.sentences import sentence

COUNTS = {
    "newcomers": 20, "cancels": 1000, "damage": 200, "calls": 10_000, "recordings": 60,
    "sockets": 200, "never_readers": 4, "kills": 1,
}  # fmt: skip
"""Every part, with how many it makes by itself."""
FILES = 256  # that the program may open while sockets are held
READINGS, READING_CHARS, GAP_S = 4, 4000, 1.5
AT_A_TIME, LONGEST_S, SETTLE_S = 8, 0.8, 5.0
PATIENCE_S = 60.0
SMALL = ("config.json", "generation_config.json", "processor_config.json", "codec/config.json")
KINDS = ("bytes", "cut", "nested", "empty", "pipe", "number", "missing")


def add_options(parser: argparse.ArgumentParser) -> None:
    known = tuple(COUNTS)
    parser.add_argument("--parts", type=names_of(known), default=known, metavar="PART,...",
                        help=f"some of {', '.join(known)} (all)")  # fmt: skip
    parser.add_argument("--count", type=count, metavar="N",
                        help="calls, cancels, folders of each part (its own number)")  # fmt: skip
    parser.add_argument("--port", type=int, default=7991, help="port for the program (7991)")


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    report.add(cpu=cpu_name())
    for name in args.parts:
        found = part(name, args.count or COUNTS[name], args.port)
        report.say(f"{name}: {json.dumps(found)}")
        report.add(**{f"{name}_{figure}": value for figure, value in found.items()})


def part(name: str, num: int, port: int) -> dict[str, Any]:
    if name in ("newcomers", "cancels"):
        return with_service(
            lambda s: measure_newcomers(s, num) if name == "newcomers" else measure_cancels(s, num)
        )
    if name == "damage":
        return measure_damage(num)
    if name == "never_readers":
        return measure_never_readers(port, num)
    if name == "kills":
        return measure_kills(port)
    measures = {
        "calls": measure_calls,
        "recordings": measure_recordings,
        "sockets": measure_sockets,
    }
    with running(port, files=FILES if name == "sockets" else None) as program:
        return asyncio.run(measures[name](program, num))


def with_service(measure: Callable[[LocalService], Any]) -> Any:
    service = build_service(EngineConfig())
    service.start()
    try:
        return asyncio.run(measure(service))
    finally:
        service.close()


def long_text(number: int) -> str:
    text, index = "", number * 1000
    while len(text) < READING_CHARS:
        text, index = f"{text}{sentence(index)} ", index + 1
    return text[:READING_CHARS]


async def measure_newcomers(service: SpeechService, newcomers: int) -> dict[str, Any]:
    """Seconds to the first sound of one visitor after another, quiet and beside READINGS readings
    of READING_CHARS characters, from their beginning on; and what it cost the readings."""
    info = await service.describe()

    async def ask(number: int, name: str) -> float:
        request = request_of(info, sentence(number), f"{name} {number}")
        heard = await hear(service.submit, request)
        assert heard.first_s is not None, heard.end
        return heard.first_s

    quiet = [await ask(number, "quiet") for number in range(5)]
    readers = [Heard() for _ in range(READINGS)]
    reading = [
        asyncio.ensure_future(
            hear(service.submit, request_of(info, long_text(number), f"reader {number}"), heard)
        )
        for number, heard in enumerate(readers)
    ]
    beside = []
    for number in range(newcomers):
        await asyncio.sleep(GAP_S)
        beside.append(await ask(100 + number, "newcomer"))
    assert not any(task.done() for task in reading), "the readings ended before the newcomers"
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return {
        "quiet_p50_s": round(statistics.median(quiet), 3),
        "p50_s": round(statistics.median(beside), 3),
        "worst_s": round(max(beside), 3),
        "first_sounds": [round(first_s, 2) for first_s in beside],
        "times_quiet": round(statistics.median(beside) / statistics.median(quiet), 2),
        "asked": newcomers,
        "readings": READINGS,
        "readings_made_s": round(min(reader.timeline.audio_s for reader in readers), 1),
        "readings_silent_s": round(max(reader.silence_s() for reader in readers), 2),
    }


async def measure_cancels(service: SpeechService, count: int, seed: int = 0) -> dict[str, Any]:
    """Stop `count` replies: queued, in prefill, speaking, or over; by the stream, by the session,
    or by a listener who leaves. The counts of what is left afterwards."""
    info, chance = await service.describe(), random.Random(seed)
    numbers = iter(range(count))
    before = counts()

    async def visitor(name: int) -> None:
        for number in numbers:
            request = request_of(info, sentence(number), f"visitor {name}")
            reply = await service.submit(request)
            how, moment_s = chance.randrange(3), LONGEST_S * chance.random() ** 3
            listening = asyncio.ensure_future(_listen(reply))
            await asyncio.sleep(moment_s)
            if how == 0:
                reply.cancel()
            elif how == 1:
                await service.cancel_session(request.session_id)
            else:
                listening.cancel()
            if chance.random() < 0.2:
                reply.cancel()
            await asyncio.wait({listening}, timeout=SETTLE_S)
            assert listening.done(), "a stopped reply did not end"

    await asyncio.gather(*(visitor(name) for name in range(AT_A_TIME)))
    for _ in range(int(SETTLE_S / 0.1)):
        engine = (await service.stats()).engine
        if not engine.running + engine.waiting:
            break
        await asyncio.sleep(0.1)
    stats = await service.stats()
    after = counts()
    return {
        "cancels": count,
        "running": stats.engine.running,
        "waiting": stats.engine.waiting,
        "blocks_used": stats.engine.blocks_used,
        "leaked_blocks": stats.engine.leaked_blocks,
        "outcomes": stats.outcomes,
        "state": stats.state,
        "threads_more": dict(after["threads"] - before["threads"]),
        "handles_more": after["handles"] - before["handles"],
    }


def counts() -> dict[str, Any]:
    """Threads of this process by the first part of their names, and its open files. Those called
    asyncio are the pool in which an event loop prepares requests: as many as the machine's cores
    and four more at the most, and they end with the loop."""
    names = Counter(re.split(r"[_-]\d", thread.name)[0] for thread in threading.enumerate())
    return {"threads": names, "handles": len(os.listdir("/proc/self/fd"))}


async def _listen(reply: ReplyStream) -> Event | None:
    last = None
    async for event in reply.events():
        last = event
    return last


def damage(path: Path, kind: str, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if kind in ("missing", "pipe"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        return
    if kind == "bytes":
        for _ in range(chance.randint(1, 40)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "nested":
        data = bytearray(b"[" * 100_000)
    elif kind == "empty":
        data.clear()
    else:
        digits = [i for i, value in enumerate(data) if chr(value).isdigit()]
        at = chance.choice(digits)
        data[at : at + 1] = chance.choice([b"1e9", b"-1", b"NaN", b"null", b"99999999999999999999"])
    path.write_bytes(data)


def measure_damage(count: int, seed: int = 0) -> dict[str, Any]:
    """`count` damaged folders: how many were refused or found fine, what else became of them, and
    the longest time that one took."""
    chance = random.Random(seed)
    refused, fine, others, longest_s = 0, 0, [], 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(count):
            folder = Path(scratch) / "nano"
            shutil.copytree(NANO_CHECKPOINT, folder, ignore=shutil.ignore_patterns("manifest.json"))
            name, kind = chance.choice(SMALL), KINDS[number % len(KINDS)]
            damage(folder / name, kind, chance)
            began_s = time.monotonic()
            try:
                faulty = any(finding.is_fault for finding in check_network(folder))
                read_config(folder / "codec")
                refused, fine = refused + faulty, fine + (not faulty)
            except MossError:
                refused += 1
            except Exception as error:
                others.append(f"{kind} {name}: {error!r}")
            longest_s = max(longest_s, time.monotonic() - began_s)
            shutil.rmtree(folder)
    return {
        "folders": count,
        "refused": refused,
        "fine": fine,
        "tracebacks": others,
        "longest_s": round(longest_s, 2),
    }


def measure_never_readers(port: int, num: int) -> dict[str, Any]:
    """Listeners ask for long readings; half of them never open the stream of messages, the others
    open it and read nothing from the socket. For how long each held its place, by the program's own
    log of replies."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "replies"
        with running(port, "--reply-log", str(log)) as program:
            known = len(_lines(log))
            opened = asyncio.run(_ask(program, num))
            deadline_s = time.monotonic() + PATIENCE_S
            while len(_lines(log)) < known + num and time.monotonic() < deadline_s:
                time.sleep(0.2)
            for one in opened:
                one.close()
            ended = _lines(log)[known:]
    return {
        "listeners": num,
        "places_given_back": len(ended),
        "lease_s": EngineConfig().lease_s,
        "longest_held_s": max((line["seconds"] for line in ended), default=None),
        "held_s": [line["seconds"] for line in ended],
    }


async def _ask(program: Program, num: int) -> list[socket.socket]:
    opened, visitors = [], []
    async with httpx.AsyncClient(base_url=program.url, timeout=30.0) as client:
        functions = await functions_of(client)
        for number in range(num):
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
