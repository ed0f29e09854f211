"""One realtime WebSocket: the client's events in their order, and what they bring about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import MossError
from moss_engine.api.transcript import Transcript
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import FRAME_S, LEAST_SPEECH_S, MEANT_S, Change, interrupts
from moss_engine.audio.voice_activity import Detector
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
from moss_engine.endpoints.realtime.listening import (
    RATE_HZ,
    Heard,
    Listening,
    event_id_of,
    samples_of,
)
from moss_engine.endpoints.realtime.session import Session
from moss_engine.endpoints.replies import SEND_S
from moss_engine.endpoints.server import Server

MAX_HELD = 16 << 20
"""Characters of a client's events that may wait for the ones before them."""
READ_AGAIN_S = 0.02
GOES_ON_S = 1.2
"""Who goes on so soon behind the judged end of a turn had not finished it."""
UNHEARD_S = 0.6
"""Nor had who goes on over the beginning of the answer."""
WEIGH_EVERY_S = 0.16
"""Speech over an answer between two looks at its words."""
SAYING_CHARS = 200
GONE = (WebSocketDisconnect, asyncio.TimeoutError)
KINDS = {
    "system": {"input_text"},
    "user": {"input_text", "input_audio"},
    "assistant": {"output_text"},
}


@dataclass(frozen=True)
class Judged:
    """A turn that ended at `ended_ms`, int16 [n]."""

    item: Item
    pcm: np.ndarray
    ended_ms: int


