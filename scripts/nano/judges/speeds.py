"""How fast the built-in voice speaks, and the memory that it takes, on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from moss_engine.api.errors import MossError
from moss_engine.build import build_service
from moss_engine.config import REPO_ROOT, EngineConfig
from scripts.nano.judges.replies import speak_all
from scripts.nano.text.sentences import STRESS

TWELVE_WORDS = "The old captain carried two silver keys across the bridge before sunrise."

SPEED_REPLIES = 12

START_LIMIT_S = 120.0


def measure_speed(config: EngineConfig) -> dict[str, object]:
    """Real-time factor and time to first audio of one warm stream, and underruns of several
    streams."""
    service = build_service(config)
    service.start()
    try:
        asyncio.run(speak_all(service, (TWELVE_WORDS, TWELVE_WORDS), 1))
        texts = [
            f"{name} {TWELVE_WORDS[4:]}"
            for name in (
                "My",
                "Our",
                "That",
                "This",
                "One",
                "Another",
                "Every",
                "His",
                "Her",
                "Your",
                "No",
                "Some",
            )
        ]
        alone = [r.metrics for r in asyncio.run(speak_all(service, texts[:SPEED_REPLIES], 1))]
        figures: dict[str, object] = {
            "rtf_median": round(statistics.median(m.rtf for m in alone if m.rtf), 3),
            "rtf_worst": round(max(m.rtf for m in alone if m.rtf), 3),
            "ttfa_median_ms": round(statistics.median(m.ttfa_ms for m in alone if m.ttfa_ms), 1),
            "ttfa_worst_ms": round(max(m.ttfa_ms for m in alone if m.ttfa_ms), 1),
        }
        for streams in (2, 4):
            together = [
                r.metrics
                for r in asyncio.run(speak_all(service, STRESS[60 : 60 + 4 * streams], streams))
            ]
            figures[f"underruns_of_{streams}_streams"] = sum(m.underruns for m in together)
    finally:
        service.close()
    figures["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return figures


def speed_in_own_process(config: EngineConfig) -> dict[str, object]:
    """`measure_speed` without the recogniser and the teacher in memory."""
    command = [sys.executable, "-m", "scripts.nano.evaluate", "--only-speed"]
    command += ["--checkpoint", str(config.checkpoint), "--vocoder", config.vocoder]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MossError(f"the speed could not be measured: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def page_memory_mb(checkpoint: Path) -> int:
    """Peak resident memory of app.py, started and with its page fetched once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "app.py", "--checkpoint", str(checkpoint), "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=REPO_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
                    page.read()
            except OSError:
                time.sleep(0.5)
                continue
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024
        raise MossError("app.py did not start; run it by hand to see why.")
    finally:
        process.terminate()
        process.wait()
