"""The program as a visitor meets it: its own process, a port, and what it wrote."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from moss_engine.api.errors import MossError
from moss_engine.config import REPO_ROOT
from moss_engine.ui.config import require_address

START_S = 240.0


@dataclass
class Program:
    url: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def written(self) -> str:
        """What it has written so far, to standard output and error."""
        return Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def memory_mb(self, kind: str = "VmRSS") -> int:
        """Its resident memory, or the peak of it ("VmHWM"); raises MossError if it has ended."""
        if self.process.poll() is not None:
            raise MossError(f"The program ended: {self.written()[-2000:]}")
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{kind}:")[1].split()[0]) // 1024


@contextmanager
def running(
    port: int, *options: str, command: tuple[str, ...] = ("app.py",), ready: str = "readyz"
) -> Iterator[Program]:
    """Start `app.py`, or another `command` of Python, on a port; it is ended afterwards. It has
    started once /`ready` answers. Raises ConfigError if the port is taken, MossError if the program
    does not start."""
    require_address("127.0.0.1", port)
    command = (sys.executable, *command, "--port", str(port), *options)
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, cwd=REPO_ROOT, stdout=log, stderr=log)
        program = Program(f"http://127.0.0.1:{port}", process, log)
        try:
            _wait(program, ready)
            yield program
        finally:
            process.terminate()
            process.wait(60)


def _wait(program: Program, ready: str) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and program.process.poll() is None:
        try:
            if httpx.get(f"{program.url}/{ready}").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise MossError(f"The program did not start: {program.written()[-2000:]}")