@dataclass(frozen=True)
class Ahead:
    """An answer that was begun at a pause, to `item` behind the items `before`."""

    answer: Answer
    task: asyncio.Task[None]
    item: Item
    before: tuple[Item, ...]
    session: Session
    begun_s: float


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
        self._listening = Listening(server, self._talk, self._emit, self._turn_over, self._pausing)
        self._ahead: Ahead | None = None
        self._thrown: set[asyncio.Task[None]] = set()  # answers ahead that end without a trace
        self._judged: Judged | None = None  # the last turn, which may go on yet
        self._doubted: Heard | None = None  # speech over an answer that may be a murmur
        self._weighing: asyncio.Task[None] | None = None
        self._saying: Answer | None = None  # what is heard, or was last

    async def serve(self) -> None:
        """Until the client leaves, which is noticed whatever its events wait for."""
        serving = [asyncio.create_task(self._read()), asyncio.create_task(self._act_on_all())]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._left = True
            self._came.set()
            self._listening.close()
            ahead = self._ahead.task if self._ahead else None
            found = filter(None, [self._answering, self._weighing, ahead])
            tasks = [*serving, *self._turns, *self._thrown, *found]
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
            judges = self._server.info.recogniser is not None
            self._session = replace(self._session, vad=True, judges=judges)
            self._find_turns(detector)
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
            self._forget_turn()
            await self._listening.commit()
        elif isinstance(event, BufferClear):
            self._forget_turn()
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
        before, self._session = self._session, session
        if session.finding != before.finding:
            self._find_turns(detector)
        self._listening.transcribes = session.transcribes
        await self._emit("session.updated", session=self._value())
        if refused:
            sentence = (
                f"The model {self._server.model!r} answers by a fixed system turn; "
                "the instructions were left out, all else was taken."
            )
            await self._refuse(
                ApiError(400, sentence, "fixed_system", param=refused), event.event_id
            )

    def _find_turns(self, detector: Detector | None) -> None:
        session = self._session
        self._listening.judge = Judge(session.eagerness) if session.judges else None
        self._listening.use(
            detector, likely=session.threshold, lead_s=session.lead_s, end_s=session.end_s
        )
        self._forget_turn()

    def _forget_turn(self) -> None:
        """What is being said is no turn that the service finds any more."""
        self._judged = self._doubted = None
        self._drop_ahead()

    async def _hear(self, event: BufferAppend) -> None:
        answering = self._answer is not None or time.monotonic() < self._plays_until_s
        for heard in await self._listening.push(samples_of(event.audio), answering=answering):
            await self._turn(heard)

    async def _turn(self, heard: Heard) -> None:
        """Somebody began, paused or stopped to talk."""
        if heard.change is Change.BEGAN:
            await self._began(heard)
        elif self._doubted is not None:
            if heard.change in (Change.ENDED, Change.DROPPED):
                await self._end_of_doubt(heard)
        elif heard.change is Change.PAUSED and heard.pcm is not None:
            self._listening.look(heard.pcm)
        elif heard.change is Change.WENT_ON:
            self._listening.stop_looking()
            self._drop_ahead()
        else:
            await self._ended(heard)

    async def _ended(self, heard: Heard) -> None:
        await self._listening.tell(heard)
        if heard.pcm is not None:
            self._judged = Judged(self._listening.item, heard.pcm, heard.ms)

    async def _began(self, heard: Heard) -> None:
        session = self._session
        answering = self._answer is not None or time.monotonic() < self._plays_until_s
        if self._goes_on(heard):
            await self._mend(heard)
        elif answering and session.judges and session.interrupts and self._server.info.recogniser:
            self._doubted = heard
            self._weighing = asyncio.create_task(self._weigh(heard))
        else:
            await self._interrupt(heard)

    async def _interrupt(self, heard: Heard) -> None:
        """No sound follows what tells of an interruption."""
        self._doubted = None
        if self._session.interrupts:
            self._plays_until_s = 0.0
            if self._answer is not None:
                self._answer.cancel("turn_detected")
        await self._listening.tell(heard)

    async def _weigh(self, doubted: Heard) -> None:
        """Speech over an answer interrupts it once its words, or its length, say that it is meant;
        until then nothing is told of it."""
        microphone, weighed_s = self._listening.microphone, 0.0
        while self._doubted is doubted:
            spoken_s = microphone.spoken_s
            if spoken_s < weighed_s + WEIGH_EVERY_S:
                await asyncio.sleep(FRAME_S)
                continue
            weighed_s = spoken_s
            found = await self._listening.heard_so_far(microphone.sound)
            if self._doubted is doubted and self._meant(found, spoken_s):
                await self._interrupt(doubted)

    def _meant(self, found: Transcript | None, spoken_s: float) -> bool:
        if found is None:
            return spoken_s >= MEANT_S
        saying = self._saying.item.transcript if self._saying else ""
        return interrupts(found.text, spoken_s, saying[-SAYING_CHARS:])

    async def _end_of_doubt(self, heard: Heard) -> None:
        doubted, spoken_s = self._doubted, heard.spoken_s
        self._doubted = None
        if doubted is None or heard.pcm is None or spoken_s < LEAST_SPEECH_S:
            return
        if self._meant(await self._listening.heard_so_far(heard.pcm), spoken_s):
            await self._interrupt(doubted)
            await self._ended(heard)

    def _goes_on(self, heard: Heard) -> bool:
        """Whether the last turn was not over when it was judged to be."""
        judged, answer = self._judged, self._answer
        if judged is None or not self._session.judges or not self._session.interrupts:
            return False
        if judged.item in self._asked or judged.item is not self._talk.last_of_user():
            return False
        if len(judged.pcm) > self._listening.microphone.max_s * RATE_HZ / 2:
            return False
        soon = heard.ms - judged.ended_ms <= 1000 * GOES_ON_S
        first_s = answer.first_sound_s if answer else None
        unheard = answer is not None and first_s is None
        return soon or unheard or (first_s is not None and time.monotonic() - first_s <= UNHEARD_S)

    async def _mend(self, heard: Heard) -> None:
        """Both parts become one turn, as if the first one had not been answered."""
        judged, answer = self._judged, self._answer
        assert judged is not None
        self._judged = None
        self._server.figures.mended.inc()
        for turn in self._turns:
            turn.cancel()
        self._listening.forget(judged.item)
        self._drop_ahead()
        self._listening.microphone.continues(judged.pcm)
        answered = answer or self._saying
        await self._interrupt(heard)
        if answer is not None:
            await ended(self._answering)
        behind = self._talk.items[self._talk.items.index(judged.item) :]
        for item in behind:
            if item is judged.item or (answered is not None and item is answered.item):
                self._talk.delete(item.id)
                await self._emit("conversation.item.deleted", item_id=item.id)

    async def _pausing(self, item: Item) -> None:
        """The turn was understood as far as it goes: its answer is begun, but not told. Never
        where somebody waits for a place, or has no sound in store."""
        session = self._session
        if not (session.vad and session.answers) or self._answer is not None or self._doubted:
            return
        engine = (await self._server.service.stats()).engine
        if engine.waiting or engine.running >= self._server.info.max_sessions:
            return
        if item in self._talk.items or not self._server.figures.all_in_store():
            return
        talk = Conversation()
        talk.items = [*self._talk.items, item]
        answer = Answer(self._server, self._caller, session, talk, self._emit, ahead=True)
        self._drop_ahead()
        task = asyncio.create_task(answer.run())
        self._ahead = Ahead(answer, task, item, tuple(self._talk.items), session, time.monotonic())

    def _drop_ahead(self) -> None:
        """As if it had never been."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.answer.cancel("turn_detected")
            self._thrown.add(ahead.task)
            ahead.task.add_done_callback(self._thrown.discard)
            self._server.figures.ahead.labels("thrown_away").inc()
            self._server.figures.ahead_wasted.inc(time.monotonic() - ahead.begun_s)

    def _take_ahead(self) -> Ahead | None:
        """The answer that was begun to what is asked now."""
        ahead = self._ahead
        fits = (
            ahead is not None
            and ahead.session is self._session
            and tuple(self._talk.items) == (*ahead.before, ahead.item)
            and not ahead.answer.failed
        )
        if not fits:
            self._drop_ahead()
            return None
        self._ahead = None
        self._server.figures.ahead.labels("released").inc()
        return ahead

    def _turn_over(self, item: Item) -> None:
        """A turn that was found by the service was understood: it is answered when its time comes,
        unless the client asked for that itself."""
        if self._session.vad and self._session.answers and item not in self._asked:
            turn = asyncio.create_task(self._answer_turn(item))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _answer_turn(self, item: Item) -> None:
        while self._answer is not None:  # another turn may have waited for it, too
            await ended(self._answering)
        if item in self._talk.items:
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
        ahead = self._take_ahead()
        if ahead is not None:
            answer, running = ahead.answer, self._release(ahead)
        else:
            answer = Answer(self._server, self._caller, session, self._talk, self._emit)
            running = self._run(answer, asked)
        self._answer = self._saying = answer
        self._answering = asyncio.create_task(running)

    async def _release(self, ahead: Ahead) -> None:
        answer, begun_s = ahead.answer, time.monotonic()
        try:
            await answer.release(self._talk)
            await ahead.task
        except ApiError as error:
            answer.cancel("client_cancelled")
            await self._refuse(error, None)
        finally:
            ahead.task.cancel()
            self._plays_until_s = 0.0 if answer.cancelled else begun_s + answer.sent_s
            self._answer = None

    async def _run(self, answer: Answer, asked: Item | None) -> None:
        begun_s = time.monotonic()
        try:
            if self._thrown:  # the place that they held is needed
                await asyncio.wait(set(self._thrown))
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
