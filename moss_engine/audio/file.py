"""Audio files of visitors -> samples: a bounded, suspicious reader over libsndfile.

A file is believed in steps: its first bytes must be those of a known container, its header must
describe a bearable recording, and only then are samples decoded, never more than were allowed.
libsndfile opens no file by itself, so a playlist or a link can make nothing be read. From what
phones and browsers record, which it does not know, a process of its own makes WAV (`unpack`).
"""

from __future__ import annotations

import importlib.util
import io
import math
import subprocess
import sys
from pathlib import Path

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
UNKNOWN_FRAMES = 1 << 62
"""Length field of a stream that was written without seeking back, as libsndfile gives it."""

UNPACK = Path(__file__).with_name("unpack.py")
UNPACK_S = 30.0
_FORMATS = "WAV, FLAC, OGG, MP3 or AIFF"
_CONTAINERS = tuple(b"RIFF RIFX RF64 riff fLaC OggS FORM caff .snd ID3 \xff".split())
"""What files begin with; an MP3 file without a tag begins with all bits of a frame's sync."""


def read_audio(source: Path | str | bytes, max_s: float = 60.0) -> tuple[np.ndarray, int]:
    """A local file, or a file's bytes -> (float32 [samples] mono, its own sample rate in Hz).

    The first channel that is not silent counts. A file that breaks off early gives what is there.
    Raises AudioFormatError for what is no audio file or no usable one, AudioLongError for more than
    `max_s` seconds or `MAX_DECODED_BYTES`, AudioEmptyError for silence and for less than 0.2 s,
    AudioNonfiniteError for NaN or infinite samples. Nothing is decoded before the header has been
    accepted, and nothing but the source is opened.
    """
    data = _bytes_of(source)
    try:
        if data[4:8] == b"ftyp":
            data = _unpacked(data, "mov", "MP4 and M4A", max_s)
        elif data.startswith(b"\x1aE\xdf\xa3"):
            data = _unpacked(data, "matroska", "WebM", max_s)
        elif not data.startswith(_CONTAINERS):
            raise AudioFormatError(f"This is no audio file that can be read here; send {_FORMATS}.")
        with _Forwards(_Bytes(data)) as file:
            _check_header(file, max_s)
            return _decode(file, max_s), file.samplerate
    except (
        soundfile.SoundFileError,
        subprocess.SubprocessError,
        OSError,
        ValueError,
        OverflowError,
    ):
        raise AudioFormatError(
            f"The audio file is damaged or of an unknown kind; send {_FORMATS}."
        ) from None


def _unpacked(data: bytes, container: str, kind: str, max_s: float) -> bytes:
    """As a WAV file, of one sample more where there are more than are allowed."""
    if importlib.util.find_spec("av") is None:
        raise AudioFormatError(
            f"{kind} files take one more package here: pip install av; or send {_FORMATS}, as "
            "from: ffmpeg -i FILE out.flac."
        )
    command = (sys.executable, str(UNPACK), container, str(max_s), str(MAX_DECODED_BYTES))
    done = subprocess.run(command, input=data, capture_output=True, timeout=UNPACK_S, check=True)
    return done.stdout


class _Forwards(soundfile.SoundFile):
    """Reads from the first sample to the last. soundfile would seek after every block, which fails
    at the end of a FLAC file that does not tell its length."""

    def seekable(self) -> bool:
        return False


class _Bytes(io.BytesIO):
    """Refuses to seek before the start, where a damaged header may send libsndfile."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def _bytes_of(source: Path | str | bytes) -> bytes:
    """The whole source, which is a bearable file."""
    if isinstance(source, bytes):
        data = source
    elif "://" in str(source):
        raise AudioFormatError("Links are not followed; send the audio file itself.")
    else:
        path = Path(source)
        try:
            if not path.is_file():
                raise AudioFormatError(f"{path.name} is no file; send an audio file.")
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError):
            raise AudioFormatError(
                f"{path.name} cannot be read; send the audio file again."
            ) from None
    if not data:
        raise AudioFormatError(f"The file is empty; send {_FORMATS}.")
    if len(data) > MAX_FILE_BYTES:
        raise AudioLongError(
            f"The file has more than {MAX_FILE_BYTES >> 20} MB; send a shorter recording."
        )
    return data


def _check_header(file: soundfile.SoundFile, max_s: float) -> None:
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


def _decode(file: soundfile.SoundFile, max_s: float) -> np.ndarray:
    limit = math.floor(min(max_s * file.samplerate, MAX_DECODED_BYTES / (4 * file.channels)))
    one_more = min(file.frames, limit) + 1  # of a longer recording, whatever its header says
    wave = file.read(one_more, dtype="float32", always_2d=True)  # [frames, channels]
    _check_length(len(wave), file.samplerate, file.channels, max_s)
    if not np.isfinite(wave).all():
        raise AudioNonfiniteError(
            "The recording holds samples that are no numbers (NaN or infinite); export it again."
        )
    peaks = np.maximum(wave.max(axis=0), -wave.min(axis=0))
    if peaks.max() < SILENCE_PEAK:
        raise AudioEmptyError("The recording is silent; check the microphone, or send another one.")
    # The first channel, as the authors of MOSS-Speech take it, if anything is on it.
    channel = int(np.argmax(peaks >= SILENCE_PEAK))
    samples, peak = np.ascontiguousarray(wave[:, channel]), peaks[channel]
    return samples / peak if peak > LOUD_PEAK else samples
