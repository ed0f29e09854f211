"""Speech in as text: recordings of any sample rate on their way to the recogniser."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from moss_engine.api.errors import AudioEmptyError
from moss_engine.api.transcript import Transcript
from moss_engine.audio.voice_activity import Detector, spoken_part
from moss_engine.codec.resample import resample
from moss_engine.recogniser.base import RATE_HZ
from moss_engine.recogniser.worker import RecogniserWorker

if TYPE_CHECKING:
    from concurrent.futures import Future


class Hearing:
    """Used on any number of event loops. With a `detector` the silence around a recording's words
    is not listened to."""

    def __init__(self, worker: RecogniserWorker, detector: Detector | None = None):
        self._worker = worker
        self._detector = detector

    @property
    def name(self) -> str:
        return self._worker.name

    async def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
        """As `SpeechService.transcribe`."""
        wave = await _at_rate(wave, sample_rate_hz)
        seconds = len(wave) / RATE_HZ
        if self._detector is not None:
            wave = await asyncio.to_thread(spoken_part, self._detector, wave)
        found = replace(await _result(self._worker.transcribe(wave)), seconds=seconds)
        if not found.text:
            raise AudioEmptyError(
                f"{self.name} heard no words; speak a sentence in {self._worker.language}."
            )
        if not found.sure:
            raise AudioEmptyError(
                f"{self.name} could not make that out, as it understands {self._worker.language} "
                f"only; say it in {self._worker.language}, close to the microphone."
            )
        return found

    async def glimpse(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        """As `SpeechService.glimpse`."""
        future = self._worker.partial(await _at_rate(wave, sample_rate_hz))
        return None if future is None else await _result(future)

    def close(self) -> None:
        """Drop what waits; blocks until the recording that is being heard is done."""
        self._worker.close()


async def _result(future: Future[Transcript]) -> Transcript:
    """Who stops waiting gives the work up, if it has not begun."""
    return await asyncio.wrap_future(future)


async def _at_rate(wave: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    if sample_rate_hz == RATE_HZ:
        return wave
    return await asyncio.to_thread(_resample, wave, sample_rate_hz)


def _resample(wave: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    samples = torch.from_numpy(np.ascontiguousarray(wave, np.float32))
    return resample(samples, sample_rate_hz, RATE_HZ).numpy()
