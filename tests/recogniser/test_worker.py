"""The recogniser's threads: whole recordings first, partial ones only in spare time, all of it
bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np
import pytest

from moss_engine.api.errors import BusyError, EngineFaultError, ShuttingDownError
from moss_engine.recogniser import worker as module
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.worker import RecogniserWorker

PATIENCE_S = 30.0


class Gated:
    """Hears how many seconds a recording has, when the gate is open."""

    name, language = "Gated", "English"

    def __init__(self) -> None:
        self.gate, self.begun, self.closed = threading.Event(), threading.Event(), False
        self.heard: list[int] = []

    def transcribe(self, wave: np.ndarray, between: Callable[[], None] | None = None) -> Heard:
        self.begun.set()
        if between is not None:
            assert self.gate.wait(PATIENCE_S)
            between()
        assert self.gate.wait(PATIENCE_S)
        self.heard.append(len(wave) // RATE_HZ)
        if not len(wave):
            raise RuntimeError("nothing")
        return Heard(f"{len(wave) // RATE_HZ} seconds.", len(wave) < 9 * RATE_HZ)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gated():
    return Gated()


@pytest.fixture
def worker(gated):
    worker = RecogniserWorker(gated, num_threads=1)
    yield worker
    gated.gate.set()
    worker.close()
    assert gated.closed


def seconds(count: int) -> np.ndarray:
    return np.zeros(count * RATE_HZ, np.float32)


def test_what_waits_is_bounded_and_what_was_given_up_costs_nothing(worker, gated):
    first = worker.transcribe(seconds(1))
    assert gated.begun.wait(PATIENCE_S)
    waiting = [worker.transcribe(seconds(2)) for _ in range(module.MAX_PENDING)]
    with pytest.raises(BusyError, match="in a moment"):
        worker.transcribe(seconds(2))
    for work in waiting:
        assert work.cancel()
    another = worker.transcribe(seconds(3))
    gated.gate.set()
    first.result(PATIENCE_S)
    assert another.result(PATIENCE_S).seconds == 3 and gated.heard == [1, 3]


def test_a_failing_recogniser_is_a_sentence_and_the_next_recording_is_heard(worker, gated):
    gated.gate.set()
    with pytest.raises(EngineFaultError, match="record it again"):
        worker.transcribe(seconds(0)).result(PATIENCE_S)
    assert worker.transcribe(seconds(1)).result(PATIENCE_S).text == "1 seconds."


def test_after_its_end_nothing_is_heard(gated):
    worker = RecogniserWorker(gated, num_threads=1)
    first = worker.transcribe(seconds(1))
    assert gated.begun.wait(PATIENCE_S)
    waiting = worker.transcribe(seconds(2))
    closing = threading.Thread(target=worker.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    gated.gate.set()
    closing.join(PATIENCE_S)
    assert first.result(0).seconds == 1 and waiting.cancelled()
    with pytest.raises(ShuttingDownError):
        worker.transcribe(seconds(1))


def test_who_wants_the_times_of_words_lets_others_pass(worker, gated):
    timed = [worker.transcribe(seconds(n), timed=True) for n in (5, 6)]
    assert gated.begun.wait(PATIENCE_S)
    partial, whole = worker.partial(seconds(1)), worker.transcribe(seconds(2))
    assert partial is not None
    gated.gate.set()
    for future in (*timed, partial, whole):
        future.result(PATIENCE_S)
    assert gated.heard == [2, 1, 5, 6]


def test_as_many_are_heard_at_once_as_there_are_threads():
    together = threading.Barrier(2)

    class Together(Gated):
        def transcribe(self, wave, between=None) -> Heard:
            together.wait(PATIENCE_S)
            self.begun.set()
            return super().transcribe(wave)

    gated = Together()
    worker = RecogniserWorker(gated, num_threads=2)
    whole, partial = worker.transcribe(seconds(1)), worker.partial(seconds(2))
    assert partial is not None and gated.begun.wait(PATIENCE_S)
    assert worker.partial(seconds(3)) is None
    gated.gate.set()
    assert [work.result(PATIENCE_S).seconds for work in (whole, partial)] == [1, 2]
    worker.close()
    assert gated.closed
