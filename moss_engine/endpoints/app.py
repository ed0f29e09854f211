"""The endpoints as one ASGI app: OpenAI's interfaces, over any `SpeechService`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from moss_engine.api.errors import MossError
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import MAX_SOUND_BYTES, read_json
from moss_engine.endpoints.chat import ChatBody, complete
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.figures import MEDIA_TYPE
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.openapi import EVENTS, FORM, JSON, SDP, Operation, document, form_of
from moss_engine.endpoints.realtime.client_secrets import SecretBody, issue
from moss_engine.endpoints.realtime.connection import converse
from moss_engine.endpoints.replies import IGNORED
from moss_engine.endpoints.responses import ResponsesBody, respond
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.sound import MEDIA_TYPES
from moss_engine.endpoints.speech import SpeechBody, speak
from moss_engine.endpoints.tool import open_tool
from moss_engine.endpoints.transcription import TranscriptionBody, transcribe

PREFIX = "/v1/"
TOOL_PATH = "/mcp"
TEXT = {"type": "string"}
OFFER = {"type": "object", "properties": {"sdp": TEXT, "session": TEXT}, "required": ["sdp"]}


def make_app(server: Server, *, tool: bool = False, origins: tuple[str, ...] = ()) -> Starlette:
    """Answers everything under `PREFIX`, and /metrics; what is not there is refused in OpenAI's
    shape, too. `tool`: also /mcp, which raises as `open_tool` does. Pages of `origins` may read the
    answers.
    """
    begun_s = int(time.time())

    async def models(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": [_model(server.model, begun_s)]})

    async def model(request: Request, caller: Caller) -> Response:
        server.check_model(request.path_params["model"])
        return JSONResponse(_model(server.model, begun_s))

    async def openapi(request: Request, caller: Caller) -> Response:
        return JSONResponse(told())

    async def voices(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": _voices(server)})

    async def transcription(request: Request, caller: Caller) -> Response:
        with caller.place():
            return await transcribe(server, request)

    async def call(request: Request) -> Response:
        try:
            from moss_engine.endpoints.realtime.calls import answer_call
        except ImportError:
            raise ApiError(
                501,
                "Calls over WebRTC need a package that is not installed; run pip install "
                "aiortc, or talk by the WebSocket /v1/realtime.",
                "no_webrtc",
            ) from None
        return await answer_call(server, request)

    async def metrics(request: Request) -> Response:
        """Counts against nobody's calls."""
        server.access.caller(request.scope)  # type: ignore[arg-type]
        stats = await server.service.stats()
        text = server.figures.text(server.info, server.model, stats)
        return Response(text, media_type=MEDIA_TYPE)

    told = cache(lambda: document(operations))
    operations = [
        Operation("get", f"{PREFIX}models", "The model that is here", models),
        Operation("get", f"{PREFIX}models/{{model:path}}", "The model that a name means", model),
        Operation("get", f"{PREFIX}audio/voices", "The voices that are here", voices),
        Operation("get", f"{PREFIX}openapi.json", "This document", openapi),
        Operation(
            "post", f"{PREFIX}audio/speech", "A text becomes a sound file or a stream",
            partial(speak, server), SpeechBody, (*MEDIA_TYPES.values(), EVENTS),
        ),
        Operation(
            "post", f"{PREFIX}audio/transcriptions", "A sound file becomes its words",
            transcription, {FORM: form_of(TranscriptionBody, "file", "timestamp_granularities")},
            (JSON, "text/plain", "text/vtt", EVENTS),
        ),
        Operation(
            "post", f"{PREFIX}chat/completions", "A conversation is answered in text or speech",
            partial(complete, server, Memory()), ChatBody, (JSON, EVENTS), limit=MAX_SOUND_BYTES,
        ),
        Operation(
            "post", f"{PREFIX}responses", "A conversation is answered in text",
            partial(respond, server), ResponsesBody, (JSON, EVENTS),
        ),
        Operation(
            "post", f"{PREFIX}realtime/client_secrets", "A short-lived key for a page",
            partial(issue, server), SecretBody,
        ),
        Operation(
            "post", f"{PREFIX}realtime/calls", "An offer of WebRTC is answered", None,
            {SDP: TEXT, FORM: OFFER}, (SDP,), "201",
        ),
    ]  # fmt: skip
    routed = [one for one in operations if one.endpoint]
    if tool:
        routed.append(Operation("post", TOOL_PATH, "", open_tool(server)))
    refused = _refusing(server)
    return Starlette(
        routes=[
            *(_route(server, operation) for operation in routed),
            Route(f"{PREFIX}realtime/calls", call, methods=["POST"]),
            WebSocketRoute(f"{PREFIX}realtime", partial(converse, server)),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: refused, MossError: refused, HTTPException: refused},
        middleware=[_for_pages_of(origins)] if origins else None,
    )


def _for_pages_of(origins: tuple[str, ...]) -> Middleware:
    """Pages of these origins may call and read the answers: with a key in a header, never with
    cookies."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=("Retry-After", "Location", IGNORED),
    )


def _route(server: Server, operation: Operation) -> Route:
    """A route for those who may call."""
    endpoint, kind = operation.endpoint, operation.body
    assert endpoint is not None

    async def answer(request: Request) -> Response:
        caller = server.access.caller(request.scope)  # type: ignore[arg-type]
        caller.call()
        if not isinstance(kind, type):
            return await endpoint(request, caller)
        return await endpoint(await read_json(request, kind, operation.limit), caller)

    return Route(operation.path, answer, methods=[operation.method])


def _model(name: str, begun_s: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": begun_s, "owned_by": "moss-speech-live"}


def _voices(server: Server) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "audio.voice", "name": name, "default": place == 0}
        for place, name in enumerate(server.info.voices)
    ]


def _refusing(server: Server) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answers with a refusal, and counts it."""

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            place = f"{request.method} {request.url.path}"
            error = ApiError(
                error.status_code,
                f"There is nothing at {place[:80]!r}; docs/api.md lists what there is.",
                "not_found" if error.status_code == 404 else "method_not_allowed",
            )
        assert isinstance(error, MossError | ApiError)
        refusal = of_moss(error)
        server.refused(refusal)
        return refusal.response()

    return refused
