"""One realtime WebSocket: the client's events in their order, and what they bring about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import MossError
from moss_engine.audio.turn_taking import Change
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.errors import ApiError, of_moss, of_validation
from moss_engine.endpoints.realtime.answer import Answer, ended, first_of
from moss_engine.endpoints.realtime.conversation import Conversation, Item, typed
from moss_engine.endpoints.realtime.fields import (
    CLIENT_EVENT,
    BufferAppend,
    BufferClear,
    BufferCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from moss_engine.endpoints.realtime.listening import Heard, Listening, event_id_of, samples_of
from moss_engine.endpoints.realtime.session import Session
from moss_engine.endpoints.replies import SEND_S
from moss_engine.endpoints.server import Server

MAX_HELD = 16 << 20
"""Characters of a client's events that may wait for the ones before them."""
READ_AGAIN_S = 0.02
GONE = (WebSocketDisconnect, asyncio.TimeoutError)
KINDS = {
    "system": {"input_text"},
    "user": {"input_text", "input_audio"},
    "assistant": {"output_text"},
}


class Connection:
    """Serves a client until it leaves; whatever it asked for ends with it."""

    def __init__(self, server: Server, caller: Caller, socket: WebSocket):
        self._server = server
        self._caller = caller
        self._socket = socket
        self._talk = Conversation()
        self._session = Session(f"sess_{secrets.token_hex(12)}", server.model)
        self._answer: Answer | None = None
        self._answering: asyncio.Task[None] | None = None
        self._plays_until_s = 0.0
        self._asked: set[Item] = set()  # recordings that the client itself asked to be answered
        self._turns: set[asyncio.Task[None]] = set()  # found turns that are about to be answered
        self._said: deque[str | bytes] = deque()  # the client's events that nothing was done about
        self._came = asyncio.Event()
        self._left = False
        self._listening = Listening(server, self._talk, self._emit, self._turn_over)

    async def serve(self) -> None:
        """Until the client leaves, which is noticed whatever its events wait for."""
        serving = [asyncio.create_task(self._read()), asyncio.create_task(self._act_on_all())]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._left = True
            self._came.set()
            self._listening.close()
            tasks = [*serving, *self._turns, *filter(None, [self._answering])]
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end

    async def _read(self) -> None:
        """The client's events as they come, few enough of them to be held, until it leaves."""
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            said = message.get("text") or message.get("bytes") or ""
            while self._said and sum(map(len, self._said)) + len(said) > MAX_HELD:
                self._came.set()
                await asyncio.sleep(READ_AGAIN_S)
            self._said.append(said)
            self._came.set()

    async def _act_on_all(self) -> None:
        await self._greet()
        while not self._left:
            await self._came.wait()
            self._came.clear()
            while self._said:
                await self._take(self._said.popleft())

    async def _greet(self) -> None:
        detector = await self._listening.detector()
        if detector is not None:
            self._session = replace(self._session, vad=True)
            self._listening.use(detector)
        await self._emit("session.created", session=self._value())

    async def _take(self, said: str | bytes) -> None:
        """One event of the client; what is wrong with it is told, and the session goes on."""
        event_id = None
        try:
            event = CLIENT_EVENT.validate_json(said)
            event_id = event.event_id
            await self._act(event)
        except ValidationError as error:
            await self._refuse(of_validation(error), event_id_of(said))
        except ApiError as error:
            await self._refuse(error, event_id)
        except MossError as error:
            await self._refuse(of_moss(error), event_id)

    async def _act(self, event: Any) -> None:
        if isinstance(event, BufferAppend):
            await self._hear(event)
        elif isinstance(event, BufferCommit):
            await self._listening.commit()
        elif isinstance(event, BufferClear):
            self._listening.clear()
            await self._emit("input_audio_buffer.cleared")
        elif isinstance(event, SessionUpdate):
            await self._update(event)
        elif isinstance(event, ResponseCreate):
            await self._respond(event)
        elif isinstance(event, ResponseCancel):
            await self._cancel(event)
        else:
            await self._change_items(event)

    async def _change_items(self, event: Any) -> None:
        if isinstance(event, ItemCreate):
            await self._create(event)
        elif isinstance(event, ItemTruncate):
            await self._truncate(event)
        elif isinstance(event, ItemRetrieve):
            item = self._talk.find(event.item_id)
            await self._emit("conversation.item.retrieved", item=item.value())
        elif isinstance(event, ItemDelete):
            if self._answer is not None and event.item_id == self._answer.item.id:
                await self._stop("client_cancelled")
            self._talk.delete(event.item_id)
            await self._emit("conversation.item.deleted", item_id=event.item_id)

    async def _update(self, event: SessionUpdate) -> None:
        fields = event.session
        if fields.model is not None:
            self._server.check_model(fields.model)
        session = self._session.updated(fields)
        if session.voice is not None:
            self._server.check_voice(session.voice, "session.audio.output.voice")
        self._server.check_speed(session.speed, "session.audio.output.speed")
        refused = None
        if session.instructions and not self._server.own_system:
            session, refused = replace(session, instructions=""), "session.instructions"
        detector = await self._listening.detector(needed=session.vad) if session.vad else None
        if session.vad != self._session.vad:
            self._listening.use(detector)
        self._listening.transcribes = session.transcribes
        self._session = session
        await self._emit("session.updated", session=self._value())
        if refused:
            sentence = (
                f"The model {self._server.model!r} answers by a fixed system turn; "
                "the instructions were left out, all else was taken."
            )
            await self._refuse(
                ApiError(400, sentence, "fixed_system", param=refused), event.event_id
            )

    async def _hear(self, event: BufferAppend) -> None:
        answering = self._answer is not None or time.monotonic() < self._plays_until_s
        for heard in await self._listening.push(samples_of(event.audio), answering=answering):
            await self._turn(heard)

    async def _turn(self, heard: Heard) -> None:
        """Somebody began or stopped to talk; no sound follows what tells of an interruption."""
        if heard.change is Change.BEGAN and self._session.interrupts:
            self._plays_until_s = 0.0
            if self._answer is not None:
                self._answer.cancel("turn_detected")
        await self._listening.tell(heard)

    def _turn_over(self, item: Item) -> None:
        """A turn that was found by the service was understood: it is answered when its time comes,
        unless the client asked for that itself."""
        if self._session.vad and self._session.answers and item not in self._asked:
            turn = asyncio.create_task(self._answer_turn())
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _answer_turn(self) -> None:
        while self._answer is not None:  # another turn may have waited for it, too
            await ended(self._answering)
        await self._begin(self._session)

    async def _respond(self, event: ResponseCreate) -> None:
        if self._answer is not None and self._answer.over:
            await ended(self._answering)
        if self._answer is not None:
            raise ApiError(
                400, "A response is being made; cancel it, or wait for response.done.",
                "conversation_already_has_active_response",
            )  # fmt: skip
        session, fields = self._session, event.response
        if fields is not None:
            if fields.instructions and not self._server.own_system:
                raise ApiError(
                    400, "The system turn is fixed here; leave the instructions out.",
                    "fixed_system", param="response.instructions",
                )  # fmt: skip
            output = fields.audio.output if fields.audio else None
            if output is not None and output.voice is not None:
                self._server.check_voice(output.voice, "response.audio.output.voice")
            session = session.answering(fields)
        asked = self._talk.last_asked()
        self._asked.add(asked)
        await self._begin(session, asked)

    async def _begin(self, session: Session, asked: Item | None = None) -> None:
        answer = Answer(self._server, self._caller, session, self._talk, self._emit)
        self._answer = answer
        self._answering = asyncio.create_task(self._run(answer, asked))

    async def _run(self, answer: Answer, asked: Item | None) -> None:
        begun_s = time.monotonic()
        try:
            if asked is not None:
                await first_of(self._listening.understood(asked), answer.unwanted.wait())
            await answer.run()
        finally:
            self._plays_until_s = 0.0 if answer.cancelled else begun_s + answer.sent_s
            self._answer = None

    async def _cancel(self, event: ResponseCancel) -> None:
        answer = self._answer
        if answer is None or answer.over or event.response_id not in (None, answer.id):
            raise ApiError(
                400, "There is no such response in progress; nothing was cancelled.",
                "response_cancel_not_active",
            )  # fmt: skip
        await self._stop("client_cancelled")

    async def _stop(self, reason: str) -> None:
        if self._answer is not None:
            self._answer.cancel(reason)
            await ended(self._answering)

    async def _create(self, event: ItemCreate) -> None:
        said = event.item
        name = said.id or f"item_{secrets.token_hex(12)}"
        kinds = {part.type for part in said.content}
        if len(kinds) > 1 or not kinds <= KINDS[said.role]:
            raise ApiError(
                400, "An item holds text or one recording, of the kind of its role: input_text, "
                "input_audio (user) or output_text (assistant).", "invalid_value",
                param="item.content",
            )  # fmt: skip
        if said.role == "system" and not self._server.own_system:
            raise ApiError(
                400, "The system turn is fixed here; leave the item out.", "fixed_system",
                param="item.role",
            )  # fmt: skip
        if kinds == {"input_audio"}:
            if len(said.content) > 1:
                raise ApiError(400, "An item holds one recording; send several items.",
                               "invalid_value", param="item.content")  # fmt: skip
            pcm = samples_of(said.content[0].audio)  # type: ignore[union-attr]
            await self._listening.add(pcm, Item(name, said.role, True), event.previous_item_id)
            return
        text = "\n".join(part.text for part in said.content)  # type: ignore[union-attr]
        item = typed(name, said.role, text, self._server.info)
        await self._listening.show(item, event.previous_item_id)

    async def _truncate(self, event: ItemTruncate) -> None:
        item, info = self._talk.find(event.item_id), self._server.info
        if self._answer is not None and item is self._answer.item:
            await self._stop("client_cancelled")
        num_samples = event.audio_end_ms * info.sample_rate_hz // 1000
        if item.role != "assistant" or not item.spoken or num_samples > item.num_samples:
            made = item.num_samples * 1000 // info.sample_rate_hz
            raise ApiError(
                400, f"The item has {made} ms of answered sound; give audio_end_ms up to that.",
                "invalid_value", param="audio_end_ms",
            )  # fmt: skip
        item.cut(num_samples, info)
        place = {"item_id": item.id, "content_index": 0}
        await self._emit("conversation.item.truncated", **place, audio_end_ms=event.audio_end_ms)

    def _value(self) -> dict[str, Any]:
        info = self._server.info
        return self._session.value(info.voices, info.recogniser)

    async def _refuse(self, error: ApiError, event_id: str | None) -> None:
        self._server.refused(error)
        await self._emit("error", error={**error.value(), "event_id": event_id})

    async def _emit(self, kind: str, **fields: Any) -> None:
        """Tell the client, unless it is gone, which `serve` is about to hear, too. What still runs
        when it has left ends here: `wait_for` may swallow that it was cancelled."""
        if self._left:
            raise WebSocketDisconnect(1006)
        event = {"type": kind, "event_id": f"event_{secrets.token_hex(10)}", **fields}
        said = self._socket.send_text(json.dumps(event, ensure_ascii=False))
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await asyncio.wait_for(said, SEND_S)


async def converse(server: Server, socket: WebSocket) -> None:
    """A WebSocket from its being asked for to its end; one that is refused gets an HTTP answer."""
    with contextlib.ExitStack() as held:
        try:
            caller = server.access.caller(socket.scope)  # type: ignore[arg-type]
            caller.call()
            server.check_model(socket.query_params.get("model", server.model))
            held.enter_context(caller.connection())
        except ApiError as error:
            server.refused(error)
            await socket.send_denial_response(error.response())
            return
        offered = socket.scope.get("subprotocols", ())
        await socket.accept("realtime" if "realtime" in offered else None)
        await Connection(server, caller, socket).serve()
