"""Speech in: recordings become codes, words and voices, a bounded number at a time."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from moss_engine.api.errors import AudioEmptyError, BusyError, EngineFaultError, MossError
from moss_engine.api.service import ClonedVoice
from moss_engine.api.transcript import Transcript, Word
from moss_engine.audio.voice_activity import Detector, spoken_part
from moss_engine.codec.base import VoiceCloner
from moss_engine.codec.resample import resample
from moss_engine.recogniser.base import RATE_HZ
from moss_engine.recogniser.worker import RecogniserWorker

log = logging.getLogger(__name__)

MAX_VOICES = 16
MAX_PENDING = 16  # recordings that are encoded or wait for it

Encode = Callable[[np.ndarray, int], list[int]]


class SpeechEncoder:
    """Encodes recordings in a thread of its own. `encode` is the codec's; `on_fault` is called when
    the GPU itself failed; `num_pending` recordings wait or are being encoded."""

    def __init__(self, encode: Encode, *, on_fault: Callable[[], None]):
        self._encode = encode
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self.num_pending = 0
        self._thread = ThreadPoolExecutor(1, "encoder")

    def submit(self, wave: np.ndarray, sample_rate_hz: int) -> Future[tuple[int, ...]]:
        """Codes of float32 [samples] mono; raises BusyError while too many recordings wait.

        The future raises a MossError: what the codec had to say, or EngineFaultError.
        """
        with self._lock:
            if self.num_pending >= MAX_PENDING:
                raise BusyError(
                    "Many recordings are waiting to be understood; say it again in a moment."
                )
            self.num_pending += 1
        waiting = [wave]
        future = self._thread.submit(self._run, waiting, sample_rate_hz)

        def over(_: Future[tuple[int, ...]]) -> None:
            waiting.clear()  # the thread comes to what was cancelled when it is done with others
            with self._lock:
                self.num_pending -= 1

        future.add_done_callback(over)
        return future

    def close(self) -> None:
        """Drop what waits; returns when the recording that is being encoded is done."""
        self._thread.shutdown(cancel_futures=True)

    def _run(self, waiting: list[np.ndarray], sample_rate_hz: int) -> tuple[int, ...]:
        try:
            return tuple(self._encode(waiting.pop(), sample_rate_hz))
        except MossError:
            raise
        except torch.AcceleratorError:
            log.exception("the GPU failed in the codec's encoder")
            self._on_fault()
        except Exception:
            log.exception("the codec's encoder failed")
        raise EngineFaultError("The recording could not be turned into codes; record it again.")


class Transcriber:
    """Transcribes recordings, for any number of event loops. With a `detector`, silence around the
    words is cut off first."""

    def __init__(self, worker: RecogniserWorker, detector: Detector | None = None):
        self.name = worker.name
        self._worker = worker
        self._detector = detector

    async def transcribe(
        self, wave: np.ndarray, sample_rate_hz: int, timed: bool = False
    ) -> Transcript:
        """As `SpeechService.transcribe`."""
        wave = await _at_rate(wave, sample_rate_hz)
        seconds, begin_s = len(wave) / RATE_HZ, 0.0
        if self._detector is not None:
            spoken = await asyncio.to_thread(spoken_part, self._detector, wave)
            wave, begin_s = wave[spoken], spoken.start / RATE_HZ
        # Who stops waiting gives the work up, if it has not begun.
        found = await asyncio.wrap_future(self._worker.transcribe(wave, timed=timed))
        words = tuple(
            Word(word.text, begin_s + word.start_s, begin_s + word.end_s) for word in found.words
        )
        found = replace(found, seconds=seconds, words=words)
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

    async def transcribe_partial(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript | None:
        """As `SpeechService.transcribe_partial`."""
        future = self._worker.partial(await _at_rate(wave, sample_rate_hz))
        return None if future is None else await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits; blocks until the recording that is being heard is done."""
        self._worker.close()


async def _at_rate(wave: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    if sample_rate_hz == RATE_HZ:
        return wave
    return await asyncio.to_thread(_resample, wave, sample_rate_hz)


def _resample(wave: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    samples = torch.from_numpy(np.ascontiguousarray(wave, np.float32))
    return resample(samples, sample_rate_hz, RATE_HZ).numpy()


class ClonedVoices:
    """Makes voices of recordings. Used by one thread at a time."""

    def __init__(self, cloner: VoiceCloner):
        self._cloner = cloner
        self._names: dict[str, str] = {}

    def add(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        """Make a voice; it replaces the session's one. Blocks.

        Raises AudioEmptyError and AudioLongError for its length, BusyError while many sessions have
        a voice.
        """
        if session_id not in self._names and len(self._names) >= MAX_VOICES:
            raise BusyError(
                "Many visitors speak with their own voice here; choose another voice or come back "
                "later."
            )
        name = f"own {secrets.token_hex(8)}"
        advice = self._cloner.add(name, wave, sample_rate_hz, codes)
        self.remove(session_id)
        self._names[session_id] = name
        return ClonedVoice(name, advice)

    def remove(self, session_id: str) -> None:
        """Forget the session's voice, if it has one."""
        if name := self._names.pop(session_id, None):
            self._cloner.remove(name)
