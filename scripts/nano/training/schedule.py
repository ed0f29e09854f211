"""What the training commands share: a clock that survives a restart, the learning rate, saving."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch


class Clock:
    """Seconds of training spent so far, over all calls; one call ends at `call_s`, the training at
    `total_s`.

    The call's own limit counts from process start, the training's from the first finished step, so
    that compilation does not eat the schedule. Without `total_s` the training is what the call
    leaves after that first step.
    """

    def __init__(self, total_s: float | None, call_s: float | None, spent_s: float) -> None:
        assert total_s is not None or call_s is not None, "nothing says when to end"
        self.total_s = math.inf if total_s is None else total_s
        self.call_ends_at = math.inf if call_s is None else time.monotonic() + call_s
        self.spent_s = spent_s
        self._last: float | None = None

    def tick(self) -> None:
        """Count the time since the last tick; the first one only starts the clock."""
        now = time.monotonic()
        if self._last is None and self.total_s == math.inf:
            self.total_s = self.spent_s + max(1.0, self.call_ends_at - now)
        self.spent_s += 0.0 if self._last is None else now - self._last
        self._last = now

    @property
    def progress(self) -> float:
        return min(1.0, self.spent_s / self.total_s)

    @property
    def running(self) -> bool:
        return self.spent_s < self.total_s and time.monotonic() < self.call_ends_at


def one_cycle(progress: float, peak: float, *, warm_up: float = 0.05, floor: float = 0.01) -> float:
    """Learning rate: a linear rise over `warm_up` of the run, then a cosine down to `floor` of the
    peak."""
    if progress < warm_up:
        return peak * max(floor, progress / warm_up)
    fall = (progress - warm_up) / (1 - warm_up)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, fall))) / 2)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """torch.save in one move, so that a killed process leaves the last whole state."""
    temporary = path.with_suffix(path.suffix + ".part")
    torch.save(state, temporary)
    temporary.replace(path)


def load_state(path: Path, device: torch.device) -> dict[str, Any] | None:
    return torch.load(path, map_location=device) if path.exists() else None


def pick_device(name: str) -> torch.device:
    return torch.device(
        "cuda"
        if name == "auto" and torch.cuda.is_available()
        else "cpu"
        if name == "auto"
        else name
    )
