"""The responses of a realtime session, one at a time and some apart from the conversation: the
events of a reply as the events of the interface."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moss_engine.api.errors import UNFORESEEN, MossError, ReplyFaultError, error_of
from moss_engine.api.events import (
    AudioChunk,
    Called,
    Event,
    Failed,
    Finished,
    FinishReason,
    TextDelta,
)
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import ReplyStream
from moss_engine.audio.g711 import Encoder
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.playback import char_places
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.ahead import Ahead
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.realtime.conversation import Conversation, Item, new_item_id
from moss_engine.endpoints.realtime.session import FORMATS, LAWS, Session, warning
from moss_engine.endpoints.realtime.wire import GONE, Wire
from moss_engine.endpoints.replies import Usage, first_of, word_value
from moss_engine.endpoints.server import Server

log = logging.getLogger(__name__)
Emit = Callable[..., Awaitable[None]]
Ready = Callable[[], Coroutine[Any, Any, None]]


class Answer:
    """One response to `asked`; `run` makes it. `session` holds its settings.

    `sent_s` seconds of sound were sent so far; `over`: only `response.done` is left to be sent;
    `unwanted` is set when it is cancelled. It may have been begun `ahead`. `ignored` are fields
    that have no effect on it.
    """

    def __init__(
        self,
        responses: Responses,
        session: Session,
        asked: Conversation,
        ignored: list[str] | None = None,
    ):
        self.id = f"resp_{secrets.token_hex(12)}"
        self.item = Item(new_item_id(), "assistant", session.speaks)
        self.over = False
        self.unwanted = asyncio.Event()
        self._server, self._caller = responses.server, responses.caller
        self._emit, self._ahead = responses.emit, responses.ahead
        self._session = session
        self._asked = asked
        self._talk = Conversation() if session.apart else responses.talk
        self.first_sound_s: float | None = None
        self._reply: ReplyStream | None = None
        self._why_cancelled = ""
        self._shown = False
        self._ignored = ignored or []
        self._calls: list[Item] = []
        law = LAWS.get(session.sounds_as)
        self._encoder = Encoder(law, self._server.info.sample_rate_hz) if law else None
        self._usage = Usage(self._server.info.ids)

    @property
    def sent_s(self) -> float:
        return self.item.num_samples / self._server.info.sample_rate_hz

    @property
    def items(self) -> list[Item]:
        """The items that it consists of."""
        return [*([self.item] if self._shown else []), *self._calls]

    @property
    def cancelled(self) -> bool:
        return self.unwanted.is_set()

    def cancel(self, reason: str) -> None:
        """Send nothing more of it; `run` ends soon."""
        self._why_cancelled = self._why_cancelled or reason
        self.unwanted.set()
        if self._reply is not None:
            self._reply.cancel()

    async def run(self) -> None:
        """Begin, answer and end; errors become the response's status."""
        told = self._value("in_progress")
        await self._emit("response.created", response=told, **warning(self._ignored))
        status, details = "failed", None
        try:
            if self.cancelled:  # before there was anything to answer
                status, details = "cancelled", self._cancelled()
            else:
                with self._caller.place():
                    finished = await self._follow()
                status, details = self._end(finished)
        except (MossError, ApiError) as error:
            details = self._refused(of_moss(error))
        except TimeoutError:  # of a client that takes nothing any more
            raise
        except Exception:
            log.exception("an answer failed")
            details = self._refused(of_moss(ReplyFaultError(UNFORESEEN)))
        self.item.status = "completed" if status == "completed" else "incomplete"
        if self._shown:
            await self._close()
        self.over = True
        await self._emit("response.done", response=self._value(status, details))

    def _refused(self, refusal: ApiError) -> dict[str, Any]:
        """The details of a response that failed."""
        self._server.refused(refusal)
        return {"type": "failed", "error": refusal.value()}

    def request(self) -> Request:
        """The request for the service; raises ApiError or MossError."""
        session, server = self._session, self._server
        if session.reads and server.info.reading_mode is not None:
            mode, tools = server.info.reading_mode, None
            messages = (Message("user", Text(session.instead)),)
        else:
            spoken = not session.instead and self._asked.last_said().spoken
            mode, tools = server.mode_for(spoken, speaks=session.speaks), session.offered
            messages = self._asked.messages(mode, session.instructions, session.instead)
        return server.request(
            self._caller,
            messages,
            mode,
            server.sampling(None if session.apart else self._ahead.seed, max_rows=session.max_rows),
            voice=session.voice,
            speed=session.speed,
            truncate_history=True,
            tools=tools,
        )

    async def _follow(self) -> Finished:
        """Handle all events of the reply; a cancelled one is followed to its end, for its rows."""
        request = self._usage.request = self.request()
        self._caller.call()
        begun = None if self._session.apart else await self._ahead.take(request)
        self._reply = begun or await self._server.service.submit(request)
        if self.cancelled:
            self._reply.cancel()
        try:
            if request.tools is None:
                await self._show()
            async with aclosing(self._reply.events()) as events:
                async for event in events:
                    self._usage.take(event)
                    if isinstance(event, Failed):
                        raise error_of(event.code, event.message)
                    if isinstance(event, Finished):
                        if not self._calls:
                            await self._show()
                        return event
                    await self._take(event)
        finally:
            self._reply.cancel()  # where nobody began to listen nothing else would
        raise AssertionError("a reply ended without its last event")

    async def _take(self, event: Event) -> None:
        if self.cancelled:
            return
        if isinstance(event, Called):
            await self._call(event)
        elif isinstance(event, TextDelta):
            await self._show()
            await self._say(event)
        elif isinstance(event, AudioChunk):
            await self._show()
            self.item.num_samples = event.start_sample + len(event.samples)
            if self.first_sound_s is None:
                self.first_sound_s = time.monotonic()
            pcm = to_pcm16(event.samples)
            await self._sound(
                self._encoder.push(pcm) if self._encoder else pcm.astype("<i2").tobytes()
            )
            if self._reply is not None:
                self._reply.acknowledge(self.item.num_samples)

    async def _sound(self, data: bytes) -> None:
        if data and self._session.speaks:
            delta = base64.b64encode(data).decode()
            await self._part("response.output_audio.delta", delta=delta)

    async def _call(self, event: Called) -> None:
        """A function is called: it gets an item of its own."""
        item = Item(new_item_id(), "assistant", False, "in_progress")
        item.call = event.call
        before, index = self._talk.add(item), len(self.items)
        self._calls.append(item)
        await self._tell_item("added", item, before, index)
        said = {"response_id": self.id, "output_index": index}
        said |= {"item_id": item.id, "call_id": event.call.id}
        kind, arguments = "response.function_call_arguments", event.call.arguments
        await self._emit(f"{kind}.delta", **said, delta=arguments)
        await self._emit(f"{kind}.done", **said, name=event.call.name, arguments=arguments)
        item.status = "completed"
        await self._tell_item("done", item, before, index)

    async def _tell_item(self, how: str, item: Item, before: str | None, index: int = 0) -> None:
        told, place = item.value(), {"response_id": self.id, "output_index": index}
        await self._emit(f"response.output_item.{how}", **place, item=told)
        if not self._session.apart:
            await self._emit(f"conversation.item.{how}", previous_item_id=before, item=told)

    async def _say(self, event: TextDelta) -> None:
        if self._session.speaks:
            self.item.words.append((event.start_sample, event.text))
            rate_hz = self._server.info.sample_rate_hz
            start_ms = round(1000 * self._place_of_last() / rate_hz)
            kind = "response.output_audio_transcript.delta"
            await self._part(kind, delta=event.text, start_ms=start_ms)
        else:
            self.item.text += event.text
            await self._part("response.output_text.delta", delta=event.text)

    def _place_of_last(self) -> float:
        """The sample at which the latest words are spoken; several may come with one start."""
        start = self.item.words[-1][0]
        words = [(at, text) for at, text in self.item.words if at == start]
        places = char_places(words, self._server.info.sample_rate_hz)
        return places[-1 - len(words[-1][1])]

    def _end(self, finished: Finished) -> tuple[str, dict[str, Any] | None]:
        """Status and details; what was sampled but not sent is removed from the item."""
        self.item.rows = finished.rows
        if finished.reason is FinishReason.CANCELLED:
            if self._session.speaks:
                self.item.cut(self.item.num_samples, self._server.info)
            return "cancelled", self._cancelled()
        if finished.reason is FinishReason.LENGTH:
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        return "completed", None

    def _cancelled(self) -> dict[str, Any]:
        return {"type": "cancelled", "reason": self._why_cancelled or "client_cancelled"}

    async def _show(self) -> None:
        """Announce the item and its one part, if that was not done yet."""
        if self._shown:
            return
        self.item.status = "in_progress"
        before = self._talk.add(self.item)
        self._shown = True
        await self._tell_item("added", self.item, before)
        kind = {"type": "audio", "transcript": ""} if self._session.speaks else None
        part = kind or {"type": "text", "text": ""}
        await self._part("response.content_part.added", part=part)

    async def _close(self) -> None:
        """Send the complete item."""
        if self._session.speaks:
            if self._encoder is not None and not self.cancelled:
                await self._sound(self._encoder.push(np.empty(0, np.int16), last=True))
            transcript = self.item.transcript
            timed = self.item.timed(self._server.info.sample_rate_hz)
            told = {"transcript": transcript, "words": list(map(word_value, timed))}
            await self._part("response.output_audio.done")
            await self._part("response.output_audio_transcript.done", **told)
            part = {"type": "audio", "transcript": transcript}
        else:
            await self._part("response.output_text.done", text=self.item.text)
            part = {"type": "text", "text": self.item.text}
        await self._part("response.content_part.done", part=part)
        known = self.item in self._talk.items
        await self._tell_item("done", self.item, self._talk.before(self.item) if known else None)

    async def _part(self, kind: str, **fields: Any) -> None:
        place = {"response_id": self.id, "item_id": self.item.id}
        await self._emit(kind, **place, output_index=0, content_index=0, **fields)

    def _value(self, status: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
        voices = self._server.info.voices
        voice = self._session.voice or (voices[0] if voices else None)
        rows = self._session.max_rows
        over = status != "in_progress"
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.value() for item in self.items] if over else [],
            "conversation_id": None if self._session.apart else f"conv_{self._session.id}",
            "output_modalities": ["audio" if self._session.speaks else "text"],
            "max_output_tokens": "inf" if rows is None else rows,
            "audio": {"output": {"format": FORMATS[self._session.sounds_as], "voice": voice}},
            "usage": self._counted() if over else None,
            "metadata": self._session.metadata,
        }

    def _counted(self) -> dict[str, Any]:
        usage = self._usage
        return {
            "total_tokens": usage.total,
            "input_tokens": usage.prompt,
            "output_tokens": usage.sampled,
            "input_token_details": {**usage.asked, "image_tokens": 0},
            "output_token_details": usage.answered,
        }


