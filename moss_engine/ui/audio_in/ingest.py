"""What visitors say: what their microphones heard, files, and their codes.

Files and what microphones heard go in; out come *recordings*, which the service understands from
the moment they are complete. A request names one as its *utterance*. Nothing is written to disk,
and all of it is bounded: bytes, seconds, files and waiting work.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import AudioEmptyError, BusyError, MissingPackageError, ParameterError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech
from moss_engine.api.service import SpeechService, Words, hear
from moss_engine.audio.file import read_audio
from moss_engine.audio.hearing import Hear, TranscribePartial
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import FRAME_S
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector

MAX_FILES, MAX_FILES_OF_VISITOR = 8, 3  # that are being sent and read
MAX_PENDING = 16  # recordings that wait to be understood
MAX_PENDING_OF_VISITOR = 8
KEPT_BYTES = 64 * 1024 * 1024
KEPT_S = 300.0
HEARD_LATER_S = FRAME_S
"""On the page an answer is heard 40 to 60 ms later than where a program gets it, which is the way
through a browser from the microphone and to the loudspeaker. So much earlier a turn may end."""


@dataclass(eq=False)
class Recording:
    """A finished recording of a `visitor`: int16 [n], to be heard again, and the task that
    understands it. It contains the recordings with the keys `before`, which it goes on with."""

    key: str
    pcm: np.ndarray
    rate_hz: int
    heard: asyncio.Task[tuple[Speech, tuple[float, float]]]
    visitor: str = ""
    before: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.before, self.key)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate_hz


@dataclass(frozen=True)
class Utterance:
    """A spoken message: the keys of its recordings, and the speech and int16 [n] of the last one,
    which contains the others. `listened_s`: when a recogniser began and ended listening."""

    keys: tuple[str, ...]
    speech: Speech
    pcm: np.ndarray
    rate_hz: int
    listened_s: tuple[float, float] | None = None


class AudioIngest:
    """`hear`, `transcribe_partial` and `by_words` are as for a `Hearing`. `detector` is None where
    hands-free talking is not installed, which `no_hands_free` says in a sentence. Used on one event
    loop."""

    def __init__(
        self,
        hear: Hear,
        detector: Detector | None,
        *,
        max_s: float,
        transcribe_partial: TranscribePartial | None = None,
        by_words: bool = False,
        no_hands_free: str | None = None,
    ):
        self.hear = hear
        self.max_s = max_s
        self.by_words = by_words
        self.no_hands_free = no_hands_free
        self.transcribe_partial = transcribe_partial
        self.detector = detector
        self.judge = Judge(later_s=HEARD_LATER_S)
        self._recordings: dict[str, Recording] = {}
        self._files: Counter[str] = Counter()  # that are being sent and read, by visitor

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
        return self.keep(pcm, rate_hz, wave, visitor=visitor)

    def keep(
        self,
        pcm: np.ndarray,
        rate_hz: int,
        wave: np.ndarray | None = None,
        *,
        known: Speech | None = None,
        visitor: str = "",
        before: tuple[str, ...] = (),
    ) -> Recording:
        """Keep a finished recording for KEPT_S and begin to understand it, unless that is `known`:
        `wave` if it is given, else its 16-bit samples. Raises BusyError while many wait."""
        waiting = [one.visitor for one in self._recordings.values() if not one.heard.done()]
        if len(waiting) >= MAX_PENDING or waiting.count(visitor) >= MAX_PENDING_OF_VISITOR:
            raise BusyError(
                "Many recordings are waiting to be understood; say it again in a moment."
            )
        wave = pcm / np.float32(32768) if wave is None else wave
        heard = asyncio.ensure_future(self._understood(wave, rate_hz, known, time.monotonic()))
        # An error is the business of the request that names the recording, if one ever does.
        heard.add_done_callback(lambda task: task.cancelled() or task.exception())
        key = secrets.token_urlsafe(16)
        recording = self._recordings[key] = Recording(key, pcm, rate_hz, heard, visitor, before)
        asyncio.get_running_loop().call_later(KEPT_S, self._recordings.pop, key, None)
        self._make_room()
        return recording

    async def said(self, key: str) -> Utterance:
        """The message of a recording, once it is understood. Raises ParameterError if it is not
        known (any more), and what those had to say who listened."""
        if (found := self._recordings.get(key)) is None:
            raise ParameterError("This recording is not known any more; record it again.")
        # Shielded: who stops waiting must not stop the work, which may be asked for again.
        speech, times_s = await asyncio.shield(found.heard)
        listened_s = None if speech.transcript is None else times_s
        return Utterance(found.keys, speech, found.pcm, found.rate_hz, listened_s)

    async def _understood(
        self, wave: np.ndarray, rate_hz: int, known: Speech | None, said_s: float
    ) -> tuple[Speech, tuple[float, float]]:
        """With when it was said, and understood."""
        speech = known or await self.hear(wave, rate_hz, None)
        return speech, (said_s, time.monotonic())

    def _make_room(self) -> None:
        """Drop, while recordings are too large together, the oldest of the visitor who has most."""
        sizes: Counter[str] = Counter()
        for recording in self._recordings.values():
            sizes[recording.visitor] += recording.pcm.nbytes
        while sizes.total() > KEPT_BYTES:
            visitor, _ = sizes.most_common(1)[0]
            oldest = next(one for one in self._recordings.values() if one.visitor == visitor)
            sizes[visitor] -= oldest.pcm.nbytes
            del self._recordings[oldest.key]


def _read(data: bytes, max_s: float) -> tuple[np.ndarray, int, np.ndarray]:
    """An audio file as int16 [n], its sample rate, and float32 [n]."""
    wave, rate_hz = read_audio(data, max_s)
    return to_pcm16(np.clip(wave, -1.0, 1.0)), rate_hz, wave


def open_ingest(service: SpeechService, info: ServiceInfo) -> AudioIngest:
    """For a service that hears."""
    detector, no_hands_free = None, None
    try:
        detector = load_detector()
    except MissingPackageError as error:
        no_hands_free = str(error)
    return AudioIngest(
        functools.partial(hear_voice, service, None if info.encodes else detector),
        detector,
        max_s=info.max_speech_s,
        transcribe_partial=service.transcribe_partial if info.recogniser is not None else None,
        by_words=not info.encodes,
        no_hands_free=no_hands_free,
    )


async def hear_voice(
    service: SpeechService,
    detector: Detector | None,
    wave: np.ndarray,
    sample_rate_hz: int,
    words: Words | None,
) -> Speech:
    """As `hear`, but for noise and music, in which a recogniser finds words that nobody said:
    raises AudioEmptyError where the detector finds no voice."""
    if detector is not None and not await asyncio.to_thread(
        has_voice, detector, wave, sample_rate_hz
    ):
        raise AudioEmptyError("There is no voice in this recording; speak close to the microphone.")
    return await hear(service, wave, sample_rate_hz, words)
