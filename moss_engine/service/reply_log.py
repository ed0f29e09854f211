"""One line a reply for the operator: when it ended and why, without text or sound."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

MAX_LINES_PER_S = 20.0
BURST = 100.0


class ReplyLog:
    """JSON lines at level INFO of this module's logger, a bounded number a second; the next line
    counts those that were left out. Called by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._allowance, self._counted_s = BURST, clock()
        self._left_out = 0

    def write(self, values: dict[str, Any]) -> None:
        """Write what is known of a reply; values that are None are left out."""
        now_s = self._clock()
        earned = (now_s - self._counted_s) * MAX_LINES_PER_S
        self._allowance, self._counted_s = min(BURST, self._allowance + earned), now_s
        if self._allowance < 1.0:
            self._left_out += 1
            return
        self._allowance -= 1.0
        if self._left_out:
            values, self._left_out = {**values, "left_out": self._left_out}, 0
        known = {name: value for name, value in values.items() if value is not None}
        log.info(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **known}))
