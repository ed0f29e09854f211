"""The machine that figures were measured on."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )
