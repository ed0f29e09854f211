"""Samples on their way out: 16-bit PCM, its WAV files, and the peaks of a waveform drawing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moss_engine.api.errors import ConfigError


def to_pcm16(samples: np.ndarray) -> np.ndarray:
    """float [n] in [-1, 1] -> int16 [n]; anything louder is clipped. Refuses NaN and infinity by
    ValueError."""
    if not np.isfinite(samples).all():
        raise ValueError("samples hold NaN or infinite values")
    return np.clip(np.round(samples * 32767.0), -32768, 32767).astype(np.int16)


def write_wav(file: str | Path | BinaryIO, pcm: np.ndarray, sample_rate_hz: int) -> None:
    """Write int16 [n] as a mono PCM WAV file, to a path or an open binary file."""
    import soundfile

    assert pcm.dtype == np.int16, "a WAV file takes the samples that were played"
    soundfile.write(file, pcm, sample_rate_hz, subtype="PCM_16", format="WAV")


def check_name(path: Path) -> None:
    """Raise ConfigError for a name that promises another format than WAV."""
    if path.suffix.lower() in (".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac"):
        raise ConfigError(f"{path} would hold a WAV file; let its name end in .wav.")


def save_wav(path: Path, pcm: np.ndarray, sample_rate_hz: int) -> None:
    """`write_wav` for a place that a person named; raises ConfigError where it takes no file."""
    check_name(path)
    buffer = io.BytesIO()
    write_wav(buffer, pcm, sample_rate_hz)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); name another file."
        ) from None


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """What `write_wav` wrote: int16 [n] and the sample rate in Hz."""
    import soundfile

    return soundfile.read(path, dtype="int16")


def waveform_peaks(pcm: np.ndarray, num_bins: int) -> np.ndarray:
    """int16 [n] -> lowest and highest value float32 [num_bins, 2] of equal stretches."""
    if len(pcm) == 0:
        return np.zeros((num_bins, 2), dtype=np.float32)
    edges = np.linspace(0, len(pcm), num_bins, endpoint=False).astype(np.int64)
    low, high = np.minimum.reduceat(pcm, edges), np.maximum.reduceat(pcm, edges)
    return (np.stack([low, high], axis=1) / 32768.0).astype(np.float32)
