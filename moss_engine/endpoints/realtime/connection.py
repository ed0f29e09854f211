"""One realtime session: the client's events in their order, and what they bring about."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import MossError
from moss_engine.api.request import Message, Text, ToolCall
from moss_engine.api.transcript import Transcript
from moss_engine.audio.g711 import Decoder
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import FRAME_S, LEAST_SPEECH_S, MEANT_S, Change, interrupts
from moss_engine.audio.voice_activity import Detector
from moss_engine.endpoints import access
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import check_size, without_effect
from moss_engine.endpoints.errors import ApiError, of_moss, of_validation
from moss_engine.endpoints.realtime.answer import Answer, ended, first_of
from moss_engine.endpoints.realtime.conversation import Conversation, Item, typed
from moss_engine.endpoints.realtime.fields import (
    CLIENT_EVENT,
    BufferAppend,
    BufferClear,
    BufferCommit,
    CallFields,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    MessageFields,
    OutputClear,
    OutputFields,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    read_response,
)
from moss_engine.endpoints.realtime.listening import (
    RATE_HZ,
    Heard,
    Listening,
    bytes_of,
    event_id_of,
    samples_of,
    whole_samples,
)
from moss_engine.endpoints.realtime.session import LAWS, Session, settled, warning
from moss_engine.endpoints.realtime.wire import GONE, SocketWire, Wire
from moss_engine.endpoints.replies import SEND_S
from moss_engine.endpoints.server import Server

MAX_HELD = 16 << 20
"""Characters of a client's events that may wait for the ones before them."""
MAX_SETTINGS = 512 * 1024
"""Characters of an event that sets something, which is read several times."""
READ_AGAIN_S = 0.02
GOES_ON_S = 1.2
"""Who goes on so soon behind the judged end of a turn had not finished it."""
UNHEARD_S = 0.6
"""Nor had who goes on over the beginning of the answer."""
WEIGH_EVERY_S = 0.16
"""Speech over an answer between two looks at its words."""
SAYING_CHARS = 200
KINDS = {
    "system": ({"input_text"},),
    "user": ({"input_text"}, {"input_audio"}),
    "assistant": ({"output_text", "text"}, {"output_audio", "audio"}),
}
GREETING = "Hello."
"""What is answered where somebody wants an answer before anything was said."""
STILL_THERE = "Are you still there?"
"""What is asked after `idle_timeout_ms` of silence."""
IDLE_LOOK_S = 0.1


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

    def __init__(
        self, server: Server, caller: Caller, wire: Wire, settings: dict[str, Any] | None = None
    ):
        self._server = server
        self._caller = caller
        self._wire = wire
        self._settings = settings or {}
        self._talk = Conversation()
        self._session = Session(f"sess_{secrets.token_hex(12)}", server.model)
        self._answer: Answer | None = None
        self._answering: asyncio.Task[None] | None = None
        self._plays_until_s = 0.0
        self._asked: set[Item] = set()  # recordings that the client itself asked to be answered
        self._turns: set[asyncio.Task[None]] = set()  # found turns that are about to be answered
        self._said: deque[str | bytes | np.ndarray] = (
            deque()
        )  # the client's events that nothing was done about
        self._came = asyncio.Event()
        self._left = False
        self._listening = Listening(server, self._talk, self._emit, self._turn_over, self._pausing)
        self._ahead: Ahead | None = None
        self._thrown: set[asyncio.Task[None]] = set()  # answers ahead that end without a trace
        self._judged: Judged | None = None  # the last turn, which may go on yet
        self._doubted: Heard | None = None  # speech over an answer that may be a murmur
        self._weighing: asyncio.Task[None] | None = None
        self._saying: Answer | None = None  # what is heard, or was last
        self._decoder: Decoder | None = None  # of what is not sent as PCM
        self._quiet_since_s = 0.0  # when somebody spoke last
        self._idling: asyncio.Task[None] | None = None

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
            found = filter(None, [self._answering, self._weighing, self._idling, ahead])
            tasks = [*serving, *self._turns, *self._thrown, *found]
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self._caller.num_held -= sum(map(len, self._said))
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end

    async def _read(self) -> None:
        """The client's events as they come, few enough of them to be held, until it leaves."""
        while (said := await self._wire.receive()) is not None:
            while self._said and (
                sum(map(len, self._said)) + len(said) > MAX_HELD or not self._has_room(said)
            ):
                self._came.set()
                await asyncio.sleep(READ_AGAIN_S)
            if not self._has_room(said):
                full = "Your connections hold many events that wait; send less at a time."
                await self._refuse(ApiError(429, full, "events_exceeded"), None)
                return
            self._caller.num_held += len(said)
            self._said.append(said)
            self._came.set()

    def _has_room(self, said: str | bytes | np.ndarray) -> bool:
        return self._caller.num_held + len(said) <= access.MAX_HELD

    async def _act_on_all(self) -> None:
        await self._greet()
        while not self._left:
            await self._came.wait()
            self._came.clear()
            while self._said:
                said = self._said.popleft()
                try:
                    await self._take(said)
                finally:
                    self._caller.num_held -= len(said)

    async def _greet(self) -> None:
        detector = await self._listening.detector()
        if detector is not None:
            judges = self._server.info.recogniser is not None
            self._session = replace(self._session, vad=True, judges=judges)
            self._find_turns(detector)
        await self._update("session.created", self._settings)

    async def _take(self, said: str | bytes | np.ndarray) -> None:
        """One event of the client; what is wrong with it is told, and the session goes on."""
        event_id = None
        try:
            if isinstance(said, np.ndarray):
                await self._hear(said)
                return
            check_size(said)
            event = CLIENT_EVENT.validate_json(said)
            event_id = event.event_id
            if isinstance(event, SessionUpdate | ResponseCreate) and len(said) > MAX_SETTINGS:
                raise ApiError(
                    413, f"{event.type} is larger than {MAX_SETTINGS // 1024} kB; send less.",
                    "body_too_large",
                )  # fmt: skip
            await self._act(event)
        except ValidationError as error:
            await self._refuse(of_validation(error), event_id_of(said))  # type: ignore[arg-type]
        except ApiError as error:
            await self._refuse(error, event_id)
        except MossError as error:
            await self._refuse(of_moss(error), event_id)

    async def _act(self, event: Any) -> None:
        if isinstance(event, BufferAppend):
            await self._hear(self._samples(event.audio))
        elif isinstance(event, BufferCommit):
            self._forget_turn()
            if self._decoder is not None:
                await self._hear(self._decoder.flush())
            await self._listening.commit()
        elif isinstance(event, BufferClear):
            self._forget_turn()
            self._listening.clear()
            await self._emit("input_audio_buffer.cleared")
        elif isinstance(event, SessionUpdate):
            said, earlier = event.session, event.type == "transcription_session.update"
            said = {**said, "type": "transcription"} if earlier else said
            await self._update(f"{event.type}d", said, event.event_id)
        elif isinstance(event, ResponseCreate):
            await self._respond(event)
        elif isinstance(event, ResponseCancel):
            await self._cancel(event)
        elif isinstance(event, OutputClear):
            await self._stop("client_cancelled")
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

    async def _update(self, told: str, said: dict[str, Any], event_id: str | None = None) -> None:
        ignored, refused = await self._settle(said)
        await self._emit(told, session=self._value(), **warning(ignored))
        for error in refused:
            await self._refuse(error, event_id)

    async def _settle(self, said: dict[str, Any]) -> tuple[list[str], list[ApiError]]:
        """Take what a client says of the session, as far as it can be had; the fields without
        effect, and what is wrong with others."""
        before = self._session
        session, ignored, refused = settled(self._server, before, said)
        if self._wire.plays and session.sounds_as != "audio/pcm":
            ignored.append("audio.output.format")
            session = replace(session, sounds_as="audio/pcm")
        detector = None
        if session.vad:
            try:
                detector = await self._listening.detector(needed=True)
            except MossError as error:
                refused.append(of_moss(error, "session.audio.input.turn_detection"))
                session = replace(session, vad=False)
        self._session = session
        if session.finding != before.finding:
            self._find_turns(detector)
        if session.hears_as != before.hears_as:
            law = LAWS.get(session.hears_as)
            self._decoder = Decoder(law, RATE_HZ) if law else None
        if session.idle_s is not None and self._idling is None:
            self._idling = asyncio.create_task(self._ask_when_idle())
        self._listening.transcribes = session.transcribes
        return ignored, refused

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

    def _samples(self, audio: str) -> np.ndarray:
        """int16 [n] at `RATE_HZ` of base64 in the session's format."""
        if self._decoder is not None:
            return self._decoder.push(bytes_of(audio))
        return samples_of(audio)

    async def _hear(self, pcm: np.ndarray) -> None:
        answering = self._answer is not None or time.monotonic() < self._plays_until_s
        for heard in await self._listening.push(pcm, answering=answering):
            self._quiet_since_s = time.monotonic()
            await self._turn(heard)

    async def _ask_when_idle(self) -> None:
        """After the session's `idle_s` of silence behind an answer somebody is asked for a word."""
        while True:
            await asyncio.sleep(IDLE_LOOK_S)
            idle_s, answered = self._session.idle_s, self._saying
            if idle_s is None or answered is None or self._answer is not None or self._turns:
                continue
            since_s = max(self._quiet_since_s, self._plays_until_s)
            if self._listening.microphone.talking or time.monotonic() - since_s < idle_s:
                continue
            self._quiet_since_s = time.monotonic()
            now_ms = self._listening.microphone.now_ms
            await self._emit(
                "input_audio_buffer.timeout_triggered",
                audio_start_ms=max(0, now_ms - round(1000 * idle_s)),
                audio_end_ms=now_ms,
                item_id=answered.item.id,
            )
            if self._session.answers and self._server.info.reading_mode is not None:
                await self._begin(replace(self._session, instead=STILL_THERE, reads=True))

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
            await self._hush()
        await self._listening.tell(heard)

    async def _hush(self) -> None:
        """Nothing more of an answer is played, where the wire does that, and no more is history."""
        played, saying = self._wire.hush(), self._saying
        if played is None or saying is None:
            return
        item, info = saying.item, self._server.info
        if item in self._talk.items and played < item.num_samples:
            item.cut(played, info)
            ms = played * 1000 // info.sample_rate_hz
            place = {"item_id": item.id, "content_index": 0}
            await self._emit("conversation.item.truncated", **place, audio_end_ms=ms)

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
            if item is judged.item or (answered is not None and item in answered.items):
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
        session, ignored = self._session, list[str]()
        if session.transcription:
            raise ApiError(
                400, "This session writes down what is said; open one of the type realtime for "
                "answers.", "invalid_value", param="session.type",
            )  # fmt: skip
        own = self._server.own_system
        instructions = ""
        if event.response is not None:
            fields = read_response(event.response)
            ignored = without_effect(fields)
            output = fields.audio.output if fields.audio else None
            if output is not None and output.voice is not None:
                self._server.check_voice(output.voice, "response.audio.output.voice")
            instructions = fields.instructions or ""
            if instructions and not own:
                ignored.append("instructions")
            session = session.answering(fields)
            if not own:
                session = replace(session, instructions="")
        if instructions and own and not self._talk.is_asked:
            # They are what is wanted, and not how an answer is to be given.
            session = replace(
                session, instead=instructions, instructions=self._session.instructions
            )
        if self._wire.plays:
            session = replace(session, sounds_as="audio/pcm")
        asked = self._talk.last_of_user()
        if asked is None:
            session = replace(session, instead=session.instead or GREETING)
        else:
            self._asked.add(asked)
        await self._begin(session, asked, ignored)

    async def _begin(
        self, session: Session, asked: Item | None = None, ignored: list[str] | None = None
    ) -> None:
        if session == self._session:
            ahead = self._take_ahead()
        else:
            ahead = None
            self._drop_ahead()
        if ahead is not None:
            answer, running = ahead.answer, self._release(ahead)
        else:
            answer = Answer(
                self._server, self._caller, session, self._talk, self._emit, ignored=ignored
            )
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
            self._over(answer, begun_s)

    def _over(self, answer: Answer, begun_s: float) -> None:
        self._plays_until_s = 0.0 if answer.cancelled else begun_s + answer.sent_s
        self._quiet_since_s = time.monotonic()
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
            self._over(answer, begun_s)

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
        await self._hush()
        await ended(self._answering)

    async def _create(self, event: ItemCreate) -> None:
        said, after = event.item, event.previous_item_id
        name = said.id or f"item_{secrets.token_hex(12)}"
        if isinstance(said, MessageFields):
            await self._write(said, name, after)
            return
        mode = self._server.mode_for(False, speaks=self._session.speaks)
        if isinstance(said, CallFields):
            call = ToolCall(said.call_id, said.name, said.arguments)
            item = Item(name, "assistant", False, call=call)
        else:
            assert isinstance(said, OutputFields)
            item = Item(name, "tool", False, text=said.output)
            item.call = ToolCall(said.call_id, "", "")
        self._server.check_tools(mode, (Message("tool", Text(""), call_id=said.call_id),), None)
        await self._listening.show(item, after)

    async def _write(self, said: MessageFields, name: str, after: str | None) -> None:
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
            pcm = whole_samples(audio, LAWS.get(self._session.hears_as))
            await self._listening.add(pcm, Item(name, said.role, True), after)
            return
        text = "\n".join(part.text for part in said.content)  # type: ignore[union-attr]
        item = typed(name, said.role, text, self._server.info)
        ignored = ["system"] if said.role == "system" and not self._server.own_system else []
        await self._listening.show(item, after, ignored)

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
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await asyncio.wait_for(self._wire.send(event), SEND_S)


EARLIER_PROTOCOL = "openai-beta.realtime-v1"


async def converse(server: Server, socket: WebSocket) -> None:
    """A WebSocket from its being asked for to its end; one that is refused gets an HTTP answer."""
    asked = socket.query_params
    with contextlib.ExitStack() as held:
        try:
            caller, settings = server.access.of_realtime(socket.scope)  # type: ignore[arg-type]
            caller.call()
            server.check_model(asked.get("model", server.model))
            held.enter_context(caller.connection())
        except ApiError as error:
            server.refused(error)
            await socket.send_denial_response(error.response())
            return
        if asked.get("intent") == "transcription":
            settings = {"type": "transcription", **settings}
        offered = socket.scope.get("subprotocols", ())
        earlier = EARLIER_PROTOCOL in offered or "openai-beta" in socket.headers
        await socket.accept("realtime" if "realtime" in offered else None)
        wire = SocketWire(socket, earlier=earlier)
        await Connection(server, caller, wire, settings).serve()
