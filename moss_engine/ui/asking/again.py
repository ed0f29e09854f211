"""What happens when a visitor opens a replay file: it is looked at, and spoken again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.api.request import Message, Request, Text
from moss_engine.ui.asking.replay import read
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.stream import ListenerTimeout, Messages, ReplyClock, Shared, messages, whole
from moss_engine.ui.view import View


class Again(Shared):
    """Of the replies that `handlers` answer for."""

    def __init__(self, handlers: Handlers):
        self._handlers = handlers

    def check(self, file: str) -> str:
        """Why a replay file would be refused, as one sentence, or "": asked first, as a refusal
        must not silence what is heard."""
        try:
            read(file, self._handlers.facts)
        except MossError as error:
            return str(error)
        return ""

    async def replay(
        self,
        file: str,
        run: str,
        conversation: Conversation,
        timeout: ListenerTimeout,
        tick_s: float,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a reply that a file holds, called `run`. It is no part of the
        conversation."""
        clock = ReplyClock()

        def told(view: View) -> Messages:
            return self._told(file, view, clock, conversation, timeout, tick_s)

        async with aclosing(whole(View(run=run, seed=0), clock, told)) as messages:
            async for message in messages:
                yield message

    async def _told(
        self,
        file: str,
        view: View,
        clock: ReplyClock,
        conversation: Conversation,
        timeout: ListenerTimeout,
        tick_s: float,
    ) -> AsyncGenerator[dict[str, Any], None]:
        handlers = self._handlers
        facts, recording = handlers.facts, read(file, handlers.facts)
        await handlers.service.cancel_session(conversation.session_id)
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
        told = messages(reply, view, clock, handlers.pool.counts, timeout, tick_s)
        async with aclosing(told) as stream:
            async for message, _ in stream:
                yield message | {
                    "seed": recording.seed,
                    "recipe": recording.recipe,
                    "pieces": handlers.pieces(message),
                }
