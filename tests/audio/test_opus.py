"""Speech as Opus packets: whole, at once, and small."""

from __future__ import annotations

import numpy as np
import pytest

from moss_engine.audio.opus import RATES_HZ, OpusStream
from tests.ui.page_support import signal

RATE_HZ = 24_000
PACKET_S = 0.02


def pcm(seconds: float) -> np.ndarray:
    return np.rint(signal(seconds) * 32767).astype(np.int16)


def test_packets_are_small_and_leave_while_the_speech_goes_on():
    stream, sound, packets = OpusStream(RATE_HZ), pcm(2.0), []
    for end in range(2400, len(sound) + 1, 2400):
        packets += stream.push(sound[end - 2400 : end])
        assert len(packets) * PACKET_S >= end / RATE_HZ - 0.08, "it is kept back"
    packets += stream.end()
    assert len(sound) / RATE_HZ <= len(packets) * PACKET_S < len(sound) / RATE_HZ + 0.1
    assert stream.head.startswith(b"OpusHead")
    assert sum(map(len, packets)) * 8 / 2.0 < 32_000


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_every_rate_that_opus_knows(rate_hz):
    stream = OpusStream(rate_hz)
    packets = stream.push(np.zeros(rate_hz, np.int16)) + stream.end()
    assert len(packets) >= 50


def test_a_stream_may_be_left_in_the_middle():
    stream = OpusStream(RATE_HZ)
    stream.push(pcm(0.1))
    stream.close()
    with pytest.raises(RuntimeError):
        stream.push(pcm(0.1))
