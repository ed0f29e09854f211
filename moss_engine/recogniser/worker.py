"""One recogniser for all visitors: threads of its own, with a bounded queue.

Whole recordings go first. Partial ones, of sentences that are still being spoken, are only taken
while a thread is free, so that many speakers cannot delay the end of anybody's sentence. Recordings
whose words need their times come last, and let all others pass between two words.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from moss_engine.api.errors import BusyError, EngineFaultError, MossError, ShuttingDownError
from moss_engine.api.transcript import Transcript
from moss_engine.recogniser.base import RATE_HZ, Recogniser

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

MAX_PENDING = 16  # whole recordings that are heard or wait for it
NUM_THREADS = min(4, max(1, (os.cpu_count() or 1) // 4))
"""A quarter of the cores; four keep up with sixteen speakers."""
FAULT = "The recording could not be understood; record it again."


WHOLE, PARTIAL, TIMED = range(3)
"""Kinds of recordings, the most urgent first."""


@dataclass(eq=False)
class _Work:
    wave: np.ndarray
    kind: int
    future: Future[Transcript] = field(default_factory=Future)


class RecogniserWorker:
    """Used from any thread; a future that is cancelled before its turn costs nothing."""

    def __init__(self, recogniser: Recogniser, num_threads: int = NUM_THREADS):
        self.name = recogniser.name
        self.language = recogniser.language
        self._recogniser = recogniser
        self._changed = threading.Condition()
        self._waiting: list[_Work] = []
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
            kind = TIMED if timed else WHOLE
            self._waiting = [work for work in self._waiting if not work.future.cancelled()]
            if sum(work.kind == kind for work in self._waiting) >= MAX_PENDING:
                raise BusyError(
                    "Many recordings are waiting to be understood; say it again in a moment."
                )
            return self._put(wave, kind)

    def partial(self, wave: np.ndarray) -> Future[Transcript] | None:
        """What was said so far of a recording that goes on; None while no thread is free."""
        with self._changed:
            self._require_open()
            num_urgent = sum(work.kind != TIMED for work in self._waiting)
            if self._num_heard + num_urgent >= len(self._threads):
                return None
            return self._put(wave, PARTIAL)

    def _put(self, wave: np.ndarray, kind: int) -> Future[Transcript]:
        """Under the lock."""
        work = _Work(wave, kind)
        self._waiting.append(work)
        self._changed.notify()
        return work.future

    def close(self) -> None:
        """Drop what waits; returns when the recordings that are being heard are done."""
        with self._changed:
            self._closing = True
            waiting, self._waiting = self._waiting, []
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
            self._changed.wait_for(lambda: self._closing or self._waiting)
            return None if self._closing else self._take(TIMED)

    def _take(self, least: int) -> _Work | None:
        """The most urgent work, if it is at `least` of that kind. Under the lock."""
        work = min(self._waiting, key=attrgetter("kind"), default=None)
        if work is None or work.kind > least:
            return None
        self._waiting.remove(work)
        self._num_heard += work.kind != TIMED
        return work

    def _let_pass(self) -> None:
        """Do more urgent work in the middle of a recording whose words get their times; raises
        ShuttingDownError."""
        while True:
            with self._changed:
                self._require_open()
                if (work := self._take(PARTIAL)) is None:
                    return
            self._do(work)

    def _do(self, work: _Work) -> None:
        if work.future.set_running_or_notify_cancel():
            self._hear(work)
        with self._changed:
            self._num_heard -= work.kind != TIMED

    def _hear(self, work: _Work) -> None:
        try:
            between = self._let_pass if work.kind == TIMED else None
            heard = self._recogniser.transcribe(work.wave, between)
        except MossError as error:
            work.future.set_exception(error)
        except Exception:
            log.exception("the recogniser failed")
            work.future.set_exception(EngineFaultError(FAULT))
        else:
            seconds = len(work.wave) / RATE_HZ
            found = Transcript(heard.text, self.name, seconds, heard.sure, heard.words)
            work.future.set_result(found)
