"""What happens when a visitor opens a replay file: it is looked at, and spoken again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import gradio as gr

from moss_engine.api.errors import MossError
from moss_engine.api.request import Message, Request, Text
from moss_engine.ui import form
from moss_engine.ui.asking.replay import read
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.stream import TICKS_S, ReplyClock, Shared, SoundWay, Told, messages, relay
from moss_engine.ui.view import View


class Again(Shared):
    """Of the replies that `handlers` answer for."""

    def __init__(self, handlers: Handlers):
        self._handlers = handlers

    def consider(self, file: str) -> str:
        """Why a replay file would be refused, as one sentence, or "": asked first, as a refusal
        must not silence what is heard."""
        try:
            read(file, self._handlers.facts)
        except MossError as error:
            return str(error)
        return ""

    async def replay(
        self,
        heard: str,
        run: str,
        sound: str,
        file: str,
        conversation: Conversation | None,
        request: gr.Request,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """The messages of a reply that a file holds. It is no part of the conversation; `heard`
        as for `Handlers.stop`, of the reply before."""
        conversation = self._handlers.visits.of(request, conversation)
        await asyncio.to_thread(conversation.cut, heard)
        view, clock = View(run=form.run_name(run), seed=0), ReplyClock()
        sound = "opus" if sound == "opus" else "pcm"
        way = SoundWay(sound)

        def stream(view: View) -> Told:
            return self._stream(file, view, clock, conversation, request, TICKS_S[sound])

        async with aclosing(relay(view, clock, way, conversation, stream)) as relayed:
            async for told in relayed:
                yield told

    async def _stream(
        self,
        file: str,
        view: View,
        clock: ReplyClock,
        conversation: Conversation,
        request: gr.Request,
        tick_s: float,
    ) -> AsyncGenerator[dict[str, Any], None]:
        handlers = self._handlers
        recording = read(file, handlers.facts)
        await handlers.service.cancel_session(conversation.session_id)
        facts = handlers.facts
        reply = await handlers.service.submit(
            Request(
                secrets.token_urlsafe(16),
                conversation.session_id,
                (Message("user", Text("")),),
                facts.default_mode.name,
                facts.sampling,
                recording.voice,
                recorded=recording.recorded,
                visitor=conversation.visitor,
            )
        )
        lease = handlers.lease(request)
        told = messages(reply, view, clock, handlers.pool.counts, lease, tick_s)
        async with aclosing(told) as stream:
            async for message, _ in stream:
                yield message | {
                    "seed": recording.seed,
                    "recipe": recording.recipe,
                    "pieces": handlers.pieces(message),
                }
