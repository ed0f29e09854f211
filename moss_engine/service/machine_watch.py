"""The machine's limits, measured beside the service while nothing is asked of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from moss_engine.api.info import MachineLimits

LOOK_S = 0.2  # between two looks whether the service rests
GAP_S = 0.005  # between two steps, so that a question that comes meanwhile hardly waits


class MachineWatch:
    """`steps` gives None until it gives the limits; it goes on only while `rests` says so."""

    def __init__(
        self, steps: Callable[[], Iterator[MachineLimits | None]], rests: Callable[[], bool]
    ):
        self.limits: MachineLimits | None = None
        self._steps = steps
        self._rests = rests
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="machine", daemon=True)

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what was not measured stays unknown."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _measure(self) -> None:
        for limits in self._steps():
            self.limits = limits
            if self._closing.wait(GAP_S):
                return
            while not self._rests():
                if self._closing.wait(LOOK_S):
                    return
