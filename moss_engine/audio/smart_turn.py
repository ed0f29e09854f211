"""Whether a turn is over by how it sounds: Smart Turn v3.2 of the package pipecat-ai."""

from __future__ import annotations

import functools
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.audio.voice_activity import open_network

INSTALL = "pip install --no-deps pipecat-ai==1.14.0"
WITHOUT_MELODY = f"Ends of turns are judged by words alone, which waits longer; better: {INSTALL}"
MODEL = Path("audio", "turn", "smart_turn", "data", "smart-turn-v3.2-cpu.onnx")
MELODY_S = 8
"""Seconds at the end of a turn that it hears."""
FFT, HOP, MELS = 400, 160, 80
WINDOWS = 8
"""Windows that are multiplied at a time: for larger products numpy uses threads on every core,
which stay busy long afterwards and slow down everybody else."""


class Melody:
    """Smart Turn; used from any thread."""

    def __init__(self, session: Any):
        self._session = session

    def log_odds(self, pcm: np.ndarray) -> float:
        """int16 [n] at RATE_HZ, with the first silence behind the words."""
        (found,) = self._session.run(None, {"input_features": features(pcm)[None]})
        sure = min(max(float(np.ravel(found)[0]), 1e-4), 1 - 1e-4)
        return math.log(sure / (1 - sure))


def find_melody() -> Path | None:
    """The model's file; None where a package that it needs is not installed."""
    found = importlib.util.find_spec("pipecat")  # not imported: its file is all that is needed
    folders = found.submodule_search_locations if found is not None else None
    path = Path(next(iter(folders))) / MODEL if folders else None
    if path is None or not path.is_file() or importlib.util.find_spec("onnxruntime") is None:
        return None
    return path


@functools.cache
def load_melody() -> Melody | None:
    """None where `find_melody` finds none."""
    path = find_melody()
    return Melody(open_network(path)) if path else None


def _filters() -> np.ndarray:
    """float64 [MELS, FFT / 2 + 1]: Slaney's triangles, of equal areas."""
    top = 15.0 + 27.0 * math.log(8.0) / math.log(6.4)
    mels = np.linspace(0.0, top, MELS + 2)
    hertz = np.where(
        mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp((mels - 15.0) * math.log(6.4) / 27.0)
    )
    slopes = hertz[:, None] - np.linspace(0.0, RATE_HZ / 2, FFT // 2 + 1)
    widths = np.diff(hertz)[:, None]
    sides = np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:])
    return np.maximum(0.0, sides) * 2.0 / (hertz[2:] - hertz[:-2])[:, None]


_FILTERS = _filters()
_WINDOW = np.hanning(FFT + 1)[:-1]


def features(pcm: np.ndarray) -> np.ndarray:
    """int16 [n] at RATE_HZ -> float32 [MELS, 800] of the last MELODY_S, as Whisper takes them."""
    size = MELODY_S * RATE_HZ
    wave = pcm[-size:].astype(np.float32) / 32768.0
    wave = np.pad(wave, (size - len(wave), 0))
    wave = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    padded = np.pad(wave.astype(np.float64), FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[:-1:HOP][: size // HOP]
    power = np.abs(np.fft.rfft(windows * _WINDOW, axis=-1)) ** 2
    mels = power.reshape(-1, WINDOWS, FFT // 2 + 1) @ _FILTERS.T  # [100, WINDOWS, MELS]
    levels = np.log10(np.maximum(1e-10, mels.reshape(-1, MELS).T))
    return ((np.maximum(levels, levels.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
