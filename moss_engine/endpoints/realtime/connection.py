"""One realtime session: the client's events in their order, and what they bring about."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import numpy as np
from pydantic import ValidationError
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import MossError
from moss_engine.api.request import Message, Text, ToolCall
from moss_engine.audio.g711 import Decoder
from moss_engine.endpoints.access import MAX_HELD, Caller
from moss_engine.endpoints.bodies import beside_if_large, joined, without_effect
from moss_engine.endpoints.errors import ApiError, of_moss, of_validation
from moss_engine.endpoints.functions import CallItem, OutputItem
from moss_engine.endpoints.realtime.conversation import Conversation, Item, new_item_id, typed
from moss_engine.endpoints.realtime.fields import (
    ItemCreate,
    ItemReference,
    ItemTruncate,
    MessageFields,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    read_event,
    read_response,
)
from moss_engine.endpoints.realtime.listening import Listening
from moss_engine.endpoints.realtime.responding import Responses
from moss_engine.endpoints.realtime.session import LAWS, Session, first_session, settled, warning
from moss_engine.endpoints.realtime.wire import (
    GONE,
    RATE_HZ,
    SocketWire,
    Wire,
    event_id_of,
    samples_of,
)
from moss_engine.endpoints.replies import SEND_S
from moss_engine.endpoints.server import Server

MAX_WAITING = 256
"""Events of a client that may wait, however small they are."""
MAX_APART = 8
"""Responses apart from the conversation that are made at a time."""
READ_AGAIN_S = 0.02
KINDS = {
    "system": ({"input_text"},),
    "user": ({"input_text"}, {"input_audio"}),
    "assistant": ({"output_text", "text"}, {"output_audio", "audio"}),
}
GREETING = "Hello."
"""What is answered when a response is asked for before anything was said."""
STILL_THERE = "Are you still there?"
"""What is said after `idle_timeout_ms` of silence."""
IDLE_LOOK_S = 0.1


class Connection:
    """Serves one client until it leaves, and then ends everything that it asked for."""

    def __init__(
        self, server: Server, caller: Caller, wire: Wire, settings: dict[str, Any] | None = None
    ):
        self._server = server
        self._caller = caller
        self._wire = wire
        self._settings = settings or {}
        self._talk = Conversation()
        session = first_session(server, f"sess_{secrets.token_hex(12)}")
        self._responses = Responses(server, caller, wire, self._talk, self._emit, session)
        self._listening = Listening(self._responses)
        self._said: asyncio.Queue[str | bytes | np.ndarray] = asyncio.Queue(MAX_WAITING)
        self._decoder: Decoder | None = None  # of what is not sent as PCM
        self._idling: asyncio.Task[None] | None = None
        self._gone = False  # the client, as what was sent to it found out

    async def serve(self) -> None:
        """Until the client leaves, which is noticed even while its events wait."""
        serving = [asyncio.create_task(self._read()), asyncio.create_task(self._act_on_all())]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._listening.close()
            idling = () if self._idling is None else (self._idling,)
            tasks = [*serving, *self._responses.tasks(), *idling]
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await self._responses.ahead.close()
            while not self._said.empty():
                self._caller.num_held -= len(self._said.get_nowait())
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end

    async def _read(self) -> None:
        """Take the client's events as they come, while not too many are held, until it leaves."""
        while (said := await self._wire.receive()) is not None:
            while self._holds_much(len(said)):
                if self._gone:  # as nothing else says while nothing is read
                    return
                await asyncio.sleep(READ_AGAIN_S)
            await self._said.put(said)
            self._caller.num_held += len(said)

    def _holds_much(self, more: int) -> bool:
        """Whether so many more characters would be too many for this caller; if events of this
        connection wait already, half of the limit holds."""
        most = MAX_HELD if self._said.empty() else MAX_HELD // 2
        return self._caller.num_held + more > most

    async def _act_on_all(self) -> None:
        await self._greet()
        while True:
            said = await self._said.get()
            try:
                await self._take(said)
            finally:
                self._caller.num_held -= len(said)
            await asyncio.sleep(0)  # others have a turn after each of a thousand small events

    async def _greet(self) -> None:
        try:
            await self._listening.find(await self._listening.detector())
        except MossError:  # which is told to who asks for it
            self._responses.session = replace(self._responses.session, detection=None)
        await self._update("session.created", self._settings)

    async def _take(self, said: str | bytes | np.ndarray) -> None:
        """One event of the client; what is wrong with it is told, and the session goes on."""
        event_id = None
        try:
            if isinstance(said, np.ndarray):
                await self._listening.hear(said)
                return
            event = await beside_if_large(read_event, said)
            event_id = event.event_id
            await self._act(event)
        except ValidationError as error:
            name = await beside_if_large(event_id_of, said)
            await self._refuse(of_validation(error), name)
        except (ApiError, MossError) as error:
            await self._refuse(of_moss(error), event_id)

    async def _act(self, event: Any) -> None:
        listening, responses = self._listening, self._responses
        match event.type:
            case "input_audio_buffer.append":
                pcm = await beside_if_large(samples_of, event.audio, self._decoder)
                await listening.hear(pcm)
            case "input_audio_buffer.commit":
                listening.floor.forget()
                if self._decoder is not None:
                    await listening.hear(self._decoder.push(b"", last=True))
                await listening.commit()
            case "input_audio_buffer.clear":
                listening.floor.forget()
                listening.clear()
                await self._emit("input_audio_buffer.cleared")
            case "output_audio_buffer.clear":
                await responses.stop("client_cancelled")
            case "session.update":
                await self._update("session.updated", event.session, event.event_id)
            case "response.create":
                await self._respond(event)
            case "response.cancel":
                await self._cancel(event)
            case "conversation.item.create":
                await self._create(event)
            case "conversation.item.truncate":
                await self._truncate(event)
            case "conversation.item.retrieve":
                item = self._talk.find(event.item_id)
                await self._emit("conversation.item.retrieved", item=item.value())
            case "conversation.item.delete":
                if responses.answer is not None and event.item_id == responses.answer.item.id:
                    await responses.stop("client_cancelled")
                self._talk.delete(event.item_id)
                await self._emit("conversation.item.deleted", item_id=event.item_id)

    async def _update(self, told: str, said: dict[str, Any], event_id: str | None = None) -> None:
        """Apply what the client sets, as far as possible; then tell the settings that hold, and
        what was wrong with the others."""
        before = self._responses.session
        session, ignored, refused = settled(self._server, before, said)
        if self._wire.plays and session.sounds_as != "audio/pcm":
            ignored.append("audio.output.format")
            session = replace(session, sounds_as="audio/pcm")
        detector = None
        if session.detection is not None:
            try:
                detector = await self._listening.detector()
            except MossError as error:
                refused.append(of_moss(error, "session.audio.input.turn_detection"))
                session = replace(session, detection=None)
        self._responses.session = session
        if session.hears_as != before.hears_as:
            self._decoder = self._open_decoder()
        if session.idle_s is not None and self._idling is None:
            self._idling = asyncio.create_task(self._ask_when_idle())
        info = self._server.info
        value = session.value(info.voices, info.recogniser)
        await self._emit(told, session=value, **warning(ignored))
        if session.finding != before.finding:
            await self._listening.find(detector)
        for error in refused:
            await self._refuse(error, event_id)

    def _open_decoder(self) -> Decoder | None:
        """The decoder for the session's input format; None for PCM."""
        law = LAWS.get(self._responses.session.hears_as)
        return Decoder(law, RATE_HZ) if law else None

    async def _ask_when_idle(self) -> None:
        """After `idle_s` of silence behind an answer, ask whether somebody is there."""
        responses, listening = self._responses, self._listening
        while True:
            await asyncio.sleep(IDLE_LOOK_S)
            idle_s, answered = responses.session.idle_s, responses.saying
            if idle_s is None or answered is None or listening.follower.talking:
                continue
            if responses.idle_s < idle_s:
                continue
            responses.spoken()
            now_ms = listening.ms_of(listening.follower.num_taken)
            await self._emit(
                "input_audio_buffer.timeout_triggered",
                audio_start_ms=max(0, now_ms - round(1000 * idle_s)),
                audio_end_ms=now_ms,
                item_id=answered.item.id,
            )
            if responses.session.answers and self._server.info.reading_mode is not None:
                responses.begin(replace(responses.session, instead=STILL_THERE, reads=True))

    async def _respond(self, event: ResponseCreate) -> None:
        responses, own = self._responses, self._server.own_system
        if responses.session.transcription:
            raise ApiError(
                400, "This session writes down what is said; open one of the type realtime for "
                "answers.", "invalid_value", param="session.type",
            )  # fmt: skip
        fields = read_response(event.response or {})
        ignored = without_effect(fields)
        output = fields.audio.output if fields.audio else None
        if output is not None and output.voice is not None:
            self._server.check_voice(output.voice, "response.audio.output.voice")
        session = responses.session.answering(fields)
        if self._wire.plays:
            session = replace(session, sounds_as="audio/pcm")
        asked = await self._asked(fields)
        await self._require_free(session)
        instructions = fields.instructions or ""
        if not own:
            systems = fields.input and any(item.role == "system" for item in asked.items)
            said = {"instructions": instructions, "input[].role": systems}
            ignored += [name for name, given in said.items() if given]
            session = replace(session, instructions="")
        elif instructions and not asked.is_asked:
            # They are what is wanted, and not how an answer is to be given.
            instead, instructions = instructions, responses.session.instructions
            session = replace(session, instead=instead, instructions=instructions)
        last = asked.last_of_user()
        if last is None:
            session = replace(session, instead=session.instead or GREETING)
        elif asked is self._talk:
            responses.asked.add(last)
        understood = partial(self._listening.understood, asked.items)
        responses.begin(session, understood, ignored, asked)

    async def _require_free(self, session: Session) -> None:
        """Raise ApiError where a response would have to be made beside too many others."""
        responses = self._responses
        if responses.is_beside(session):
            if len(responses.apart) >= MAX_APART:
                raise ApiError(
                    400, f"{MAX_APART} responses apart from the conversation are being made; wait "
                    "for a response.done.", "too_many_responses",
                )  # fmt: skip
            return
        if responses.answer is not None and responses.answer.over:
            await responses.over()
        if responses.answer is not None:
            raise ApiError(
                400, "A response is being made; cancel it, or wait for response.done.",
                "conversation_already_has_active_response",
            )  # fmt: skip

    async def _asked(self, fields: ResponseFields) -> Conversation:
        """The conversation that a response answers; raises ApiError."""
        if fields.input is None:
            if fields.conversation != "none":
                return self._talk
            return Conversation([item for item in self._talk.items if item.status != "in_progress"])
        asked = Conversation()
        for place, said in enumerate(fields.input):
            try:
                if isinstance(said, ItemReference):
                    asked.add(self._talk.find(said.id))
                    continue
                item, pcm = await self._read_item(said)
                asked.add(item)
                if pcm is not None:
                    self._listening.add_apart(pcm, item)
            except ApiError as error:
                error.param = f"response.input[{place}]"
                raise
        return asked

    async def _cancel(self, event: ResponseCancel) -> None:
        answer = self._responses.find(event.response_id)
        if answer is None:
            raise ApiError(
                400, "There is no such response in progress; nothing was cancelled.",
                "response_cancel_not_active",
            )  # fmt: skip
        if answer is self._responses.answer:
            await self._responses.stop("client_cancelled")
        else:
            answer.cancel("client_cancelled")

    async def _create(self, event: ItemCreate) -> None:
        item, pcm = await self._read_item(event.item)
        if pcm is not None:
            await self._listening.add(pcm, item, event.previous_item_id)
            return
        ignored = ["system"] if item.role == "system" and not self._server.own_system else []
        await self._listening.show(item, event.previous_item_id, ignored)

    async def _read_item(
        self, said: MessageFields | CallItem | OutputItem
    ) -> tuple[Item, np.ndarray | None]:
        """An item, and the recording that it is to hold once understood; raises ApiError."""
        name = said.id or new_item_id()
        if isinstance(said, MessageFields):
            return await self._read_message(said, name)
        if isinstance(said, CallItem):
            item = Item(name, "assistant", False, call=said.call)
        else:
            item = Item(name, "tool", False, text=joined(said.output))
            item.call = ToolCall(said.call_id, "", "")
        mode = self._server.mode_for(False, speaks=self._responses.session.speaks)
        self._server.check_tools(mode, (Message("tool", Text(""), call_id=said.call_id),), None)
        return item, None

    async def _read_message(self, said: MessageFields, name: str) -> tuple[Item, np.ndarray | None]:
        kinds = {part.type for part in said.content}
        if not any(kinds <= fitting for fitting in KINDS[said.role]):
            raise ApiError(
                400, "An item holds text or one recording, of the kind of its role: input_text, "
                "input_audio (user) or output_text (assistant).", "invalid_value",
                param="item.content",
            )  # fmt: skip
        if kinds == {"input_audio"}:
            if len(said.content) > 1:
                raise ApiError(400, "An item holds one recording; send several items.",
                               "invalid_value", param="item.content")  # fmt: skip
            audio = said.content[0].audio  # type: ignore[union-attr]
            pcm = await beside_if_large(samples_of, audio, self._open_decoder(), True)
            return Item(name, said.role, True), pcm
        text = "\n".join(part.text for part in said.content)  # type: ignore[union-attr]
        return typed(name, said.role, text, self._server.info), None

    async def _truncate(self, event: ItemTruncate) -> None:
        item, info = self._talk.find(event.item_id), self._server.info
        if self._responses.answer is not None and item is self._responses.answer.item:
            await self._responses.stop("client_cancelled")
        num_samples = event.audio_end_ms * info.sample_rate_hz // 1000
        if item.role != "assistant" or not item.spoken or num_samples > item.num_samples:
            made = item.num_samples * 1000 // info.sample_rate_hz
            raise ApiError(
                400, f"The item has {made} ms of answered sound; give audio_end_ms up to that.",
                "invalid_value", param="audio_end_ms",
            )  # fmt: skip
        await self._responses.cut(item, num_samples, event.audio_end_ms)

    async def _refuse(self, error: ApiError, event_id: str | None) -> None:
        self._server.refused(error)
        await self._emit("error", error={**error.value(), "event_id": event_id})

    async def _emit(self, kind: str, **fields: Any) -> None:
        """Send an event; if the client is gone, `serve` is about to notice, too."""
        event = {"type": kind, "event_id": f"event_{secrets.token_hex(10)}", **fields}
        try:
            with anyio.fail_after(SEND_S):
                await self._wire.send(event)
        except (WebSocketDisconnect, RuntimeError):
            self._gone = True


