"""Speech in: recordings become codes in a thread of their own, a bounded number at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from moss_engine.api.errors import BusyError, EngineFaultError, MossError

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

MAX_PENDING = 16  # recordings that are encoded or wait for it

Encode = Callable[["np.ndarray", int], list[int]]


class SpeechEncoder:
    """`encode` is the codec's; `on_fault` is told when the GPU itself failed."""

    def __init__(self, encode: Encode, *, on_fault: Callable[[], None]):
        self._encode = encode
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._num_pending = 0
        self._thread = ThreadPoolExecutor(1, "encoder")

    @property
    def num_pending(self) -> int:
        return self._num_pending

    def submit(self, wave: np.ndarray, sample_rate_hz: int) -> Future[tuple[int, ...]]:
        """Codes of float32 [samples] mono; raises BusyError while too many recordings wait.

        The future raises a MossError: what the codec had to say, or EngineFaultError.
        """
        with self._lock:
            if self._num_pending >= MAX_PENDING:
                raise BusyError(
                    "Many recordings are waiting to be understood; say it again in a moment."
                )
            self._num_pending += 1
        waiting = [wave]
        future = self._thread.submit(self._run, waiting, sample_rate_hz)

        def over(_: Future[tuple[int, ...]]) -> None:
            waiting.clear()  # the thread comes to what was cancelled when it is done with others
            with self._lock:
                self._num_pending -= 1

        future.add_done_callback(over)
        return future

    def close(self) -> None:
        """Drop what waits; returns when the recording that is being encoded is done."""
        self._thread.shutdown(cancel_futures=True)

    def _run(self, waiting: list[np.ndarray], sample_rate_hz: int) -> tuple[int, ...]:
        try:
            return tuple(self._encode(waiting.pop(), sample_rate_hz))
        except MossError:
            raise
        except torch.AcceleratorError:
            log.exception("the GPU failed in the codec's encoder")
            self._on_fault()
        except Exception:
            log.exception("the codec's encoder failed")
        raise EngineFaultError("The recording could not be turned into codes; record it again.")
