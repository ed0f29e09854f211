"""Programs on the page's port: their endpoints, as the options have them, and what Gradio's own
protocol offers: /reply, /stream and /stop, and its queue, which looks for calls and keeps messages.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from moss_engine.api.controls import BY_NAME
from moss_engine.api.errors import MossError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.service import SpeechService
from moss_engine.endpoints.access import Access, read_keys
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.figures import Figures, WatchedService
from moss_engine.endpoints.server import Server
from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.parts.programs import programs
from moss_engine.ui.stream import Messages, to_wire

BEAT_S = 0.1  # between two words to Gradio, which notices by them that nobody waits any more
POLL_S = 0.05  # between Gradio's looks for a call; 1,000 a second, its own, take a tenth of a core
PROGRESS_S = 1.0  # for progress bars, which this page has none of
UNTAKEN_PER_S = 30  # messages: ten a second are made at least, many at the beginning of a reply


def access_of(config: PageConfig) -> Access:
    """Who may call the endpoints; raises ConfigError for a file of keys that is none."""
    keys = read_keys(config.api_key_file) if config.api_key_file is not None else ()
    return Access(keys, open_to_all=config.local and config.auth is None)


def open_endpoints(
    service: SpeechService, info: ServiceInfo, model: str, access: Access, config: PageConfig
) -> tuple[WatchedService, Any]:
    """The service with its figures being noted, and the ASGI app that answers programs.

    Raises MissingPackageError or ConfigError for --mcp where it cannot be offered, and ConfigError
    for --api-names that stand for nothing here.
    """
    figures = Figures()
    of_programs = WatchedService(service, figures, counts_refusals=False)
    server = Server(of_programs, info, model, access, figures, config.names, config.strict_names)
    app = make_app(server, tool=config.mcp, origins=config.origins)
    return WatchedService(service, figures), app


def panel_of(access: Access, config: PageConfig, info: ServiceInfo, model: str) -> str:
    """What the page shows of this, as HTML; empty where programs are not answered."""
    if not access.answers:
        return ""
    voice = info.voices[0] if info.voices else ""
    return programs(model, voice, by_key=access.by_key, tool=config.mcp)


def slow_down(page: gr.Blocks) -> None:
    """Let Gradio look for calls and for progress less often, and make no table of the last 10,000
    calls after each, which is for a page that is closed here."""
    page._queue.sleep_when_free = POLL_S
    page._queue.progress_update_sleep_when_free = PROGRESS_S
    page._queue.ANALYTICS_MAX_EVENTS = 1
    page._queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize


class Outboxes:
    """Messages that nobody has taken yet, by the name of a program's session."""

    def __init__(self, page: gr.Blocks):
        self._page = page

    def knows(self, session: str) -> bool:
        """Whether something was asked under this name."""
        return session in self._page._queue.pending_messages_per_session

    def are_abandoned(self, session: str, lease_s: float) -> bool:
        """Whether more messages of a reply wait there than are made within `lease_s`, and they are
        forgotten; to be asked after every message."""
        if not self.knows(session):
            return False
        waiting = self._page._queue.pending_messages_per_session[session]
        abandoned = waiting.qsize() > UNTAKEN_PER_S * lease_s
        while abandoned and waiting.qsize():
            waiting.get_nowait()
        return abandoned


def offer(handlers: Handlers, outboxes: Outboxes) -> None:
    """The functions of Gradio's protocol, in the page that is being made. The service says who has
    to wait, and who is refused."""
    gr.api(whole_reply(handlers, outboxes), api_name="reply", concurrency_limit=None)
    gr.api(stream(handlers, outboxes), api_name="stream", concurrency_limit=None)
    gr.api(stop(handlers), api_name="stop", concurrency_limit=None)


def _session(handlers: Handlers, request: gr.Request) -> tuple[str, str]:
    """Names of the session and the address of who asks."""
    address = getattr(request.client, "host", "")
    return handlers.sessions.secret(str(request.session_hash)), handlers.sessions.secret(address)


