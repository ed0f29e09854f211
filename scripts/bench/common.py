"""What every bench shares: how options are read, the machine's name, and the one way in which
figures are shown and written."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.config import REPO_ROOT
from scripts.command import count

FOLDER = REPO_ROOT / "assets" / "bench"
PERCENTILES = (50, 90, 95, 99)


class Report:
    """Figures of one run, written to `path` whenever some are added, so that an interrupted run
    leaves what it has found."""

    def __init__(self, path: Path | None = None):
        self.values: dict[str, Any] = {}
        self._path = path
        self._start_s = time.perf_counter()

    def go_on(self) -> None:
        """Take what the file holds already, so that this run adds to it."""
        if self._path and self._path.exists():
            self.values = json.loads(self._path.read_text(encoding="utf-8"))

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self._start_s:6.1f} s  {text}", file=sys.stderr, flush=True)

    def add(self, **values: Any) -> None:
        self.values |= values
        self.save()

    def save(self) -> None:
        if self._path:
            self._path.write_text(self.text() + "\n", encoding="utf-8")

    def text(self) -> str:
        return json.dumps(self.values, indent=1)


def names_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """The type of an option that takes some of the known names."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is unknown; choose among {', '.join(known)}"
            )
        return found

    return read


def whole_numbers(text: str) -> list[int]:
    """The type of an option such as 1,2,4."""
    return [count(part) for part in text.split(",")]


def levels(text: str) -> list[tuple[int, int]]:
    """The type of an option such as 16:32,64:128: listeners at a time, and replies in all."""
    pairs = (part.partition(":") for part in text.split(","))
    return [(count(many), count(replies)) for many, _, replies in pairs]


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "unknown")


def machine() -> str:
    """The machine, and how busy it was before the run."""
    busy = os.getloadavg()[0]
    return f"{cpu_name()}, {os.cpu_count()} cores, {busy:.1f} of them busy before"


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Median, 95th percentile and worst of some milliseconds."""
    p50, p95 = np.percentile(values, (50, 95))
    found = {"median": p50, "p95": p95, "worst": max(values)}
    return {f"{name}_{what}_ms": round(float(value), 1) for what, value in found.items()}


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
