"""Progress of a long command: a bar on a terminal, elsewhere a line every tenth."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30


class Progress:
    """`total` in the unit of `advance`; `unit_name` and `per` say how it is shown (1e9, "GB")."""

    def __init__(
        self, total: float, unit_name: str, per: float = 1.0, stream: TextIO | None = None
    ):
        self._total, self._unit, self._per = max(total, 1e-9), unit_name, per
        self._stream = stream or sys.stderr
        self._done = 0.0
        self._shown = -1
        self._start_s = time.perf_counter()

    def advance(self, amount: float, what: str = "") -> None:
        """`amount` more is done; `what` names what comes now."""
        self._done += amount
        share = min(1.0, self._done / self._total)
        steps = 100 if self._stream.isatty() else 10
        if int(share * steps) == self._shown and not (what and self._stream.isatty()):
            return
        self._shown = int(share * steps)
        elapsed_s = time.perf_counter() - self._start_s
        line = (
            f"{share:5.0%}  {self._done / self._per:,.1f} of {self._total / self._per:,.1f} "
            f"{self._unit}  {elapsed_s:.0f} s  {what}"
        )
        if self._stream.isatty():
            filled = int(share * WIDTH)
            self._stream.write(f"\r\x1b[K[{'=' * filled}{' ' * (WIDTH - filled)}] {line}")
        else:
            self._stream.write(line.rstrip() + "\n")
        self._stream.flush()

    def end(self) -> float:
        """Leave the bar's line; returns the seconds that have gone by."""
        if self._stream.isatty():
            self._stream.write("\n")
        return time.perf_counter() - self._start_s
