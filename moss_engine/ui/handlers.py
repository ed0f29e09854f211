"""What happens when a visitor asks, stops or leaves, by whichever way they came: through the page's
WebSocket (`door.py`) or by Gradio's protocol (`programs.py`).

Stop and a closed tab cancel at the service directly, so no KV block depends on a generator being
closed in time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import UNFORESEEN, MossError, ParameterError, UnsupportedModeError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice, SpeechService
from moss_engine.endpoints.ahead import Ahead
from moss_engine.endpoints.figures import Figures
from moss_engine.ui import form
from moss_engine.ui.audio_in.ingest import AudioIngest, Utterance
from moss_engine.ui.conversation import Conversation, Sessions, settle
from moss_engine.ui.stream import Messages, messages, pool_counts
from moss_engine.ui.turn import Turn

log = logging.getLogger(__name__)


class Handlers:
    """`wav_folder` is where finished replies are put for download; `ingest` is None where no mode
    takes speech."""

    def __init__(
        self,
        service: SpeechService,
        facts: ServiceInfo,
        *,
        wav_folder: Path,
        ingest: AudioIngest | None = None,
        figures: Figures | None = None,
    ):
        self.service = service
        self.facts = facts
        self.ingest = ingest
        self.figures = figures or Figures()
        self.wav_folder = wav_folder
        self.sessions = Sessions(service)

    def answer(
        self,
        values: dict[str, Any],
        run: str,
        conversation: Conversation,
        ahead: Ahead | None = None,
        *,
        paced: bool = True,
    ) -> Messages:
        """Every message of the reply called `run` to the `values` of the page's controls; an error
        is told in the last one. Leaving early stops the reply. It may have been begun `ahead`. If
        it is `paced`, it is made no faster than somebody can listen."""
        seed = ahead.seed if ahead is not None and values["new_seed"] else None
        named = (mode for mode in self.facts.modes if mode.name == values["mode"])
        turn = Turn(
            run=run,
            seed=form.draw_seed(values) if seed is None else seed,
            mode=next(named, self.facts.default_mode),  # one that is not there is refused below
            pieces_of=self.facts.pieces_of,
        )
        return _whole(turn, self._told(values, turn, conversation, ahead, paced))

    def begin(
        self, values: dict[str, Any], said: Utterance, conversation: Conversation, ahead: Ahead
    ) -> None:
        """Begin the answer to what was `said` so far, and tell nobody. What is wrong with it is
        told once it is asked for."""
        try:
            form.check(values, self.facts, conversation.voice)
            if (mode := self.facts.mode(values["mode"])).input == "text":
                return
            turn = Turn(seed=form.draw_seed(values), mode=mode, asked=said)
            ahead.begin(self._request(values, turn, conversation))
        except MossError:
            return

    async def _told(
        self,
        values: dict[str, Any],
        turn: Turn,
        conversation: Conversation,
        ahead: Ahead | None,
        paced: bool,
    ) -> Messages:
        form.check(values, self.facts, conversation.voice)
        mode = self.facts.mode(values["mode"])
        form.doubt_once(conversation.doubted, mode, values["text"])
        turn.asked = await self._asked(values)
        await asyncio.to_thread(conversation.cut, values["heard"], self.facts)
        begun = None
        if ahead is not None:
            begun = await ahead.take(self._request(values, turn, conversation))
        if begun is not None:  # asked for and accepted before it was wanted
            turn.received_s, turn.accepted_s = begun.begun_s, begun.accepted_s
        elif isinstance(turn.asked, Utterance) or values["heard"]:  # it stops the old reply
            await self.service.cancel_session(conversation.session_id)
        try:
            reply = begun or await self.service.submit(self._request(values, turn, conversation))
            told = messages(reply, turn, partial(pool_counts, self.service), paced=paced)
            async with aclosing(told) as stream:
                async for message in stream:
                    if turn.accepted_s is not None:
                        conversation.add(turn)
                    yield message
        finally:
            turn.close()
            await self.entries(conversation)  # whose sound becomes files, which grow old

    async def _asked(self, values: dict[str, Any]) -> str | Utterance:
        """What was typed, or what was said, with its codes."""
        if self.facts.mode(values["mode"]).input == "text":
            return values["text"]
        assert self.ingest is not None, "a page without one has no mode that takes speech"
        return await self.ingest.said(values["utterance"])

    def _request(self, values: dict[str, Any], turn: Turn, conversation: Conversation) -> Request:
        history = conversation.history(turn) if turn.mode.history else ()
        session_id, said = conversation.session_id, turn.content
        request = form.request_of(values, self.facts, turn.seed, history, said, session_id)
        return replace(request, visitor=conversation.visitor)

    async def make_voice(
        self, conversation: Conversation, consent: bool, utterance: str
    ) -> ClonedVoice:
        """The conversation's voice from now on, made of what was said. Raises a MossError where
        none can be made."""
        if not consent:
            raise ParameterError("Tick the box first: a voice is used only if its owner agrees.")
        if self.ingest is None or not self.facts.clones_voices:
            raise UnsupportedModeError(
                "This page speaks with installed voices only; choose one of them."
            )
        said = await self.ingest.said(utterance)
        session_id, wave = conversation.session_id, said.pcm / np.float32(32768)
        voice = await self.service.add_voice(session_id, wave, said.rate_hz, said.speech.codes)
        conversation.voice = voice.name
        return voice

    async def entries(self, conversation: Conversation) -> list[dict[str, Any]]:
        """The conversation so far, for the page's Transcript."""
        return await asyncio.to_thread(conversation.entries, self.wav_folder)

    async def stop(self, heard: str, conversation: Conversation) -> None:
        """Stop a conversation's reply at once. `heard` may say, as the reply's run and a number of
        samples, how much of it reached the ear: the rest was never said."""
        await self.service.cancel_session(conversation.session_id)
        await settle(conversation)
        await asyncio.to_thread(conversation.cut, heard, self.facts)


async def _whole(turn: Turn, told: Messages) -> Messages:
    """Every message of a reply, the first of them before anything is begun; what `told` raises is
    the last one, as whoever waits for it must not wait for ever."""
    yield turn.message()
    try:
        async with aclosing(told) as rest:
            async for message in rest:
                yield message
    except MossError as error:
        turn.end("failed", str(error))
        yield turn.message()
    except Exception:
        log.exception("an answer failed")
        turn.end("failed", UNFORESEEN)
        yield turn.message()
