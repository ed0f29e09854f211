"""What takes the recordings of visitors, made for a service."""

from __future__ import annotations

from functools import partial

from moss_engine.api.errors import MissingPackageError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.service import SpeechService, hear
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.ui.audio_in.ingest import AudioIngest


def open_ingest(service: SpeechService, info: ServiceInfo) -> tuple[AudioIngest, str | None]:
    """It, and the sentence that says why turns have to be ended by hand, or None."""
    detector, no_hands_free = load_hands_free()
    ingest = AudioIngest(
        partial(hear, service),
        detector,
        max_s=info.max_speech_s,
        glimpse=service.glimpse if info.recogniser is not None else None,
        by_words=not info.encodes,
    )
    return ingest, no_hands_free


def load_hands_free() -> tuple[Detector | None, str | None]:
    """What finds the end of a turn, or the sentence that says why it has to be ended by hand."""
    try:
        return load_detector(), None
    except MissingPackageError as error:
        return None, str(error)
