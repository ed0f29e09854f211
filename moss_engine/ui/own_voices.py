"""What happens when a visitor wants to hear their own voice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np

from moss_engine.api.errors import MossError, ParameterError, UnsupportedModeError
from moss_engine.api.service import ClonedVoice, SpeechService
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.handlers import Handlers

UNKNOWN = "The page was away for too long; load it again, then make the voice."


def take_sample(handlers: Handlers) -> Callable[..., Any]:
    """What answers the visitors of `handlers`."""

    async def take(consent: bool, utterance: str, key: str) -> tuple[Any, str]:
        """Make a voice of a recording whose speaker agreed, for the tab of that key, and choose it;
        answers with the voices to choose from, and a sentence for the visitor."""
        facts = handlers.facts
        conversation = handlers.sessions.find(key)
        if conversation is None:
            raise gr.Error(UNKNOWN, print_exception=False)
        try:
            ingest = handlers.ingest if facts.clones_voices else None
            voice = await make_voice(
                handlers.service, ingest, consent, utterance, conversation.session_id
            )
        except MossError as error:
            raise gr.Error(str(error), print_exception=False) from None
        if not await handlers.sessions.take_voice(conversation, voice.name):
            raise gr.Error(UNKNOWN, print_exception=False)
        told = " ".join(part for part in ("Answers now come in your voice.", voice.advice) if part)
        choices = [*facts.voices, ("Your voice", voice.name)]
        chosen = gr.Radio(choices=choices, value=voice.name, interactive=True)
        return chosen, told

    return take


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
