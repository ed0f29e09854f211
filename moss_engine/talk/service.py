"""The service with somebody to talk to: questions become answers as text, and the service below
says them."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from moss_engine.api.errors import (
    ALL_TAKEN,
    BusyError,
    InputError,
    ParameterError,
    ShuttingDownError,
    UnsupportedModeError,
)
from moss_engine.api.events import Accepted, Event, Transcribed
from moss_engine.api.info import ServiceInfo, ServiceStats
from moss_engine.api.metrics import RequestMetrics
from moss_engine.api.modes import Mode
from moss_engine.api.request import Message, Reply, Request, Speech, Text, check_text, check_values
from moss_engine.api.service import ReplyStream, ReplyWrapper, ServiceWrapper, StartableService
from moss_engine.api.transcript import Transcript
from moss_engine.talk.answer import Answerer, Part, Question, Say
from moss_engine.talk.reply import TalkReply

POLL_S = 0.05
MAX_SESSIONS = 256  # whose last figures are remembered
UNHEARD_S = 10.0  # a reply that nobody began to listen to is given up


class TalkingService(ServiceWrapper):
    """A `SpeechService` over another one. `info` is that one's with the modes of
    `modes.talking_modes`; `answerer` thinks of the answers to their questions, and every other
    request goes on as it is. `drain_s` is the time that open replies get at shutdown. Used on any
    number of event loops."""

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
        self._info = info
        self._answerer = answerer
        self._drain_s = drain_s
        self._reading = info.reading_mode
        self._places = info.max_sessions + info.max_waiting
        self._lock = threading.Lock()
        self._open: dict[str, tuple[str, TalkReply]] = {}  # by request: session and reply
        self._last: OrderedDict[str, RequestMetrics] = OrderedDict()  # by session
        self._closed = False

    def start(self) -> None:
        """As `StartableService.start`."""
        self._below.start()

    def close(self) -> None:
        """Stop everything now and give back the runtime's memory; blocks."""
        self._cancel_all()
        self._below.close()

    async def describe(self) -> ServiceInfo:
        return self._info

    async def submit(self, request: Request) -> ReplyStream:
        if self._closed:
            raise ShuttingDownError("The service is shutting down; try again when it is back.")
        mode = next((mode for mode in self._info.modes if mode.name == request.mode), None)
        if mode is None or not mode.through_text:
            reply = await self._below.submit(request)
            heard = request.messages[-1].content if request.messages else None
            if isinstance(heard, Speech) and heard.transcript is not None:
                return Noted(reply, heard.transcript)
            return reply
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
        question, transcript = self._question(request, mode)
        parts, speaks = self._answerer.answer(question), mode.output == "speech"
        return self._reply(request, parts, speaks=speaks, transcript=transcript)

    def _reply(
        self,
        request: Request,
        parts: AsyncGenerator[Part, None],
        *,
        speaks: bool,
        transcript: Transcript | None = None,
    ) -> TalkReply:
        """A reply of these parts, if there is a place for it."""
        with self._lock:
            self._make_room(request)

            async def submit(part: Say) -> ReplyStream:
                return await self._below.submit(self._said_by(part, request))

            reply = TalkReply(
                request.request_id,
                parts,
                submit,
                speaks=speaks,
                run_ahead_s=self._info.run_ahead_s,
                on_over=self._forget,
                transcript=transcript,
            )
            self._open[request.request_id] = request.session_id, reply
        return reply

    def _make_room(self, request: Request) -> None:
        """Give up what nobody listens to and end the session's own replies; raises, with the
        latter untouched, where the request cannot have a place. Called under the lock."""
        for _, reply in list(self._open.values()):
            if reply.unheard_s > UNHEARD_S:
                del self._open[reply.request_id]
        if request.request_id in self._open:
            raise ParameterError(
                "request_id is that of an open request; give every request its own."
            )
        own = [reply for of, reply in self._open.values() if of == request.session_id]
        # those of the session that are ending take no place of others, but are bounded, too
        if max(len(own), len(self._open) - len(own)) >= self._places:
            raise BusyError(ALL_TAKEN)
        for reply in own:
            reply.cancel()

    def _question(self, request: Request, mode: Mode) -> tuple[Question, Transcript | None]:
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
        content = last.content
        transcript = content.transcript if isinstance(content, Speech) else None
        if (mode.input == "speech") is not isinstance(content, Speech):
            raise UnsupportedModeError(
                f"The mode {mode.name!r} takes {mode.input}; choose another mode."
            )
        text = _words(last)
        if text is None:
            raise InputError("The recording holds no words; transcribe it first.")
        if last.role == "tool":
            before, text = [*before, last], ""
        else:
            check_text(text, self._info.max_text_chars)
        said = (replace(message, content=Text(_words(message) or "")) for message in before)
        turns = tuple(m for m in said if m.calls or m.call_id or m.content != Text(""))
        measured = self._last.get(request.session_id)
        session_id, speed = request.session_id, request.speed
        question = Question(text, turns, system, session_id, speed, measured, request.tools)
        return question, transcript

    def _said_by(self, part: Say, request: Request) -> Request:
        """The request that says a part, in the voice of the one that asked."""
        assert self._reading is not None, "a checkpoint that reads nothing has no modes to talk in"
        return replace(
            request,
            request_id=secrets.token_urlsafe(16),
            messages=(Message("user", Text(part.text)),),
            mode=self._reading.name,
            truncate_history=False,
            speed=part.speed,
            tools=None,
        )

    def _forget(self, reply: TalkReply) -> None:
        with self._lock:
            session_id, known = self._open.get(reply.request_id, ("", None))
            if known is not reply:  # it was given up, and another may have its name
                return
            del self._open[reply.request_id]
            if reply.metrics.audio_s:
                self._last.pop(session_id, None)
                self._last[session_id] = reply.metrics
                if len(self._last) > MAX_SESSIONS:
                    self._last.popitem(last=False)

    def _cancel_all(self, session_id: str | None = None) -> None:
        with self._lock:
            found = [reply for of, reply in self._open.values() if session_id in (None, of)]
        for reply in found:
            reply.cancel()


class Noted(ReplyWrapper):
    """A reply to speech that was also transcribed: the transcript comes right behind
    `Accepted`."""

    def __init__(self, reply: ReplyStream, transcript: Transcript):
        super().__init__(reply)
        self._transcript = transcript

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        async with aclosing(self._reply.events(acknowledge=acknowledge)) as events:
            async for event in events:
                yield event
                if isinstance(event, Accepted):
                    yield Transcribed(
                        self.request_id, event.time_s, event.num_rows, self._transcript
                    )


def _words(message: Message) -> str | None:
    """A message as text; None where its words are not known."""
    content = message.content
    if isinstance(content, Text):
        return content.text
    if isinstance(content, Reply):
        return None
    return content.transcript.text if content.transcript else None
