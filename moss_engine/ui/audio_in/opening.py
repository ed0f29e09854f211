"""What takes the recordings of visitors, made for a service."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from moss_engine.api.errors import AudioEmptyError, MissingPackageError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech
from moss_engine.api.service import SpeechService, hear
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector
from moss_engine.ui.audio_in.ingest import AudioIngest

if TYPE_CHECKING:
    import numpy as np


def open_ingest(service: SpeechService, info: ServiceInfo) -> tuple[AudioIngest, str | None]:
    """It, and the sentence that says why turns have to be ended by hand, or None."""
    detector, no_hands_free = load_hands_free()
    ingest = AudioIngest(
        partial(hear_voice, service, None if info.encodes else detector),
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
