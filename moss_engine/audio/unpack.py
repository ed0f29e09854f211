"""A recording in MP4, M4A or WebM -> WAV of float32: a program of its own, which read_audio starts.

In these containers a few bytes may claim millions of samples, for whose places libav asks for
gigabytes before the first one is decoded. So it runs with little memory, little time and no way to
open anything else: what breaks here is this process.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
from collections.abc import Iterator
from typing import Any

MAX_MEMORY_BYTES = 512 * 1024 * 1024
MAX_CPU_S = 5
CODECS = ("aac", "alac", "flac", "mp3", "mp3float", "opus", "vorbis", "pcm_f32le", "pcm_s16le")
"""What browsers and phones record; no other decoder is opened, those of pictures among them."""


def main(container: str, max_s: str, max_bytes: str) -> None:
    """From stdin to stdout: of what lasts longer than `max_s`, or takes more than `max_bytes` of
    samples, one sample more. Raises for what is no such recording."""
    import av

    data = io.BytesIO(sys.stdin.buffer.read())
    _confine()
    only = {"codec_whitelist": ",".join(CODECS), "protocol_whitelist": "none"}
    with av.open(data, format=container, options=only) as file:
        stream = file.streams.audio[0]
        if stream.codec_context.name not in CODECS:
            raise ValueError(stream.codec_context.name)
        stream.codec_context.thread_count = 1
        resampler = av.AudioResampler(format="flt")
        left: int | None = None  # bytes, once the first sound says of how many channels
        for frame in _frames(file.demux(stream)):
            for packed in resampler.resample(frame):
                rate_hz, frame_bytes = packed.sample_rate, 4 * packed.layout.nb_channels
                if left is None:
                    limit = min(float(max_s) * rate_hz, int(max_bytes) / frame_bytes)
                    left = (int(limit) + 1) * frame_bytes
                    sys.stdout.buffer.write(_wav_header(rate_hz, frame_bytes))
                num_bytes = min(left, packed.samples * frame_bytes)
                sys.stdout.buffer.write(bytes(packed.planes[0])[:num_bytes])
                left -= num_bytes
            if left == 0:
                return


def _frames(packets: Iterator[Any]) -> Iterator[Any]:
    """What can be decoded, up to where the file breaks off."""
    with contextlib.suppress(OSError, ValueError):
        for packet in packets:
            with contextlib.suppress(OSError, ValueError):
                yield from packet.decode()


def _confine() -> None:
    """To little memory and time, behind everybody else, where the system has such limits."""
    with contextlib.suppress(ImportError):  # of Windows
        import resource

        os.nice(10)  # answers that are being spoken come first
        limits = {"DATA": MAX_MEMORY_BYTES, "CPU": MAX_CPU_S}
        for name, most in limits.items():
            limit = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))


def _wav_header(rate_hz: int, frame_bytes: int) -> bytes:
    """Of float32, whose length is unknown."""
    rates = (frame_bytes // 4, rate_hz, rate_hz * frame_bytes, frame_bytes, 32)
    unknown = 0xFFFF_FFFF
    return struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", unknown, b"WAVEfmt ", 16, 3, *rates, b"data", unknown
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
