"""Clips of a conversation: its sound as WAV files, as the page's Transcript plays them."""

from __future__ import annotations

import io
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.audio.pcm import read_wav, waveform_peaks, write_wav

NUM_BARS = 48
NAME = "moss-speech.wav"


@dataclass(frozen=True)
class Clip:
    """A file, its length, and `bars` of 0 to 100: how loud it is, its loudest stretch being 100."""

    path: Path
    seconds: float
    bars: tuple[int, ...]

    def message(self) -> dict[str, Any]:
        """For the browser and for programs; the file as Gradio tells of files."""
        return {
            "file": {"path": str(self.path), "meta": {"_type": "gradio.FileData"}},
            "seconds": self.seconds,
            "bars": list(self.bars),
        }


def write_clip(folder: Path, pcm: np.ndarray, rate_hz: int) -> Clip:
    """int16 [n], n > 0, as a new file of an unguessable name. Raises OSError, and leaves nothing,
    where there is no room for it.

    The name is in lower case, as Gradio compares paths: `pathlib` interns each of their parts, and
    for parts that no path of ours holds Python's table of interned names would grow.
    """
    path = folder / secrets.token_hex(16) / NAME
    wav = io.BytesIO()
    write_wav(wav, pcm, rate_hz)
    try:
        path.parent.mkdir(parents=True)
        path.write_bytes(wav.getbuffer())
    except OSError:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    peaks = np.abs(waveform_peaks(pcm, NUM_BARS)).max(axis=1)
    bars = np.rint(100 * peaks / max(peaks.max(), 1e-3)).astype(int)
    return Clip(path, len(pcm) / rate_hz, tuple(bars.tolist()))


def cut_clip(clip: Clip, num_samples: int) -> Clip | None:
    """Its first samples as a new file, since browsers keep what they know under the old name; None
    if none are left. Raises OSError as `write_clip` does."""
    if num_samples == 0 or not clip.path.exists():
        return None
    pcm, rate_hz = read_wav(clip.path)
    return write_clip(clip.path.parent.parent, pcm[:num_samples], rate_hz)
