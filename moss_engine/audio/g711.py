"""G.711, the telephone's sound at 8 kHz: mu-law or A-law, 8 bits a sample."""

from __future__ import annotations

import io
from typing import Literal, get_args

import numpy as np
import soundfile
import soxr

RATE_HZ = 8000
Law = Literal["ULAW", "ALAW"]
"""By libsndfile's names."""


def _tables(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Codes of all int16 in ascending order, and the int16 of all codes."""
    codes, all_pcm = io.BytesIO(), np.arange(-32_768, 32_768).astype(np.int16)
    soundfile.write(codes, all_pcm, RATE_HZ, law, format="RAW")
    pcm, _ = soundfile.read(
        io.BytesIO(bytes(range(256))), dtype="int16",
        samplerate=RATE_HZ, channels=1, format="RAW", subtype=law,
    )  # fmt: skip
    return np.frombuffer(codes.getvalue(), np.uint8), pcm


_TABLES = {law: _tables(law) for law in get_args(Law)}


def encode(pcm: np.ndarray, law: Law) -> bytes:
    """int16 [n] -> n bytes."""
    return _TABLES[law][0][pcm.astype(np.int32) + 32_768].tobytes()


def decode(data: bytes, law: Law) -> np.ndarray:
    """n bytes -> int16 [n]."""
    return _TABLES[law][1][np.frombuffer(data, np.uint8)]


class Decoder:
    """Bytes -> int16 at `rate_hz`, block by block, some 20 ms late; after the `last` one it starts
    anew."""

    def __init__(self, law: Law, rate_hz: int):
        self._law: Law = law
        self._stream = _resampler(RATE_HZ, rate_hz)

    def push(self, data: bytes, *, last: bool = False) -> np.ndarray:
        return _resampled(self._stream, decode(data, self._law), last)


class Encoder:
    """int16 at `rate_hz` -> bytes, block by block, some 20 ms late."""

    def __init__(self, law: Law, rate_hz: int):
        self._law: Law = law
        self._stream = _resampler(rate_hz, RATE_HZ)

    def push(self, pcm: np.ndarray, *, last: bool = False) -> bytes:
        return encode(_resampled(self._stream, pcm, last), self._law)


def _resampler(from_hz: int, to_hz: int) -> soxr.ResampleStream:
    """Of the quality with the least delay; 8 bits a sample hold no better."""
    return soxr.ResampleStream(from_hz, to_hz, 1, dtype="int16", quality="LQ")


def _resampled(stream: soxr.ResampleStream, pcm: np.ndarray, last: bool) -> np.ndarray:
    made = stream.resample_chunk(pcm, last=last)
    if last:
        stream.clear()
    return made
