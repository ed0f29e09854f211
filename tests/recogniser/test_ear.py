"""The recogniser's thread: whole recordings first, glimpses only in spare time, all of it
bounded."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from moss_engine.api.errors import BusyError, EngineFaultError, ShuttingDownError
from moss_engine.recogniser import ear as module
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.ear import Ear

PATIENCE_S = 30.0


class Gated:
    """Hears how many seconds a recording has, when the gate is open."""

    name, language = "Gated", "English"

    def __init__(self) -> None:
        self.gate, self.begun, self.closed = threading.Event(), threading.Event(), False
        self.heard: list[int] = []

    def transcribe(self, wave: np.ndarray) -> Heard:
        self.begun.set()
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
def ear(gated):
    ear = Ear(gated)
    yield ear
    gated.gate.set()
    ear.close()
    assert gated.closed and not ear._thread.is_alive()


def seconds(count: int) -> np.ndarray:
    return np.zeros(count * RATE_HZ, np.float32)


def test_a_recording_becomes_a_transcript(ear, gated):
    gated.gate.set()
    found = ear.transcribe(seconds(2)).result(PATIENCE_S)
    assert (found.text, found.recogniser, found.seconds) == ("2 seconds.", "Gated", 2.0)
    assert found.took_s > 0


def test_a_glimpse_is_given_up_rather_than_waited_for(ear, gated):
    first = ear.transcribe(seconds(1))
    assert gated.begun.wait(PATIENCE_S)
    assert ear.glimpse(seconds(1)) is None
    gated.gate.set()
    assert first.result(PATIENCE_S).text == "1 seconds."


def test_whole_recordings_go_before_a_glimpse(ear, gated):
    glimpse = ear.glimpse(seconds(1))
    assert glimpse is not None and gated.begun.wait(PATIENCE_S)
    whole = [ear.transcribe(seconds(count)) for count in (2, 3)]
    gated.gate.set()
    assert [work.result(PATIENCE_S).seconds for work in (*whole, glimpse)] == [2, 3, 1]
    assert gated.heard == [1, 2, 3]


def test_what_waits_is_bounded_and_what_was_given_up_costs_nothing(ear, gated):
    first = ear.transcribe(seconds(1))
    assert gated.begun.wait(PATIENCE_S)
    waiting = [ear.transcribe(seconds(2)) for _ in range(module.MAX_PENDING)]
    with pytest.raises(BusyError, match="in a moment"):
        ear.transcribe(seconds(2))
    for work in waiting:
        assert work.cancel()
    another = ear.transcribe(seconds(3))
    assert ear.num_pending == 1
    gated.gate.set()
    first.result(PATIENCE_S)
    assert another.result(PATIENCE_S).seconds == 3 and gated.heard == [1, 3]


def test_a_failing_recogniser_is_a_sentence_and_the_next_recording_is_heard(ear, gated):
    gated.gate.set()
    with pytest.raises(EngineFaultError, match="record it again"):
        ear.transcribe(seconds(0)).result(PATIENCE_S)
    assert ear.transcribe(seconds(1)).result(PATIENCE_S).text == "1 seconds."


def test_after_its_end_nothing_is_heard(gated):
    ear = Ear(gated)
    first = ear.transcribe(seconds(1))
    assert gated.begun.wait(PATIENCE_S)
    waiting = ear.transcribe(seconds(2))
    closing = threading.Thread(target=ear.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    gated.gate.set()
    closing.join(PATIENCE_S)
    assert first.result(0).seconds == 1 and waiting.cancelled()
    with pytest.raises(ShuttingDownError):
        ear.transcribe(seconds(1))