BETA_PROTOCOL = "openai-beta.realtime-v1"


@contextlib.contextmanager
def admitted(server: Server, asked: HTTPConnection) -> Iterator[tuple[Caller, dict[str, Any]]]:
    """The caller and the settings of a session, which counts as open inside; raises ApiError."""
    caller, settings = server.access.of_realtime(asked.scope)  # type: ignore[arg-type]
    caller.call()
    server.check_model(asked.query_params.get("model", server.model))
    with caller.connection():
        yield caller, settings


async def converse(server: Server, socket: WebSocket) -> None:
    """A WebSocket from its being asked for to its end; one that is refused gets an HTTP answer."""
    with contextlib.ExitStack() as held:
        offered = socket.scope.get("subprotocols", ())
        try:
            if BETA_PROTOCOL in offered or "openai-beta" in socket.headers:
                raise ApiError(
                    400, "The beta of the realtime interface is not spoken here; leave OpenAI-Beta "
                    "out and use today's fields and events.", "beta_api_shape_disabled",
                )  # fmt: skip
            caller, settings = held.enter_context(admitted(server, socket))
        except ApiError as error:
            server.refused(error)
            await socket.send_denial_response(error.response())
            return
        if socket.query_params.get("intent") == "transcription":
            settings = {"type": "transcription", **settings}
        await socket.accept("realtime" if "realtime" in offered else None)
        await Connection(server, caller, SocketWire(socket), settings).serve()
