"""Recordings that wait to be turned into codes."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from moss_engine.service.recordings import SpeechEncoder
from tests.service.service_support import PATIENCE_S


def test_a_recording_whose_visitor_left_is_dropped_at_once():
    """A small file holds a long silence, and whoever sent it may hang up and send another one."""
    begun, may = threading.Event(), threading.Event()

    def encode(wave: np.ndarray, rate_hz: int) -> list[int]:
        begun.set()
        assert may.wait(PATIENCE_S)
        return [len(wave)]

    encoder = SpeechEncoder(encode, on_fault=lambda: None)
    try:
        first = encoder.submit(np.zeros(1, np.float32), 24_000)
        assert begun.wait(PATIENCE_S)
        wave = np.zeros(9, np.float32)
        held = weakref.ref(wave)
        second, third = encoder.submit(wave, 24_000), encoder.submit(np.zeros(3, np.float32), 1)
        del wave
        assert second.cancel() and held() is None and encoder.num_pending == 2
        may.set()
        assert (first.result(PATIENCE_S), third.result(PATIENCE_S)) == ((1,), (3,))
    finally:
        may.set()
        encoder.close()
    assert encoder.num_pending == 0
