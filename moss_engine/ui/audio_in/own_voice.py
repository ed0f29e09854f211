"""A visitor's own voice, made of a recording whose speaker agreed."""

from __future__ import annotations

import numpy as np

from moss_engine.api.errors import ParameterError, UnsupportedModeError
from moss_engine.api.service import ClonedVoice, SpeechService
from moss_engine.ui.audio_in.ingest import AudioIngest


async def make_voice(
    service: SpeechService,
    ingest: AudioIngest | None,
    consent: bool,
    utterance: str,
    session_id: str,
) -> ClonedVoice:
    """The session's voice from now on, made of what was said. Raises a MossError where none can be
    made; `ingest` is None where no voices are made at all."""
    if not consent:
        raise ParameterError("Tick the box first: a voice is used only if its owner agrees.")
    if ingest is None:
        raise UnsupportedModeError(
            "This page speaks with installed voices only; choose one of them."
        )
    said = await ingest.said(utterance)
    return await service.add_voice(
        session_id, said.pcm / np.float32(32768), said.rate_hz, said.codes
    )
