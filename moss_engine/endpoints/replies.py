"""A reply on its way to a program: its events, and an HTTP response that ends it when nobody
listens any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import anyio
from starlette.responses import Response

from moss_engine.api.errors import MossError, ShuttingDownError, error_of
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    Started,
)
from moss_engine.api.request import Request, Speech, Text
from moss_engine.api.service import SpeechService
from moss_engine.api.tokens import Modality, SpecialIds, spoken_codes
from moss_engine.api.transcript import Word
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.server import Server

EVENT_STREAM = "text/event-stream"
IGNORED = "x-moss-ignored"
SEND_S = 60.0
"""A client that takes nothing for so long is gone."""
Result = TypeVar("Result")
log = logging.getLogger(__name__)


async def told(service: SpeechService, request: Request) -> AsyncGenerator[Event, None]:
    """Every event of a reply; its sound counts as taken when the next event is asked for.

    Leaving early stops the reply. Raises a MossError where it is refused, fails or is ended by the
    service.
    """
    reply = await service.submit(request)
    async with contextlib.aclosing(reply.events()) as events:
        async for event in events:
            if isinstance(event, Failed):
                raise error_of(event.code, event.message)
            if isinstance(event, Finished) and event.reason is FinishReason.CANCELLED:
                raise ShuttingDownError("The reply was stopped; ask again.")
            yield event
            if isinstance(event, AudioChunk):
                reply.acknowledge(event.start_sample + len(event.samples))


class Usage:
    """Counts the rows of one reply by kind, from its events; `request` is what it answers."""

    def __init__(self, ids: SpecialIds):
        self.request: Request | None = None
        self.prompt = self.cached = self.audio = self.sampled = 0
        self._ids = ids

    def take(self, event: Event) -> None:
        if isinstance(event, Accepted):
            self.prompt = event.num_prompt_rows
        elif isinstance(event, Started):
            self.cached = event.num_cached_rows
            if event.num_prompt_rows is not None:  # of an answer that was thought of first
                self.prompt = event.num_prompt_rows
        elif isinstance(event, Sampled):
            self.audio += event.modality is Modality.AUDIO
        elif isinstance(event, Finished):
            self.sampled = event.num_rows

    @property
    def total(self) -> int:
        return self.prompt + self.sampled

    @property
    def heard(self) -> int:
        """Rows of the prompt that are speech."""
        return sum(
            len(content.codes)
            if isinstance(content, Speech)
            else len(spoken_codes(content.rows, self._ids))
            for message in (self.request.messages if self.request else ())
            if not isinstance(content := message.content, Text)
        )

    @property
    def asked(self) -> dict[str, int]:
        """The prompt's rows, under OpenAI's names."""
        heard = self.heard
        return {
            "audio_tokens": heard,
            "text_tokens": max(0, self.prompt - heard),
            "cached_tokens": self.cached,
        }

    @property
    def answered(self) -> dict[str, int]:
        return {"audio_tokens": self.audio, "text_tokens": max(0, self.sampled - self.audio)}


class Answer(Protocol):
    """What a program is sent of one reply."""

    usage: Usage

    def take(self, event: Event) -> AsyncIterator[bytes]:
        """What is sent for an event; `Finished` is the last one."""
        ...

    def failed(self, error: ApiError) -> bytes | None:
        """What is sent when an answer breaks off after it began; None where closing the connection
        is the only sign."""
        ...


async def answered(
    server: Server,
    caller: Caller,
    answer: Answer,
    asked: Callable[[], Awaitable[Request]],
    param: str,
) -> AsyncGenerator[bytes, None]:
    """The bytes that `answer` makes of a reply to the request from `asked`. Refusals and failures
    of the service name the field `param`."""
    begun = False
    with caller.place():
        try:
            answer.usage.request = request = await asked()
            async with contextlib.aclosing(told(server.service, request)) as events:
                async for event in events:
                    answer.usage.take(event)
                    async for part in answer.take(event):
                        begun = True
                        yield part
        except (MossError, ApiError) as error:
            refusal = of_moss(error, param)
            if not begun or (last := answer.failed(refusal)) is None:
                raise refusal from None
            yield last


class Streamed(Response):
    """A response made of the parts that an async generator yields. It begins with the first part,
    so that an exception before that becomes a proper refusal. The generator is closed as soon as
    the client hangs up."""

    def __init__(
        self, parts: AsyncGenerator[bytes, None], media_type: str, ignored: list[str] | None = None
    ):
        """`ignored` fields of the request are named in a header; more may be added until the first
        part."""
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.parts = parts
        self.ignored = [] if ignored is None else ignored

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Any) -> None:
        begun = False
        async with contextlib.aclosing(self.parts) as parts:
            try:
                async for part in parts:
                    if not begun:
                        begun = True
                        self.headers.update(told_ignored(self.ignored))
                        start = {"type": "http.response.start", "status": self.status_code}
                        await send({**start, "headers": self.raw_headers})
                    body = {"type": "http.response.body", "body": part, "more_body": True}
                    with anyio.fail_after(SEND_S):  # `wait_for` may swallow a cancellation
                        await send(body)
            except (MossError, ApiError) as error:
                if not begun:
                    raise
                # The connection is closed without the end of its body: a file that breaks off must
                # not look whole.
                log.warning("a reply broke off: %s", error)
                return
            except TimeoutError:
                return
        await send({"type": "http.response.body", "body": b""})


def told_ignored(names: list[str]) -> dict[str, str]:
    """The header that names the fields of a request that had no effect."""
    return {IGNORED: ", ".join(names)} if names else {}


def word_value(word: Word) -> dict[str, Any]:
    """A word and when it is said, in seconds, as OpenAI tells it."""
    text = word.text.rstrip(".,;:?!\u2026")
    return {"word": text, "start": round(word.start_s, 3), "end": round(word.end_s, 3)}


def server_sent(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


async def unless_gone(receive: Any, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`; None, and `work` is cancelled, if the client hangs up before."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    await first_of(working, gone())
    return None if working.cancelled() else working.result()


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait until one of these is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
