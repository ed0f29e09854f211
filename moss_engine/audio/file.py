"""Audio files of visitors -> samples: a bounded, suspicious reader over libsndfile alone.

A file is believed in steps: its first bytes must be those of a known container, its header must
describe a bearable recording, and only then are samples decoded, block by block, never more than
were allowed. libsndfile opens no other file, so a playlist or a link can make nothing be read.
"""

from __future__ import annotations

import io
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioFormatError,
    AudioLongError,
    AudioNonfiniteError,
)

RATES_HZ = (8_000, 192_000)
MAX_CHANNELS = 8
MIN_S = 0.2
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_DECODED_BYTES = 64 * 1024 * 1024
"""Of all channels in float32: a minute of stereo at 48 kHz is 23 MB."""
SILENCE_PEAK = 1e-4
"""A muted microphone stays below it (the last bit of 16 is 3e-5)."""
LOUD_PEAK = 4.0
"""Above it the samples were scaled by something other than 1; they are brought back to a peak of 1.
"""
BLOCK_FRAMES = 1 << 16
UNKNOWN_FRAMES = 1 << 62
"""Length field of a stream that was written without seeking back, as libsndfile gives it."""

_FORMATS = "WAV, FLAC, OGG, MP3 or AIFF"
_CONTAINERS = tuple(b"RIFF RIFX RF64 riff fLaC OggS FORM caff .snd ID3".split())
_HEAD_BYTES = 4096


def read_audio(source: Path | str | bytes, max_s: float = 60.0) -> tuple[np.ndarray, int]:
    """A local file, or a file's bytes -> (float32 [samples] mono, its own sample rate in Hz).

    The first channel that is not silent counts. A file that breaks off early gives what is there.
    Raises AudioFormatError for what is no audio file or no usable one, AudioLongError for more than
    `max_s` seconds or `MAX_DECODED_BYTES`, AudioEmptyError for silence and for less than 0.2 s,
    AudioNonfiniteError for NaN or infinite samples. Nothing is decoded before the header has been
    accepted, and nothing but the source is opened.
    """
    head = _read_head(source)
    if head[4:8] == b"ftyp" or head.startswith(b"\x1aE\xdf\xa3"):
        kind = "MP4 and M4A" if head[4:8] == b"ftyp" else "WebM"
        raise AudioFormatError(
            f"{kind} files cannot be read here; send {_FORMATS}, as from: ffmpeg -i FILE out.flac."
        )
    if not head.startswith(_CONTAINERS) and not _is_mpeg(head):
        raise AudioFormatError(f"This is no audio file that can be read here; send {_FORMATS}.")
    opened: Any = _Bytes(source) if isinstance(source, bytes) else str(source)
    try:
        with _Forwards(opened) as file:
            _check_header(file, head, max_s)
            return _decode(file, max_s), file.samplerate
    except (soundfile.SoundFileError, OSError, ValueError, OverflowError):
        raise AudioFormatError(
            f"The audio file is damaged or of an unknown kind; send {_FORMATS}."
        ) from None


class _Forwards(soundfile.SoundFile):
    """Read from its first sample to its last. soundfile would seek after every block, which a FLAC
    file that does not tell its length refuses at its end."""

    def seekable(self) -> bool:
        return False


