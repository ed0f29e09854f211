"""A visitor's own voice, made of a recording whose speaker agreed."""

from __future__ import annotations

import numpy as np

from moss_engine.api.errors import ParameterError, UnsupportedModeError
from moss_engine.api.service import SpeechService
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.facts import PageInfo


async def make_voice(
    service: SpeechService,
    facts: PageInfo,
    ingest: AudioIngest | None,
    consent: bool,
    utterance: str,
    conversation: Conversation,
) -> str:
    """Make a voice and give it to the conversation; answers with a sentence for the visitor.
    Raises a MossError where none can be made."""
    if not consent:
        raise ParameterError("Tick the box first: a voice is used only if its owner agrees.")
    if not facts.clones_voices or ingest is None:
        raise UnsupportedModeError(
            "This page speaks with installed voices only; choose one of them."
        )
    said = await ingest.said(utterance)
    voice = await service.add_voice(
        conversation.session_id, said.pcm / np.float32(32768), said.rate_hz, said.codes
    )
    conversation.voice = voice.name
    return " ".join(part for part in ("Answers now come in your voice.", voice.advice) if part)
