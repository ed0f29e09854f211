"""The service that one can talk to: questions get answers as text, which the service below
speaks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from moss_engine.api.errors import (
    ALL_TAKEN,
    CLOSED,
    IN_USE,
    BusyError,
    EngineFaultError,
    InputError,
    MossError,
    ParameterError,
    ShuttingDownError,
    UnsupportedModeError,
)
from moss_engine.api.events import Accepted, Called, Event, Failed, Finished, FinishReason, Thought
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.modes import Mode
from moss_engine.api.request import (
    Message,
    Reply,
    Request,
    Speech,
    Text,
    ToolCall,
    check_text,
    check_values,
)
from moss_engine.api.service import ReplyStream, ServiceWrapper, StartableService
from moss_engine.talk.answer import Answerer, Part, Question, Reached, Say
from moss_engine.talk.reply import Joined, Writing
from moss_engine.text.beside import beside

log = logging.getLogger(__name__)

POLL_S = 0.05
UNHEARD_S = 10.0  # a reply that nobody began to listen to is given up
MAX_AHEAD = 16  # parts that were thought of and are not said yet


Queue = asyncio.Queue[Part | MossError | None]
"""Parts of an answer, and behind them the error that ended it, or None."""


class TalkReply:
    """A reply made of the parts of an answer, each of which the `service` speaks. Without `speaks`
    the answer is only read. A part is not begun while the listener has more than `run_ahead_s` of
    sound left."""

    def __init__(
        self,
        service: TalkingService,
        request: Request,
        parts: AsyncGenerator[Part, None],
        *,
        speaks: bool,
    ):
        self.request, self.request_id = request, request.request_id
        self._service = service
        self._parts = parts
        self._accepted_s = time.monotonic()
        self._speaks = speaks
        self._joined = Joined(request.request_id)
        self._saying: ReplyStream | None = None
        self._taken = 0
        self._cancelled = False
        self._listened = False

    @property
    def unheard_s(self) -> float:
        """How long nobody has begun to listen."""
        return 0.0 if self._listened else self._now_s()

    def cancel(self) -> None:
        """Stop thinking and saying, from any thread; the reply ends with `Finished(CANCELLED)`."""
        self._cancelled = True
        if self._saying is not None:
            self._saying.cancel()

    def acknowledge(self, samples: int) -> None:
        """The listener has taken so many samples of this reply in all."""
        self._taken = max(self._taken, samples)
        if self._saying is not None and samples > self._joined.begin_sample:
            self._saying.acknowledge(samples - self._joined.begin_sample)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Every event to the terminal one; leaving early stops the reply."""
        self._listened = True
        queue: Queue = asyncio.Queue(MAX_AHEAD)
        thinking = asyncio.ensure_future(self._think(queue))
        try:
            async with aclosing(self._answer(queue)) as events:
                async for event in events:
                    yield event
        finally:
            self.cancel()
            thinking.cancel()
            try:
                await asyncio.wait({thinking})
            finally:
                self._service.forget(self)

    async def _think(self, queue: Queue) -> None:
        """Put the parts of the answer into the queue, and then its error, or None."""
        end: MossError | None = None
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await queue.put(part)
        except MossError as error:
            end = error
        except Exception:
            log.exception("an answer is given up")
            end = EngineFaultError("The answer could not be thought of; ask again.")
        await queue.put(end)

    async def _answer(self, queue: Queue) -> AsyncGenerator[Event, None]:
        yield Accepted(self.request_id, 0.0, 0, 0)
        joined, reason = self._joined, FinishReason.STOP
        try:
            while reason is FinishReason.STOP and (part := await self._next(queue)) is not None:
                async with aclosing(self._part(part)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            reason = event.reason
                            continue
                        yield event
                        if isinstance(event, Failed):
                            return
        except MossError as error:
            now_s, code = self._now_s(), error.code
            yield Failed(self.request_id, now_s, joined.num_rows, code, str(error))
            return
        reason = FinishReason.CANCELLED if self._cancelled else reason
        yield Finished(self.request_id, self._now_s(), joined.num_rows, reason, joined.rows)

    async def _next(self, queue: Queue) -> Part | None:
        """The next part, once the sound before it is not too far ahead of the listener; raises the
        MossError that ended the answer."""
        most_ahead = self._service.info.run_ahead_s * self._service.info.sample_rate_hz
        while not self._cancelled:
            if self._joined.samples - self._taken > most_ahead:
                await asyncio.sleep(POLL_S)
                continue
            getting = asyncio.ensure_future(queue.get())
            try:
                # `wait_for` would lose a cancellation that comes together with a part
                await asyncio.wait({getting}, timeout=POLL_S)
            finally:
                getting.cancel()
            if getting.done():
                if isinstance(found := getting.result(), MossError):
                    raise found
                return found
        return None

    async def _part(self, part: Part) -> AsyncGenerator[Event, None]:
        """The events of one part; `Finished` is the part's own. Raises a MossError where the
        service below refuses it."""
        now_s, joined = self._now_s(), self._joined
        if isinstance(part, Reached):
            yield Thought(self.request_id, now_s, joined.num_rows, part.stage)
            return
        if isinstance(part, ToolCall):
            yield Called(self.request_id, now_s, joined.num_rows, part)
            return
        if not self._speaks:
            for event in joined.written(part.text, now_s):
                yield event
            return
        saying = await self._service.say(part, self.request)
        joined.begin(now_s)
        writing = asyncio.ensure_future(beside(Writing, part.text))
        self._saying = saying
        self.acknowledge(self._taken)
        if self._cancelled:
            saying.cancel()
        async with aclosing(saying.events()) as events:
            async for event in events:
                joined.writing = await writing
                if (taken := joined.take(event)) is not None:
                    yield taken
        self._saying = None

    def _now_s(self) -> float:
        return time.monotonic() - self._accepted_s


class TalkingService(ServiceWrapper):
    """A `SpeechService` over another one. `info` is that one's with the modes of
    `modes.talking_modes`, whose questions the `answerer` answers; all other requests are passed on.
    `drain_s` is the time that open replies get at shutdown. Used on any number of event loops."""

    def __init__(
        self,
        below: StartableService,
        info: ServiceInfo,
        answerer: Answerer,
        *,
        drain_s: float = 10.0,
    ):
        super().__init__(below)
        self._below: StartableService = below
        self.info = info
        self._answerer = answerer
        self._drain_s = drain_s
        self._reading = info.reading_mode
        self._places = info.max_sessions + info.max_waiting
        self._lock = threading.Lock()
        self._open: dict[str, TalkReply] = {}
        self._closed = False

    def start(self) -> None:
        """As `StartableService.start`."""
        self._below.start()

    def close(self) -> None:
        """Stop everything now and give back the runtime's memory; blocks."""
        self._cancel_all()
        self._below.close()

    async def describe(self) -> ServiceInfo:
        return self.info

    async def submit(self, request: Request) -> ReplyStream:
        if self._closed:
            raise ShuttingDownError(CLOSED)
        mode = next((mode for mode in self.info.modes if mode.name == request.mode), None)
        if mode is None or not mode.through_text:
            return await self._below.submit(request)
        return self._talk(request, mode)

    async def cancel_session(self, session_id: str) -> None:
        self._cancel_all(session_id)
        await self._below.cancel_session(session_id)

    async def stats(self) -> ServiceStats:
        stats = await self._below.stats()
        return replace(stats, state="draining") if self._closed and stats.ready else stats

    async def drain(self, timeout_s: float | None = None) -> None:
        """As `SpeechService.drain`."""
        self._closed = True
        end_s = time.monotonic() + (self._drain_s if timeout_s is None else timeout_s)
        while self._open and time.monotonic() < end_s:
            await asyncio.sleep(POLL_S)
        self._cancel_all()
        await self._below.drain(max(0.0, end_s - time.monotonic()))

    def _talk(self, request: Request, mode: Mode) -> TalkReply:
        """A reply, if there is a place for it."""
        parts = self._answerer.answer(self._question(request, mode))
        with self._lock:
            self._make_room(request)
            reply = TalkReply(self, request, parts, speaks=mode.output == "speech")
            self._open[request.request_id] = reply
        return reply

    def _make_room(self, request: Request) -> None:
        """Drop replies that nobody listens to and end the session's own ones; raises, without
        ending any of the session, if the request cannot have a place. Called under the lock."""
        for reply in list(self._open.values()):
            if reply.unheard_s > UNHEARD_S:
                del self._open[reply.request_id]
        if request.request_id in self._open:
            raise ParameterError(IN_USE)
        own = [r for r in self._open.values() if r.request.session_id == request.session_id]
        # those of the session that are ending take no place of others, but are bounded, too
        if max(len(own), len(self._open) - len(own)) >= self._places:
            raise BusyError(ALL_TAKEN)
        for reply in own:
            reply.cancel()

    def _question(self, request: Request, mode: Mode) -> Question:
        """What is asked; raises an InputError that says what is wrong with the request."""
        check_values(request)
        if not request.messages or request.messages[-1].role not in ("user", "tool"):
            raise InputError("The conversation does not end with a message of the user; add one.")
        *before, last = request.messages
        system = ""
        if before and before[0].role == "system":
            if not mode.own_system:
                raise InputError("This mode has a fixed system turn; leave the system prompt out.")
            system = _words(before.pop(0)) or ""
        if (mode.input == "speech") is not isinstance(last.content, Speech):
            raise UnsupportedModeError(
                f"The mode {mode.name!r} takes {mode.input}; choose another mode."
            )
        text = _words(last)
        if text is None:
            raise InputError("The recording holds no words; transcribe it first.")
        if last.role == "tool":
            before, text = [*before, last], ""
        else:
            check_text(text, self.info.max_text_chars)
        said = (replace(message, content=Text(_words(message) or "")) for message in before)
        turns = tuple(m for m in said if m.calls or m.call_id or m.content != Text(""))
        return Question(text, turns, system, request.session_id, request.speed, request.tools)

    async def say(self, part: Say, request: Request) -> ReplyStream:
        """Speak a part of an answer, in the voice of the request."""
        assert self._reading is not None, "a checkpoint that reads nothing has no modes to talk in"
        said = replace(
            request,
            request_id=secrets.token_urlsafe(16),
            messages=(Message("user", Text(part.text)),),
            mode=self._reading.name,
            truncate_history=False,
            speed=part.speed,
            tools=None,
        )
        return await self._below.submit(said)

    def forget(self, reply: TalkReply) -> None:
        """The reply is over."""
        with self._lock:
            # Where it was given up, another may have its name.
            if self._open.get(reply.request_id) is reply:
                del self._open[reply.request_id]

    def _cancel_all(self, session_id: str | None = None) -> None:
        with self._lock:
            found = list(self._open.values())
        for reply in found:
            if session_id in (None, reply.request.session_id):
                reply.cancel()


def _words(message: Message) -> str | None:
    """A message as text; None where its words are not known."""
    content = message.content
    if isinstance(content, Text):
        return content.text
    if isinstance(content, Reply):
        return None
    return content.transcript.text if content.transcript else None
