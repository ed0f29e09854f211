"""Sound of programs: recordings in; samples out as the bytes of a sound file, as they are made."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import soundfile

from moss_engine.api.errors import AudioFormatError
from moss_engine.api.request import Speech
from moss_engine.api.service import hear
from moss_engine.audio.file import read_audio
from moss_engine.audio.opus import set_page_latency
from moss_engine.audio.pcm import to_pcm16
from moss_engine.endpoints.bodies import PIECE_BYTES, beside_if_large
from moss_engine.endpoints.server import Server

Format = Literal["wav", "pcm", "flac", "mp3", "opus"]
MEDIA_TYPES: dict[str, str] = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "wav": {"format": "WAV", "subtype": "PCM_16"},
    "pcm": {"format": "RAW", "subtype": "PCM_16", "endian": "LITTLE"},
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    # At a constant rate, since players infer the length of a stream from it.
    "mp3": {
        "format": "MP3",
        "subtype": "MPEG_LAYER_III",
        "bitrate_mode": "CONSTANT",
        "compression_level": 0.3,
    },
    "opus": {"format": "OGG", "subtype": "OPUS"},
}
"""Of libsndfile."""
UNKNOWN_SIZE = 0xFFFF_FFFF
PAGE_MS = 100.0  # of Opus, in which a first sound leaves


@dataclass
class Plain:
    """16-bit little-endian PCM, after a header or none."""

    header: bytes = b""

    async def push(self, samples: np.ndarray) -> bytes:
        """float32 [n] in [-1, 1] -> the next bytes."""
        header, self.header = self.header, b""
        return header + pcm_bytes(samples)

    async def flush(self) -> bytes:
        """The last bytes."""
        header, self.header = self.header, b""
        return header


class Packed:
    """FLAC, MP3 or Opus by libsndfile, in a thread, as Opus takes 7 ms for 200 ms of sound.

    The length, which libsndfile would write into the header at the end, stays unknown.
    """

    def __init__(self, sample_rate_hz: int, **settings: Any):
        self._sink = _Sink()
        file: Any = self._sink
        self._file = soundfile.SoundFile(file, "w", sample_rate_hz, 1, **settings)
        if settings["format"] == "OGG":
            set_page_latency(self._file, PAGE_MS)

    async def push(self, samples: np.ndarray) -> bytes:
        """float32 [n] in [-1, 1] -> the next bytes, which may be none."""
        await asyncio.to_thread(self._file.write, to_pcm16(samples))
        return self._sink.take()

    async def flush(self) -> bytes:
        """The last bytes."""
        await asyncio.to_thread(self._file.close)
        return self._sink.take()


def open_encoder(name: Format, sample_rate_hz: int) -> Plain | Packed:
    """The encoder of a format, mono."""
    if name in ("wav", "pcm"):
        return Plain(wav_header(sample_rate_hz) if name == "wav" else b"")
    return Packed(sample_rate_hz, **SETTINGS[name])


def pcm_bytes(samples: np.ndarray) -> bytes:
    """float32 [n] in [-1, 1] -> 16-bit little-endian PCM."""
    return to_pcm16(samples).astype("<i2").tobytes()


def wav_header(sample_rate_hz: int) -> bytes:
    """For 16-bit mono of unknown length, as in a stream."""
    rates = (sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    return struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF", UNKNOWN_SIZE, b"WAVEfmt ", 16, 1, 1, *rates, b"data", UNKNOWN_SIZE,
    )  # fmt: skip


async def whole_file(samples: np.ndarray, name: Format, sample_rate_hz: int) -> bytes:
    """float32 [n] in [-1, 1] -> a complete file, whose header knows its length."""
    file = io.BytesIO()
    pcm = to_pcm16(samples)
    await asyncio.to_thread(soundfile.write, file, pcm, sample_rate_hz, **SETTINGS[name])
    return file.getvalue()


class _Sink(io.RawIOBase):
    """Collects what is appended, and drops what is written over earlier places."""

    def __init__(self) -> None:
        self._new = bytearray()
        self._place = self._size = 0

    def take(self) -> bytes:
        new = bytes(self._new)
        self._new.clear()
        return new

    def write(self, data: Any, /) -> int:
        data = bytes(data)
        if self._place == self._size:
            self._new += data
            self._size += len(data)
        self._place += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place


def from_base64(data: str) -> bytes:
    """Ignores line breaks, as `base64 FILE` writes them. Works piece by piece, as Python's other
    threads wait meanwhile. Raises AudioFormatError for anything else, and for a data URL."""
    if data.startswith("data:"):
        raise AudioFormatError("The audio is a data URL; send only what follows its comma.")
    clean = "".join("".join(piece.split()) for piece in _pieces(data))
    try:
        if clean.find("=", 0, -2) >= 0:
            raise ValueError
        return b"".join(base64.b64decode(piece, validate=True) for piece in _pieces(clean))
    except ValueError:  # also binascii.Error
        raise AudioFormatError("The audio is no base64; send its bytes in base64.") from None


def _pieces(data: str) -> Iterator[str]:
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


async def heard(server: Server, data: str) -> Speech:
    """base64 of a sound file as speech for a request; raises a MossError."""
    file = await beside_if_large(from_base64, data)
    wave, rate_hz = await asyncio.to_thread(read_audio, file, server.info.max_speech_s)
    return await hear(server.service, wave, rate_hz)
