"""What happens when a visitor asks, stops or leaves.

Gradio's own limits are courtesies: admission, cancelling and pace are the service's. A reply's
handler yields before it does anything, because Gradio cannot close a generator that never has; Stop
and a closed tab cancel at the service directly, so no KV block depends on this generator being
closed in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.api.errors import MossError, ParameterError
from moss_engine.api.metrics import measure
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.ui import form
from moss_engine.ui.asking.forecast import Forecasts, PoolWatch, Seen
from moss_engine.ui.asking.refusals import Refusals
from moss_engine.ui.asking.replay import recipe
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.audio_in.recordings import Utterance
from moss_engine.ui.conversation import HEARD, Conversation, Turn
from moss_engine.ui.entrance.gradio_queue import Lease, Outboxes, lease_of
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.kept import KEY, Visits, settle
from moss_engine.ui.stream import TICKS_S, ReplyClock, Shared, SoundWay, Told, messages, relay
from moss_engine.ui.view import View, halt, take

ACCEPTED_SEQ = 2  # of the view behind the message that says so


class Handlers(Shared):
    """`wav_folder` is where finished replies are put for download; `ingest` is None where no mode
    takes speech."""

    def __init__(
        self,
        service: SpeechService,
        facts: PageInfo,
        *,
        wav_folder: Path,
        ingest: AudioIngest | None = None,
    ):
        self.service = service
        self.facts = facts
        self.ingest = ingest
        self.wav_folder = wav_folder
        self.outboxes: Outboxes | None = None  # of the page that is made of these handlers
        self.pool = PoolWatch(service)
        self.visits = Visits(service)
        self.names = self.visits.names
        self.forecasts = Forecasts(facts, self.pool)
        self.refusals = Refusals(facts, self.visits)

    @form.takes_controls
    async def reply(self, *arguments: Any, **named: Any) -> AsyncIterator[tuple[Any, Any]]:
        """Answer `text`, or the recording named by `utterance`. Yields the reply's messages while
        it is made, with int16 PCM in base64."""
        values, conversation, request = form.bind(arguments, named)
        conversation = self.visits.of(request, conversation)
        mode = self.facts.mode(values["mode"])
        view = View(
            run=form.run_name(values["run"]),
            seed=form.draw_seed(values),
            speaks=mode.output == "speech",
            reads=mode.split_sentences,
        )
        clock, way = ReplyClock(), SoundWay(values["sound"])

        def stream(view: View) -> Told:
            return self._stream(values, view, clock, conversation, self.lease(request))

        async with aclosing(relay(view, clock, way, conversation, stream)) as relayed:
            async for told in relayed:
                yield told

    async def _stream(
        self,
        values: dict[str, Any],
        view: View,
        clock: ReplyClock,
        conversation: Conversation,
        lease: Lease,
    ) -> AsyncGenerator[dict[str, Any], None]:
        form.check(
            values, self.facts, conversation.voice
        )  # a program may come here without the validator
        mode = self.facts.mode(values["mode"])
        asked = await self._asked(values)
        if isinstance(asked, Utterance):
            clock.listened_s = asked.listened_s
        turn = Turn(
            asked, mode.history, view.speaks, mode.split_sentences, through_text=mode.through_text
        )
        await asyncio.to_thread(conversation.cut, values["heard"])
        self._note_stop(conversation.session_id, values["heard"])
        if (
            isinstance(turn.asked, Utterance) or values["heard"]
        ):  # a new utterance stops the old reply
            await self.service.cancel_session(conversation.session_id)
        if self.is_stopped(conversation, view):  # before the question came
            yield take(halt(view), None)[0]
            return
        others = 0
        try:
            reply = await self._submit(values, view, conversation, turn)
            tick_s = TICKS_S[values["sound"]]
            told = messages(reply, view, clock, self.pool.counts, lease, tick_s)
            async with aclosing(told) as stream:
                async for message, view in stream:
                    turn.take(message, view)
                    others = max(others, message["pool"].get("running", 1) - 1)
                    if view.accepted:
                        self._remember(conversation, turn, view)
                    yield message | self._told_once(message, values, view)
        finally:
            turn.close()
            await self.chat(conversation)  # whose sound becomes files, which grow old
        if view.state in ("done", "length"):
            self._note_pace(turn, view, others)
        if view.state == "failed":
            raise gr.Error(view.note, print_exception=False)

    def _told_once(
        self, message: Mapping[str, Any], values: Mapping[str, Any], view: View
    ) -> dict[str, Any]:
        """What the browser is told of a reply besides its messages: its text ids, and once how it
        is made."""
        known = {"pieces": self.pieces(message)}
        if view.seq != ACCEPTED_SEQ:
            return known
        limits = asdict(self.pool.limits) if self.pool.limits else None
        return known | {"recipe": recipe(values, self.facts, view.seed), "limits": limits}

    def pieces(self, message: Mapping[str, Any]) -> dict[str, str]:
        """What the text ids of a message stand for."""
        return {str(i): self.facts.pieces[i] for i in set(message["ids"]) if i >= 0}

    def lease(self, request: gr.Request) -> Lease:
        """How long a tab may take nothing."""
        return lease_of(self.outboxes, str(request.session_hash), self.facts.lease_s)

    def is_stopped(self, conversation: Conversation, view: View) -> bool:
        """Whether Stop was pressed for this very reply."""
        return self.visits.was_stopped(conversation.session_id, view.run)

    async def _asked(self, values: dict[str, Any]) -> str | Utterance:
        """What was typed, or what was said, with its codes."""
        if self.facts.mode(values["mode"]).input == "text":
            return values["text"]
        if self.ingest is None:
            raise ParameterError("This page takes no recordings; type your question.")
        return await self.ingest.said(values["utterance"])

    async def _submit(
        self, values: dict[str, Any], view: View, conversation: Conversation, turn: Turn
    ) -> ReplyStream:
        history = conversation.history(self.facts) if turn.remembered else ()
        session_id, said = conversation.session_id, turn.content
        request = form.request_of(values, self.facts, view.seed, history, said, session_id)
        return await self.service.submit(replace(request, visitor=conversation.visitor))

    def _note_pace(self, turn: Turn, view: View, others: int) -> None:
        """A reply was spoken to its end, beside so many others."""
        text = turn.asked if isinstance(turn.asked, str) else ""
        self.forecasts.note(Seen.of(measure(view.timeline), others, text, turn.reads))

    @staticmethod
    def _remember(conversation: Conversation, turn: Turn, view: View) -> None:
        """A turn was accepted; what did not fit beside it is history no longer."""
        if turn not in conversation.turns:
            conversation.forget(view.num_left_out)
            turn.left_out = conversation.forgotten if view.num_left_out else 0
        conversation.add(turn)

    async def chat(
        self, conversation: Conversation | None, request: gr.Request | None = None
    ) -> Any:
        """The conversation so far, for the page's Transcript; nothing new where it is forgotten."""
        conversation = self.visits.known(request, conversation)
        if conversation is None:
            return gr.skip()
        return await asyncio.to_thread(conversation.entries, self.wav_folder)

    async def stop(self, heard: str, conversation: Conversation | None, request: gr.Request) -> Any:
        """Stop this session's reply at once; answers with the conversation so far. `heard` may say,
        as the reply's run and a number of samples, how much of it reached the ear: in a
        conversation, the rest was never said."""
        session_id = self.visits.names.session(request)
        self._note_stop(session_id, heard)
        await self.service.cancel_session(session_id)
        conversation = self.visits.known(request, conversation)
        if conversation is None:
            return gr.skip()
        await settle(conversation)
        await asyncio.to_thread(conversation.cut, heard)
        return await self.chat(conversation)

    async def come_back(self, key: str, request: gr.Request) -> tuple[Any, Conversation]:
        """A page was loaded: answers with what its tab said before, of whose reply in the middle
        no more is made."""
        conversation = self.visits.of(request)
        old = self.visits.kept.find(key)
        if old is not None and old is not conversation:
            await self.service.cancel_session(old.session_id)
            await settle(old)
            conversation.follow(old)
        if KEY.fullmatch(key):
            self.visits.kept.name(key, conversation)
        return await self.chat(conversation), conversation

    async def clear(
        self, heard: str, conversation: Conversation | None, request: gr.Request
    ) -> tuple[list[Any], Conversation]:
        """Begin a new conversation, with the same voice; `heard` as for `stop`."""
        session_id = self.visits.names.session(request)
        self._note_stop(session_id, heard)
        await self.service.cancel_session(session_id)
        conversation = self.visits.known(request, conversation)
        voice = conversation.voice if conversation else ""
        return [], self.visits.kept.renew(session_id, voice)

    def _note_stop(self, session_id: str, heard: str) -> None:
        """A run is unwanted, even if its question is still on its way."""
        if found := HEARD.fullmatch(heard):
            self.visits.note_stop(session_id, found["run"])

    async def listen(self, request: gr.Request) -> str:
        """A key for sending recordings: POST them to /gradio_api/hear/KEY/file, and name the
        utterance to /reply."""
        if self.ingest is None:
            raise gr.Error(
                "This page takes no recordings; type your question.", print_exception=False
            )
        try:
            return self.ingest.open(self.visits.names.visitor(request))
        except MossError as error:
            raise gr.Error(str(error), print_exception=False) from None

    async def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        await self.visits.leave(self.visits.names.session(request))
        if self.outboxes is not None:
            self.outboxes.close(str(request.session_hash))

    def forget(self, conversation: Conversation | None) -> None:
        """Gradio drops a session's state, on a thread of its own."""
        self.visits.forget(conversation)