@dataclass(eq=False)
class Responses:
    """`session` holds for the next response. `answer` is being made; `saying` is being played, or
    was last; `asked` are recordings for which the client itself asked for a response; `ahead` holds
    an answer that was begun before its turn was over. Responses that are `apart` are made beside
    the others."""

    server: Server
    caller: Caller
    wire: Wire
    talk: Conversation
    emit: Emit
    session: Session
    answer: Answer | None = None
    saying: Answer | None = None
    asked: set[Item] = field(default_factory=set)
    apart: dict[Answer, asyncio.Task[None]] = field(default_factory=dict)
    _answering: asyncio.Task[None] | None = None
    _turns: set[asyncio.Task[None]] = field(default_factory=set)  # found, about to be answered
    _plays_until_s: float = 0.0
    _spoken_s: float = 0.0  # when somebody spoke last

    def __post_init__(self) -> None:
        self.ahead = Ahead(self.server.service, self.server.figures)

    @property
    def playing(self) -> bool:
        """Whether an answer is being made or played."""
        return self.answer is not None or time.monotonic() < self._plays_until_s

    @property
    def idle_s(self) -> float:
        """Seconds of silence since the last answer was played; 0 while one is expected."""
        if self.saying is None or self.answer is not None or self._turns:
            return 0.0
        return time.monotonic() - max(self._spoken_s, self._plays_until_s)

    def spoken(self) -> None:
        """Somebody speaks, or is spoken to, now."""
        self._spoken_s = time.monotonic()

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """All running tasks."""
        yield from (*self._turns, *self.apart.values(), *filter(None, (self._answering,)))

    def find(self, response_id: str | None) -> Answer | None:
        """The response with this id, if it is being made; None: the one in the conversation."""
        made = [self.answer, *self.apart] if response_id else [self.answer]
        fitting = (one for one in made if one and not one.over and response_id in (None, one.id))
        return next(fitting, None)

    def begin(
        self,
        session: Session,
        ready: Ready | None = None,
        ignored: list[str] | None = None,
        asked: Conversation | None = None,
    ) -> None:
        """Answer what was said, or `asked`, once `ready` has finished. A response that is apart is
        made beside others, unless the wire can play only one."""
        answer = Answer(self, session, asked or self.talk, ignored)
        if self.is_beside(session):
            self.apart[answer] = task = asyncio.create_task(self._run_apart(answer, ready))
            task.add_done_callback(lambda _: self.apart.pop(answer))
            return
        self.answer = self.saying = answer
        self._answering = asyncio.create_task(self._run(answer, ready))

    def is_beside(self, session: Session) -> bool:
        """Whether a response may be made while another one is."""
        return session.apart and not (session.speaks and self.wire.plays)

    async def over(self) -> None:
        """Wait until the current answer is complete."""
        if self._answering is not None:
            await asyncio.wait({self._answering})

    async def stop(self, reason: str) -> None:
        if self.answer is not None:
            self.answer.cancel(reason)
        await self.hush()
        await self.over()

    async def interrupt(self) -> None:
        """Somebody speaks: cancel the answer, which ends soon."""
        self._plays_until_s = 0.0
        if self.answer is not None:
            self.answer.cancel("turn_detected")
        await self.hush()

    async def hush(self) -> None:
        """Stop playback, where the wire plays, and cut the answer to what was played."""
        played, saying = self.wire.hush(), self.saying
        if played is None or saying is None:
            return
        item = saying.item
        if item in self.talk.items and played < item.num_samples:
            await self.cut(item, played, played * 1000 // self.server.info.sample_rate_hz)

    async def cut(self, item: Item, num_samples: int, ms: int) -> None:
        """Only so many samples of an answer, or milliseconds for the client, were heard."""
        item.cut(num_samples, self.server.info)
        place = {"item_id": item.id, "content_index": 0}
        await self.emit("conversation.item.truncated", **place, audio_end_ms=ms)

    def turn_over(self, item: Item) -> None:
        """A turn that the service found was understood: answer it when possible, unless the client
        asks for the response itself."""
        if self.session.answers and item not in self.asked:
            turn = asyncio.create_task(self._answer_turn(item))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    def forget_turns(self) -> None:
        """Do not answer the turns that were found."""
        for turn in self._turns:
            turn.cancel()

    def begin_ahead(self, item: Item) -> None:
        """The current turn is understood so far: begin its answer, without sending any of it."""
        session = self.session
        if not session.answers or self.answer is not None:
            return
        talk = Conversation([*self.talk.items, item])
        with contextlib.suppress(ApiError, MossError):  # which is told once it is asked for
            self.ahead.begin(Answer(self, session, talk).request())

    async def _answer_turn(self, item: Item) -> None:
        while self.answer is not None:  # another turn may have waited for it, too
            await self.over()
        if item in self.talk.items:
            self.begin(self.session)

    async def _run_apart(self, answer: Answer, ready: Ready | None) -> None:
        if ready is not None:
            await first_of(ready(), answer.unwanted.wait())
        with contextlib.suppress(*GONE):
            await answer.run()

    async def _run(self, answer: Answer, ready: Ready | None) -> None:
        begun_s = time.monotonic()
        try:
            if ready is not None:
                await first_of(ready(), answer.unwanted.wait())
            await answer.run()
        finally:
            self._ended(answer, begun_s)

    def _ended(self, answer: Answer, begun_s: float) -> None:
        plays_from_s = answer.first_sound_s or begun_s
        self._plays_until_s = 0.0 if answer.cancelled else plays_from_s + answer.sent_s
        self.spoken()
        self.answer = None
