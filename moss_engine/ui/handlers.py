"""What happens when a visitor asks, stops or leaves.

Gradio's own limits are courtesies: admission, cancelling and pace are the service's. A reply's handler yields before it
does anything, because Gradio cannot close a generator that never has; Stop and a closed tab cancel at the service
directly, so no KV block depends on this generator being closed in time.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from moss_engine.errors import ContextError, MossError, ParameterError
from moss_engine.handle import Handle
from moss_engine.service import Service
from moss_engine.ui import form
from moss_engine.ui.conversation import HEARD, Conversation, Turn
from moss_engine.ui.facts import Facts
from moss_engine.ui.hearing import Hearing, Said
from moss_engine.ui.own_voice import OwnVoices
from moss_engine.ui.stream import messages
from moss_engine.ui.view import View, fail, halt, take

SETTLE_S = 1.0  # how long Stop waits for the reply's handler to close its books
MAX_STOPPED = 256


class Handlers:
    """`wav_folder` is where finished replies are put for download; `run_ahead_s` bounds how far a listener is led.

    `hearing` is None where no mode takes speech, `own_voices` where visitors bring none.
    """

    def __init__(self, service: Service, facts: Facts, *, run_ahead_s: float, wav_folder: Path,
                 hearing: Hearing | None = None, own_voices: OwnVoices | None = None):
        self.service = service
        self.facts = facts
        self.hearing = hearing
        self.own_voices = own_voices
        self.wav_folder = wav_folder
        self._run_ahead_s = run_ahead_s
        self._key = secrets.token_bytes(16)
        self._stopped: deque[tuple[str, str]] = deque(maxlen=MAX_STOPPED)  # sessions and their runs, the newest ones

    def __deepcopy__(self, memo: dict) -> Handlers:
        """Itself: Gradio copies the page's description for every visitor, and the model hangs on these methods."""
        return self

    def validate(self, text, mode, voice, text_temperature, text_top_k, text_top_p, text_repetition_penalty,
                 speech_temperature, speech_top_k, speech_top_p, speech_repetition_penalty, seed, new_seed, max_rows,
                 system, utterance, heard, run, conversation):
        """Before anything is queued: a refusal is HTTP 422 and a sentence under the text.

        Where there is no text box, the reply itself says it."""
        inputs = dict(locals())
        values = [inputs[name] for name in form.CONTROLS]
        try:
            form.check(inputs, self.facts, conversation.voice if conversation else "")
        except MossError as error:
            if any(known.name == mode and known.input == "speech" for known in self.facts.modes):
                return [gr.validate(True, "") for _ in (*values, conversation)]
            return [gr.validate(False, str(error)), *(gr.validate(True, "") for _ in values)]
        return [gr.validate(True, "") for _ in (*values, conversation)]

    async def reply(self, text: str, mode: str, voice: str, text_temperature: float, text_top_k: int, text_top_p: float,
                    text_repetition_penalty: float, speech_temperature: float, speech_top_k: int, speech_top_p: float,
                    speech_repetition_penalty: float, seed: int, new_seed: bool, max_rows: int, system: str,
                    utterance: str, heard: str, run: str, conversation: Conversation | None,
                    request: gr.Request) -> AsyncIterator[tuple[Any, Any]]:
        """Answer `text`, or the recording named by `utterance`. Yields the reply's messages while it is made, with
        int16 PCM in base64."""
        values = {name: value for name, value in locals().items() if name in form.CONTROLS}
        conversation = conversation or Conversation()
        conversation.session_id = self.session_id(request)
        speaks = self.facts.mode(mode).output == "speech"
        name = run if form.RUN.fullmatch(str(run)) else secrets.token_hex(4)
        view = View(run=name, seed=form.draw_seed(values), speaks=speaks, received_s=time.monotonic())
        message, view = take(view, time.monotonic())
        yield message, conversation
        try:
            async with aclosing(self._stream(values, view, conversation)) as stream:
                async for message in stream:
                    yield message, gr.skip()
        except MossError as error:
            message, _ = take(replace(fail(view, str(error)), seq=1), time.monotonic())
            yield message, gr.skip()
            raise gr.Error(str(error), print_exception=False) from None

    async def _stream(self, values: dict[str, Any], view: View,
                      conversation: Conversation) -> AsyncGenerator[dict[str, Any], None]:
        form.check(values, self.facts, conversation.voice)  # a program may come here without the validator
        turn = Turn(await self._asked(values), self.facts.mode(values["mode"]).history, view.speaks)
        await asyncio.to_thread(conversation.cut, values["heard"])
        self._note_stop(conversation.session_id, values["heard"])
        if isinstance(turn.asked, Said) or values["heard"]:  # whoever talks has the floor
            self.service.cancel_session(conversation.session_id)
        if (conversation.session_id, view.run) in self._stopped:  # Stop came before the question
            yield take(halt(view), time.monotonic())[0]
            return
        try:
            stream = messages(self._submit(values, view, conversation, turn), view, self.pool,
                              run_ahead_s=self._run_ahead_s)
            async with aclosing(stream):
                async for message, view in stream:
                    turn.take(message, view)
                    if view.accepted:
                        conversation.add(turn)
                    yield message | {"pieces": {str(i): self.facts.piece(i) for i in message["ids"] if i >= 0}}
        finally:
            turn.close()
        if view.state == "failed":
            raise gr.Error(view.note, print_exception=False)

    async def _asked(self, values: dict[str, Any]) -> str | Said:
        """What was typed, or what was said, with its codes."""
        if self.facts.mode(values["mode"]).input == "text":
            return values["text"]
        if self.hearing is None:
            raise ParameterError("This page takes no recordings; type your question.")
        return await self.hearing.said(values["utterance"])

    def _submit(self, values: dict[str, Any], view: View, conversation: Conversation, turn: Turn) -> Handle:
        """Ask with as much of the conversation as fits: when it does not, the older half of it is left out, visibly."""
        grid = self.facts.ids, self.facts.samples_per_code
        while True:
            history = conversation.history(*grid) if turn.remembered else ()
            try:
                return self.service.submit(form.request_of(values, self.facts, view.seed, history, turn.content,
                                                           conversation.session_id))
            except ContextError:
                if not history:
                    raise
                conversation.forget_half(*grid)
                turn.left_out = conversation.forgotten

    async def accepted(self, text: str, conversation: Conversation) -> tuple[Any, Any]:
        """A reply was accepted: show what was asked, and empty the text box unless it holds something else by now."""
        sent = conversation.turns[-1].asked
        return await self.chat(conversation), "" if text == sent else gr.skip()

    async def chat(self, conversation: Conversation) -> list[dict[str, Any]]:
        """The conversation so far, for the page's Transcript."""
        return await asyncio.to_thread(conversation.entries, self.wav_folder)

    async def stop(self, heard: str, conversation: Conversation | None, request: gr.Request) -> Any:
        """Stop this session's reply at once; answers with the conversation so far. `heard` may say, as the reply's run
        and a number of samples, how much of it reached the ear: in a conversation, the rest was never said."""
        session_id = self.session_id(request)
        self._note_stop(session_id, heard)
        self.service.cancel_session(session_id)
        if conversation is None:
            return gr.skip()
        deadline_s = time.monotonic() + SETTLE_S
        turns = list(conversation.turns)  # a question that comes meanwhile is not meant
        while not all(turn.over for turn in turns) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        for turn in turns:
            turn.close()
        await asyncio.to_thread(conversation.cut, heard)
        return await self.chat(conversation)

    async def clear(self, heard: str, conversation: Conversation | None,
                    request: gr.Request) -> tuple[list[Any], Conversation]:
        """Begin a new conversation, with the same voice; `heard` as for `stop`."""
        session_id = self.session_id(request)
        self._note_stop(session_id, heard)
        self.service.cancel_session(session_id)
        return [], Conversation(voice=conversation.voice if conversation else "")

    def _note_stop(self, session_id: str, heard: str) -> None:
        """A run is unwanted, even if its question is still on its way."""
        if found := HEARD.fullmatch(heard):
            self._stopped.append((session_id, found["run"]))

    async def take_voice(self, consent: bool, utterance: str, conversation: Conversation | None,
                         request: gr.Request) -> tuple[Any, Conversation, str]:
        """Make a voice of a recording whose speaker agreed, and choose it; answers with the voices to choose from, and
        a sentence for the visitor."""
        conversation = conversation or Conversation()
        conversation.session_id = self.session_id(request)
        if not consent:
            raise gr.Error("Tick the box first: a voice is used only if its owner agrees.", print_exception=False)
        if self.own_voices is None or self.hearing is None:
            raise gr.Error("This page speaks with installed voices only; choose one of them.", print_exception=False)
        try:
            said = await self.hearing.said(utterance)
            conversation.voice, advice = await asyncio.to_thread(self.own_voices.make, conversation.session_id, said)
        except MossError as error:
            raise gr.Error(str(error), print_exception=False) from None
        told = " ".join(part for part in ("Answers now come in your voice.", advice) if part)
        choices = [*self.facts.voices, ("Your voice", conversation.voice)]
        return gr.Dropdown(choices=choices, value=conversation.voice, interactive=True), conversation, told

    def listen(self) -> str:
        """A key for sending recordings: POST them to /gradio_api/hear/KEY/file, and name the utterance to /reply."""
        if self.hearing is None:
            raise gr.Error("This page takes no recordings; type your question.", print_exception=False)
        try:
            return self.hearing.open()
        except MossError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        self._leave(self.session_id(request))

    def forget(self, conversation: Conversation | None) -> None:
        """Gradio drops a session's state."""
        if conversation is not None and conversation.session_id:
            self._leave(conversation.session_id)

    def _leave(self, session_id: str) -> None:
        self.service.cancel_session(session_id)
        if self.own_voices is not None:
            self.own_voices.forget(session_id)

    def session_id(self, request: gr.Request) -> str:
        """A tab's name inside the service: not its session hash, which lets others read and cancel its events."""
        return hashlib.blake2b(str(request.session_hash).encode(), key=self._key, digest_size=16).hexdigest()

    def pool(self) -> dict[str, int]:
        """Counts of the whole service for the status panel."""
        engine = self.service.stats().engine
        return {"used": engine.blocks_used, "cached": engine.blocks_cached, "free": engine.blocks_free,
                "running": engine.running, "waiting": engine.waiting}
