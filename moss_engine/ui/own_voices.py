"""What happens when a visitor wants to hear their own voice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np

from moss_engine.api.errors import MossError, ParameterError, UnsupportedModeError
from moss_engine.api.service import ClonedVoice
from moss_engine.ui.handlers import Handlers

UNKNOWN = "The page was away for too long; load it again, then make the voice."


def take_sample(handlers: Handlers) -> Callable[..., Any]:
    """What answers the visitors of `handlers`."""

    async def take(consent: bool, utterance: str, key: str) -> tuple[Any, str]:
        """Make a voice of a recording whose speaker agreed, for the tab of that key, and choose it;
        answers with the voices to choose from, and a sentence for the visitor."""
        try:
            voice = await make_voice(handlers, consent is True, str(utterance), key)
        except MossError as error:
            raise gr.Error(str(error), print_exception=False) from None
        told = " ".join(part for part in ("Answers now come in your voice.", voice.advice) if part)
        choices = [*handlers.facts.voices, ("Your voice", voice.name)]
        return gr.Radio(choices=choices, value=voice.name, interactive=True), told

    return take


async def make_voice(handlers: Handlers, consent: bool, utterance: str, key: str) -> ClonedVoice:
    """The tab's voice from now on, made of what was said. Raises a MossError where none can be
    made, or where the tab is closed by then."""
    conversation = handlers.sessions.find(handlers.names.session(key))
    if conversation is None:
        raise ParameterError(UNKNOWN)
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
