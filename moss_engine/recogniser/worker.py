"""One recogniser for all visitors: threads of its own, with a bounded queue.

Whole recordings go before partial ones, of what is still being said, which are only taken while
a thread is free, so that many talkers cannot delay the end of anybody's sentence. Recordings of
which the times of words are wanted, too, come last, and let all others pass between two words.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moss_engine.api.errors import BusyError, EngineFaultError, MossError, ShuttingDownError
from moss_engine.api.transcript import Transcript
from moss_engine.recogniser.base import RATE_HZ, Recogniser

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

MAX_PENDING = 16  # whole recordings that are heard or wait for it
NUM_THREADS = min(4, max(1, (os.cpu_count() or 1) // 4))
"""A core in four; four keep up with sixteen talkers."""
FAULT = "The recording could not be understood; record it again."


@dataclass(eq=False)
class _Work:
    wave: np.ndarray
    timed: bool = False
    future: Future[Transcript] = field(default_factory=Future)


class RecogniserWorker:
    """Used from any thread; a future that is cancelled before its turn costs nothing."""

    def __init__(self, recogniser: Recogniser, num_threads: int = NUM_THREADS):
        self.name = recogniser.name
        self.language = recogniser.language
        self._recogniser = recogniser
        self._changed = threading.Condition()
        self._whole: deque[_Work] = deque()
        self._timed: deque[_Work] = deque()
        self._partial: deque[_Work] = deque()
        self._num_heard = 0  # that are being heard, but for those with times
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"recogniser {at}", daemon=True)
            for at in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def transcribe(self, wave: np.ndarray, *, timed: bool = False) -> Future[Transcript]:
        """A whole recording, float32 [samples] at RATE_HZ; `timed`: with the times of its words.

        Raises BusyError while too many wait, ShuttingDownError after `close`; the future raises
        EngineFaultError where the recogniser failed.
        """
        with self._changed:
            self._require_open()
            queue = self._timed if timed else self._whole
            for given_up in [work for work in queue if work.future.cancelled()]:
                queue.remove(given_up)
            if len(queue) >= MAX_PENDING:
                raise BusyError(
                    "Many recordings are waiting to be understood; say it again in a moment."
                )
            work = _Work(wave, timed)
            queue.append(work)
            self._changed.notify()
        return work.future

    def partial(self, wave: np.ndarray) -> Future[Transcript] | None:
        """What was said so far of a recording that goes on; None while no thread is free."""
        with self._changed:
            self._require_open()
            num_urgent = self._num_heard + len(self._whole) + len(self._partial)
            if num_urgent >= len(self._threads):
                return None
            work = _Work(wave)
            self._partial.append(work)
            self._changed.notify()
        return work.future

    def close(self) -> None:
        """Drop what waits; returns when the recordings that are being heard are done."""
        with self._changed:
            self._closing = True
            queues = self._whole, self._timed, self._partial
            waiting = [work for queue in queues for work in queue]
            for queue in queues:
                queue.clear()
            self._changed.notify_all()
        for work in waiting:
            work.future.cancel()
        for thread in self._threads:
            thread.join()
        self._recogniser.close()

    def _require_open(self) -> None:
        if self._closing:
            raise ShuttingDownError("The service is shutting down; try again when it is back.")

    def _run(self) -> None:
        while (work := self._next()) is not None:
            self._do(work)

    def _next(self) -> _Work | None:
        """Wait for work; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._whole or self._partial or self._timed
            )
            return None if self._closing else self._urgent() or self._timed.popleft()

    def _urgent(self) -> _Work | None:
        """What is to be done before any word gets its time. Under the lock."""
        queue = self._whole or self._partial
        if not queue:
            return None
        self._num_heard += 1
        return queue.popleft()

    def _let_pass(self) -> None:
        """Do what is urgent, in the midst of a recording whose words get their times; raises
        ShuttingDownError."""
        while True:
            with self._changed:
                self._require_open()
                if (work := self._urgent()) is None:
                    return
            self._do(work)

    def _do(self, work: _Work) -> None:
        if work.future.set_running_or_notify_cancel():
            self._hear(work)
        if not work.timed:
            with self._changed:
                self._num_heard -= 1

    def _hear(self, work: _Work) -> None:
        try:
            if work.timed:
                heard = self._recogniser.transcribe(work.wave, self._let_pass)
            else:
                heard = self._recogniser.transcribe(work.wave)
        except MossError as error:
            work.future.set_exception(error)
        except Exception:
            log.exception("the recogniser failed")
            work.future.set_exception(EngineFaultError(FAULT))
        else:
            seconds = len(work.wave) / RATE_HZ
            found = Transcript(heard.text, self.name, seconds, heard.sure, heard.words)
            work.future.set_result(found)
