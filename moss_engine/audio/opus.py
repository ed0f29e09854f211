"""Speech as Opus packets while it is being made, for listeners behind a slow link."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import soundfile

RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)  # that Opus knows
QUALITY = 0.94  # libsndfile's compression level: about 20 kbit/s
PAGE_MS = 20.0  # a packet's length: every one leaves as soon as it is full
SET_PAGE_LATENCY_MS = 0x1302  # libsndfile's SFC_SET_OGG_PAGE_LATENCY_MS
PAGE_HEAD_BYTES = 27


class OpusStream:
    """int16 PCM -> Opus packets of 20 ms. libsndfile writes Ogg; here its pages are taken apart
    again.

    `head` is the stream's OpusHead, which decoders need; it is there once something was pushed.
    """

    def __init__(self, rate_hz: int):
        assert rate_hz in RATES_HZ
        self.head = b""
        self._ogg = _Pipe()
        self._rest = b""  # of a page that has not come whole
        self._packet = b""  # that goes on in the next page
        self._skip = 2  # packets of the stream's head: OpusHead and OpusTags
        pipe: Any = self._ogg  # soundfile takes whatever writes, seeks and tells
        self._file = soundfile.SoundFile(
            pipe, "w", rate_hz, 1, format="OGG", subtype="OPUS", compression_level=QUALITY
        )
        set_page_latency(self._file, PAGE_MS)

    def push(self, pcm: np.ndarray) -> list[bytes]:
        """int16 [n] -> the packets that are full now."""
        self._file.write(pcm)
        return self._packets()

    def end(self) -> list[bytes]:
        """The last packets, padded with silence."""
        self._file.close()
        return self._packets()

    def close(self) -> None:
        """Nothing more comes, and nothing of what is left is wanted."""
        self._file.close()

    def _packets(self) -> list[bytes]:
        pages = self._rest + self._ogg.take()
        packets = []
        while len(pages) >= PAGE_HEAD_BYTES:
            sizes = pages[PAGE_HEAD_BYTES : PAGE_HEAD_BYTES + pages[26]]
            at = PAGE_HEAD_BYTES + len(sizes)
            if len(sizes) < pages[26] or len(pages) < at + sum(sizes):
                break
            for size in sizes:
                self._packet += pages[at : at + size]
                at += size
                if size < 255:
                    packets.append(self._packet)
                    self._packet = b""
            pages = pages[at:]
        self._rest = pages
        heads, packets = packets[: self._skip], packets[self._skip :]
        self._skip -= len(heads)
        self.head = self.head or (heads[0] if heads else b"")
        return packets


def set_page_latency(file: soundfile.SoundFile, ms: float) -> None:
    """Make Ogg pages of so many milliseconds; by default the first comes after a second. soundfile
    does not offer this setting."""
    native: Any = soundfile
    value = native._ffi.new("double*", ms)
    native._snd.sf_command(file._file, SET_PAGE_LATENCY_MS, value, 8)


class _Pipe(io.BytesIO):
    """Takes what libsndfile writes, which never goes back in Ogg."""

    def take(self) -> bytes:
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken
