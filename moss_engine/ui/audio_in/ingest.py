"""What visitors say: what their microphones heard, files, and their codes.

Files and what microphones heard go in; out come *recordings*, which the service understands from
the moment they are complete. A request names an *utterance*: one recording or several, joined.
Nothing is written to disk, and all of it is bounded: bytes, seconds, files and waiting work.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from moss_engine.api.errors import AudioEmptyError, BusyError, MissingPackageError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech
from moss_engine.api.service import SpeechService, hear
from moss_engine.audio.file import read_audio
from moss_engine.audio.hearing import Hear, TranscribePartial
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector
from moss_engine.ui.audio_in.recordings import Recording, Recordings

MAX_FILES, MAX_FILES_OF_VISITOR = 8, 3  # that are being sent and read


class AudioIngest:
    """`hear`, `transcribe_partial` and `by_words` are as for a `Hearing`. `detector` is None where
    hands-free talking is not installed. Used on one event loop."""

    def __init__(
        self,
        hear: Hear,
        detector: Detector | None,
        *,
        max_s: float,
        transcribe_partial: TranscribePartial | None = None,
        by_words: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.max_s = max_s
        self.by_words = by_words
        self.transcribe_partial = transcribe_partial
        self.detector = detector
        self.recordings = Recordings(hear, clock)
        self.judge = Judge()
        self._files: Counter[str] = Counter()  # by visitor

    @contextmanager
    def receiving(self, visitor: str) -> Iterator[None]:
        """While a file is being sent and read, which may take its time and much memory; raises
        BusyError where many are."""
        if self._files.total() >= MAX_FILES or self._files[visitor] >= MAX_FILES_OF_VISITOR:
            raise BusyError("Several files are being read already; send it again in a moment.")
        self._files[visitor] += 1
        try:
            yield
        finally:
            self._files[visitor] -= 1
            self._files += Counter()  # forget those who send nothing

    async def read_file(self, visitor: str, data: bytes) -> Recording:
        """Take a whole audio file; raises the errors of `read_audio`, or BusyError."""
        pcm, rate_hz, wave = await asyncio.to_thread(_read, data, self.max_s)
        return self.recordings.keep(pcm, rate_hz, wave, visitor=visitor)


def _read(data: bytes, max_s: float) -> tuple[np.ndarray, int, np.ndarray]:
    """An audio file as int16 [n], its sample rate, and float32 [n]."""
    wave, rate_hz = read_audio(data, max_s)
    return to_pcm16(np.clip(wave, -1.0, 1.0)), rate_hz, wave


def open_ingest(service: SpeechService, info: ServiceInfo) -> tuple[AudioIngest, str | None]:
    """It, and the sentence that says why turns have to be ended by hand, or None."""
    detector, no_hands_free = load_hands_free()
    ingest = AudioIngest(
        functools.partial(hear_voice, service, None if info.encodes else detector),
        detector,
        max_s=info.max_speech_s,
        transcribe_partial=service.transcribe_partial if info.recogniser is not None else None,
        by_words=not info.encodes,
    )
    return ingest, no_hands_free


async def hear_voice(
    service: SpeechService, detector: Detector | None, wave: np.ndarray, sample_rate_hz: int
) -> Speech:
    """As `hear`, but for noise and music, in which a recogniser finds words that nobody said:
    raises AudioEmptyError where the detector finds no voice."""
    if detector is not None and not await asyncio.to_thread(
        has_voice, detector, wave, sample_rate_hz
    ):
        raise AudioEmptyError("There is no voice in this recording; speak close to the microphone.")
    return await hear(service, wave, sample_rate_hz)


def load_hands_free() -> tuple[Detector | None, str | None]:
    """What finds the end of a turn, or the sentence that says why it has to be ended by hand."""
    try:
        return load_detector(), None
    except MissingPackageError as error:
        return None, str(error)