class _Bytes(io.BytesIO):
    """Seek that refuses places before the start, to which a damaged header may lead libsndfile."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def _read_head(source: Path | str | bytes) -> bytes:
    """The first bytes of the source, which is a bearable file."""
    if isinstance(source, bytes):
        head, num_bytes = source[:_HEAD_BYTES], len(source)
    else:
        if "://" in str(source):
            raise AudioFormatError("Links are not followed; send the audio file itself.")
        try:
            status = Path(source).stat()
            if not stat.S_ISREG(status.st_mode):
                raise AudioFormatError(f"{Path(source).name} is no file; send an audio file.")
            with Path(source).open("rb") as file:
                head, num_bytes = file.read(_HEAD_BYTES), status.st_size
        except (OSError, ValueError):
            raise AudioFormatError(
                f"{Path(source).name} cannot be read; send the audio file again."
            ) from None
    if num_bytes == 0:
        raise AudioFormatError(f"The file is empty; send {_FORMATS}.")
    if num_bytes > MAX_FILE_BYTES:
        raise AudioLongError(
            f"The file has {num_bytes / 2**20:,.0f} MB, the limit is {MAX_FILE_BYTES >> 20} MB; "
            "send a shorter recording."
        )
    return head


def _is_mpeg(head: bytes) -> bool:
    """Whether 4 bytes begin an MPEG audio frame: sync, layer, legal bit rate and sample rate."""
    return (
        len(head) >= 4
        and head[0] == 0xFF
        and head[1] & 0xE0 == 0xE0
        and head[1] & 0x06 != 0
        and head[2] & 0xF0 != 0xF0
        and head[2] & 0x0C != 0x0C
    )


def _check_header(file: soundfile.SoundFile, head: bytes, max_s: float) -> None:
    rate_hz, channels, frames = file.samplerate, file.channels, file.frames
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise AudioFormatError(
            f"The file claims a sample rate of {rate_hz:,} Hz; send one of {RATES_HZ[0]:,} to "
            f"{RATES_HZ[1]:,} Hz."
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioFormatError(
            f"The file claims {channels} channels; send one of 1 to {MAX_CHANNELS}."
        )
    if frames == 0 and _declared_data_bytes(head):
        raise AudioFormatError(f"The file ends after its header; send it again as {_FORMATS}.")
    if frames < UNKNOWN_FRAMES:
        _check_length(frames, rate_hz, channels, max_s)


def _check_length(frames: int, rate_hz: int, channels: int, max_s: float) -> None:
    if frames > max_s * rate_hz:
        raise AudioLongError(
            f"The recording lasts {frames / rate_hz:,.0f} s, the limit is {max_s:g} s; "
            "send a shorter one."
        )
    if frames * channels * 4 > MAX_DECODED_BYTES:
        raise AudioLongError(
            f"The recording takes {frames * channels * 4 >> 20:,} MB when decoded, the limit is "
            f"{MAX_DECODED_BYTES >> 20} MB; send it at a lower sample rate or in mono."
        )
    if frames < MIN_S * rate_hz:
        raise AudioEmptyError(f"The recording is shorter than {MIN_S} s; speak a sentence.")


def _declared_data_bytes(head: bytes) -> int:
    """What a WAV header says about the size of its samples; 0 for other containers."""
    start = head.find(b"data") if head.startswith((b"RIFF", b"RF64")) else -1
    return int.from_bytes(head[start + 4 : start + 8], "little") if start >= 0 else 0


def _decode(file: soundfile.SoundFile, max_s: float) -> np.ndarray:
    limit = math.floor(min(max_s * file.samplerate, MAX_DECODED_BYTES / (4 * file.channels)))
    blocks: list[np.ndarray] = []
    num_frames, peaks = 0, np.zeros(file.channels)
    while True:
        block = file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)  # [frames, channels]
        if len(block) == 0:
            break
        num_frames += len(block)
        if num_frames > limit:
            _check_length(num_frames, file.samplerate, file.channels, max_s)
        if not np.isfinite(block).all():
            raise AudioNonfiniteError(
                "The recording holds samples that are no numbers (NaN or infinite); "
                "export it again."
            )
        peaks = np.maximum(peaks, np.abs(block).max(axis=0))
        blocks.append(block)
        if len(block) < BLOCK_FRAMES:
            break
    _check_length(num_frames, file.samplerate, file.channels, max_s)
    if peaks.max() < SILENCE_PEAK:
        raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
    # The first channel, as the authors of MOSS-Speech take it, if anything is on it.
    channel = int(np.argmax(peaks >= SILENCE_PEAK))
    samples, peak = np.concatenate([block[:, channel] for block in blocks]), peaks[channel]
    return samples / np.float32(peak) if peak > LOUD_PEAK else samples
