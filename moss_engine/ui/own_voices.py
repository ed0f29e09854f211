"""What happens when a visitor wants to hear their own voice."""

from __future__ import annotations

import numpy as np

from moss_engine.api.errors import ParameterError, UnsupportedModeError
from moss_engine.api.service import ClonedVoice
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.handlers import Handlers

UNKNOWN = "The page was away for too long; load it again, then make the voice."


async def make_voice(
    handlers: Handlers, conversation: Conversation, consent: bool, utterance: str
) -> ClonedVoice:
    """The conversation's voice from now on, made of what was said. Raises a MossError where none
    can be made, or where the tab is closed by then."""
    if not consent:
        raise ParameterError("Tick the box first: a voice is used only if its owner agrees.")
    if handlers.ingest is None or not handlers.facts.clones_voices:
        raise UnsupportedModeError(
            "This page speaks with installed voices only; choose one of them."
        )
    said = await handlers.ingest.said(utterance)
    session_id, wave = conversation.session_id, said.pcm / np.float32(32768)
    voice = await handlers.service.add_voice(session_id, wave, said.rate_hz, said.speech.codes)
    if not await handlers.sessions.take_voice(conversation, session_id, voice.name):
        raise ParameterError(UNKNOWN)
    return voice
