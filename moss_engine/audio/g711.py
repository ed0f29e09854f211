"""G.711, the telephone's sound at 8 kHz: mu-law or A-law, 8 bits a sample."""

from __future__ import annotations

from typing import Literal

import numpy as np
import soxr

RATE_HZ = 8000
Law = Literal["mu", "a"]
BIAS, CLIP = 0x84, 32_635


def _mu_of(pcm: np.ndarray) -> np.ndarray:
    size = np.minimum(np.abs(pcm >> 2) << 2, CLIP) + BIAS
    exponent = np.floor(np.log2(size)).astype(np.int32) - 7
    code = exponent << 4 | (size >> (exponent + 3)) & 0x0F | np.where(pcm < 0, 0x80, 0)
    return ~code & 0xFF


def _of_mu(codes: np.ndarray) -> np.ndarray:
    codes = ~codes & 0xFF
    size = (((codes & 0x0F) << 3) + BIAS << (codes >> 4 & 7)) - BIAS
    return np.where(codes & 0x80, -size, size)


def _a_of(pcm: np.ndarray) -> np.ndarray:
    size = np.where(pcm < 0, -pcm - 1, pcm)
    exponent = np.maximum(np.floor(np.log2(np.maximum(size, 1))).astype(np.int32) - 7, 0)
    code = exponent << 4 | (size >> np.maximum(exponent + 3, 4)) & 0x0F
    return code ^ np.where(pcm < 0, 0x55, 0xD5)


def _of_a(codes: np.ndarray) -> np.ndarray:
    codes = codes ^ 0x55
    exponent, size = codes >> 4 & 7, (codes & 0x0F) << 4
    size = np.where(exponent, (size + 0x108) << np.maximum(exponent - 1, 0), size + 8)
    return np.where(codes & 0x80, size, -size)


_ALL_PCM, _ALL_CODES = np.arange(-32_768, 32_768), np.arange(256)
_CODES = {"mu": _mu_of(_ALL_PCM).astype(np.uint8), "a": _a_of(_ALL_PCM).astype(np.uint8)}
_PCM = {"mu": _of_mu(_ALL_CODES).astype(np.int16), "a": _of_a(_ALL_CODES).astype(np.int16)}


def encode(pcm: np.ndarray, law: Law) -> bytes:
    """int16 [n] -> n bytes."""
    return _CODES[law][pcm.astype(np.int32) + 32_768].tobytes()


def decode(data: bytes, law: Law) -> np.ndarray:
    """n bytes -> int16 [n]."""
    return _PCM[law][np.frombuffer(data, np.uint8)]


class Decoder:
    """Bytes -> int16 at `rate_hz`, block by block, some 20 ms late."""

    def __init__(self, law: Law, rate_hz: int):
        self._law: Law = law
        self._stream = _resampler(RATE_HZ, rate_hz)

    def push(self, data: bytes) -> np.ndarray:
        return self._stream.resample_chunk(decode(data, self._law))

    def flush(self) -> np.ndarray:
        """The last samples; it begins anew then."""
        return _last(self._stream)


class Encoder:
    """int16 at `rate_hz` -> bytes, block by block, some 20 ms late."""

    def __init__(self, law: Law, rate_hz: int):
        self._law: Law = law
        self._stream = _resampler(rate_hz, RATE_HZ)

    def push(self, pcm: np.ndarray) -> bytes:
        return encode(self._stream.resample_chunk(pcm), self._law)

    def flush(self) -> bytes:
        """The last bytes; it begins anew then."""
        return encode(_last(self._stream), self._law)


def _resampler(from_hz: int, to_hz: int) -> soxr.ResampleStream:
    """Of the quality that is late the least; 8 bits a sample hold no more."""
    return soxr.ResampleStream(from_hz, to_hz, 1, dtype="int16", quality="LQ")


def _last(stream: soxr.ResampleStream) -> np.ndarray:
    last = stream.resample_chunk(np.empty(0, np.int16), last=True)
    stream.clear()
    return last