async def _answer(
    handlers: Handlers,
    outboxes: Outboxes,
    request: gr.Request,
    values: dict[str, Any],
    conversation: Conversation,
    *,
    paced: bool,
) -> Messages:
    """Every message of the answer, until nobody takes them any more; raises gr.Error for what is
    refused, and where it fails."""
    message: dict[str, Any] = {}
    run = form.run_name(values["run"])
    async with aclosing(handlers.answer(values, run, conversation, paced=paced)) as messages:
        async for message in messages:
            yield message
            if outboxes.are_abandoned(str(request.session_hash), handlers.facts.lease_s):
                return
    if message["state"] == "failed":
        raise _error(message["note"])


def _error(sentence: str) -> gr.Error:
    return gr.Error(sentence, print_exception=False)


def _values(handlers: Handlers, given: dict[str, Any]) -> dict[str, Any]:
    try:
        return form.read(given, handlers.facts)
    except MossError as error:
        raise _error(str(error)) from None


def stream(handlers: Handlers, outboxes: Outboxes) -> Callable[..., Any]:
    """The function /stream: a reply's messages while it is made, with int16 PCM in base64."""

    async def stream(request: gr.Request, *given: Any) -> AsyncGenerator[dict[str, Any], None]:
        values = _values(handlers, dict(zip(BY_NAME, given, strict=True)))
        conversation = handlers.sessions.of(*_session(handlers, request))
        answer = _answer(handlers, outboxes, request, values, conversation, paced=True)
        async with aclosing(answer) as messages:
            async for message in messages:
                yield to_wire(message)

    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [first.replace(annotation=gr.Request)] + [
        first.replace(name=name, default=value, annotation=form.KINDS[BY_NAME[name].kind])
        for name, value in form.defaults(handlers.facts).items()
    ]
    told = inspect.Signature(parameters, return_annotation=dict)
    stream.__signature__ = told  # type: ignore[attr-defined]
    stream.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": dict}
    return stream


def stop(handlers: Handlers) -> Callable[..., Any]:
    """The function /stop: ends the session's reply, and answers with the conversation so far."""

    async def stop(request: gr.Request, heard: str = "") -> list[dict]:
        conversation = handlers.sessions.of(*_session(handlers, request))
        await handlers.stop(str(heard), conversation)
        return await handlers.entries(conversation)

    return stop


def whole_reply(handlers: Handlers, outboxes: Outboxes) -> Callable[..., Any]:
    """The function /reply: what is yielded last is the file, and None before."""

    async def reply(
        request: gr.Request,
        text: str,
        voice: str | None = None,
        speed: float = 1.0,
        mode: str | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Says a text, or answers it in a mode that does, and gives a WAV file of the whole reply.
        Without a voice it is the first, without a mode the default, without a seed a new one."""
        yield None
        facts = handlers.facts
        chosen = {"voice": voice, "speed": speed, "mode": mode, "seed": seed}
        given = {name: value for name, value in chosen.items() if value is not None}
        values = _values(handlers, {"text": text, "new_seed": seed is None, **given})
        if any(mode.name == values["mode"] and mode.output == "text" for mode in facts.modes):
            raise _error(f"The mode {values['mode']!r} makes no sound; choose another.")
        conversation = Conversation([], *_session(handlers, request))
        conversation.doubted.append(form.key_of(text))  # it is asked once
        beat_s = time.monotonic()
        answer = _answer(handlers, outboxes, request, values, conversation, paced=False)
        async with aclosing(answer) as messages:
            async for _ in messages:
                if time.monotonic() - beat_s > BEAT_S:
                    beat_s = time.monotonic()
                    yield None
        turn = conversation.turns[0] if conversation.turns else None
        if turn is None or turn.state == "stopped":
            raise _error("The reply was stopped; ask again.")
        if (clip := turn.answer_clip) is None:
            needs_none = f"{turn.unkept} Ask by /v1/audio/speech, which needs no file."
            raise _error(needs_none if turn.unkept else "The reply has no sound; ask again.")
        yield clip.message()["file"] | {"orig_name": clip.path.name, "mime_type": "audio/wav"}

    # What clients are told comes of the signature.
    signature = inspect.signature(reply).replace(return_annotation=FileData)
    reply.__signature__ = signature  # type: ignore[attr-defined]
    return reply
