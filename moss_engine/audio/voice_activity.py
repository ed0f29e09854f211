"""Speech probability of frames by Silero VAD, from the silero-vad package's own model file."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.audio.turn_taking import FRAME_SAMPLES, LIKELY, RATE_HZ, STILL_LIKELY

CONTEXT_SAMPLES = 64
"""The network also sees so much of the frame before."""
VOICED_FRAMES = 3  # in a row, of a syllable
BEFORE_S, AFTER_S = 0.2, 0.25  # kept around speech, where soft consonants are
MODEL = Path("data") / "silero_vad_16k_op15.onnx"
INSTALL = "pip install onnxruntime silero-vad"


class Detector:
    """The network; shared by every listener, from any thread."""

    def __init__(self, session: Any):
        self._session = session

    def open(self) -> Listener:
        return Listener(self)

    def run(self, samples: np.ndarray, state: np.ndarray) -> tuple[float, np.ndarray]:
        """float32 [CONTEXT_SAMPLES + FRAME_SAMPLES] and state -> probability and new state."""
        output, state = self._session.run(
            None, {"input": samples[None], "state": state, "sr": np.array(RATE_HZ, np.int64)}
        )
        return float(output[0, 0]), state


class Listener:
    """One microphone's state in the network."""

    def __init__(self, detector: Detector):
        self._detector = detector
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(CONTEXT_SAMPLES, np.float32)

    def probability(self, pcm: np.ndarray) -> float:
        """int16 [FRAME_SAMPLES] at 16 kHz, the next frame -> its speech probability."""
        assert pcm.shape == (FRAME_SAMPLES,)
        frame = np.concatenate([self._context, pcm.astype(np.float32) / 32768.0])
        self._context = frame[-CONTEXT_SAMPLES:]
        probability, self._state = self._detector.run(frame, self._state)
        return probability


def has_voice(detector: Detector, wave: np.ndarray, sample_rate_hz: int) -> bool:
    """Whether somebody speaks in float32 [samples]; stops looking at the first word."""
    step = sample_rate_hz / RATE_HZ
    at_rate = np.interp(np.arange(0, len(wave), step), np.arange(len(wave)), wave)
    run = 0
    for probability in _probabilities(detector, at_rate):
        run = run + 1 if probability >= LIKELY else 0
        if run >= VOICED_FRAMES:
            return True
    return False


def _probabilities(detector: Detector, wave: np.ndarray) -> Iterator[float]:
    """Of each whole frame of float [samples] at RATE_HZ."""
    pcm, listener = np.clip(np.rint(wave * 32767), -32768, 32767).astype(np.int16), detector.open()
    frames = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return map(listener.probability, frames)


def spoken_part(detector: Detector, wave: np.ndarray) -> slice:
    """The part of float32 [samples] at RATE_HZ from the first word to the last: in silence around
    them a recogniser finds words that nobody said. All of it where nobody speaks."""
    probabilities = enumerate(_probabilities(detector, wave))
    spoken = [at for at, probability in probabilities if probability >= STILL_LIKELY]
    if not spoken:
        return slice(0, len(wave))
    first = spoken[0] * FRAME_SAMPLES - round(BEFORE_S * RATE_HZ)
    last = (spoken[-1] + 1) * FRAME_SAMPLES + round(AFTER_S * RATE_HZ)
    return slice(max(0, first), last)


def load_detector() -> Detector:
    """The detector on one core, the same one at every call; raises MissingPackageError with the
    command that installs it."""
    found = importlib.util.find_spec("silero_vad")  # not imported: its file is all that is needed
    folders = found.submodule_search_locations if found is not None else None
    if not folders or importlib.util.find_spec("onnxruntime") is None:
        raise MissingPackageError(f"Hands-free talking needs two more packages; run: {INSTALL}")
    path = Path(next(iter(folders))) / MODEL
    if not path.is_file():
        raise MissingPackageError(
            f"The installed silero-vad has no {MODEL.name}; run: {INSTALL} --upgrade"
        )
    return _load(path)


@functools.cache
def _load(path: Path) -> Detector:
    return Detector(open_network(path))


def open_network(path: Path) -> Any:
    """The onnxruntime session of a network that runs on one core."""
    switch_off_telemetry()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
