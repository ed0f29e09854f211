"""The endpoints as one ASGI app: OpenAI's interfaces, over any `SpeechService`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from moss_engine.api.errors import MossError
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import MAX_SOUND_BYTES, read_json
from moss_engine.endpoints.chat import ChatBody, complete
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.figures import MEDIA_TYPE
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.openapi import document
from moss_engine.endpoints.realtime.client_secrets import issue, issue_session
from moss_engine.endpoints.realtime.connection import converse
from moss_engine.endpoints.replies import IGNORED
from moss_engine.endpoints.responses import ResponsesBody, respond
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.speech import SpeechBody, speak
from moss_engine.endpoints.tool import open_tool
from moss_engine.endpoints.transcription import transcribe

PREFIX = "/v1/"
TOOL_PATH = "/mcp"
Endpoint = Callable[[Request, Caller], Awaitable[Response]]
Refused = Callable[[Request, Exception], Awaitable[Response]]


def make_app(server: Server, *, tool: bool = False, origins: tuple[str, ...] = ()) -> Starlette:
    """Answers everything under `PREFIX`, and /metrics; what is not there is refused in OpenAI's
    shape, too. `tool`: also /mcp, which raises as `open_tool` does. Pages of `origins` may read the
    answers.
    """
    begun_s, memory = int(time.time()), Memory()

    async def models(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": [_model(server.model, begun_s)]})

    async def model(request: Request, caller: Caller) -> Response:
        server.check_model(request.path_params["model"])
        return JSONResponse(_model(server.model, begun_s))

    async def openapi(request: Request, caller: Caller) -> Response:
        return JSONResponse(document())

    async def voices(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": _voices(server)})

    async def speech(request: Request, caller: Caller) -> Response:
        return speak(server, await read_json(request, SpeechBody), caller)

    async def chat(request: Request, caller: Caller) -> Response:
        body = await read_json(request, ChatBody, MAX_SOUND_BYTES)
        return complete(server, memory, body, caller)

    async def response(request: Request, caller: Caller) -> Response:
        return respond(server, memory, await read_json(request, ResponsesBody), caller)

    async def transcription(request: Request, caller: Caller) -> Response:
        with caller.place():
            return await transcribe(server, request)

    routes: list[BaseRoute] = [
        _route(server, f"{PREFIX}models", models),
        _route(server, f"{PREFIX}models/{{model:path}}", model),
        _route(server, f"{PREFIX}openapi.json", openapi),
        _route(server, f"{PREFIX}audio/voices", voices),
        _route(server, f"{PREFIX}audio/speech", speech, method="POST"),
        _route(server, f"{PREFIX}audio/transcriptions", transcription, method="POST"),
        _route(server, f"{PREFIX}chat/completions", chat, method="POST"),
        _route(server, f"{PREFIX}responses", response, method="POST"),
    ]
    routes += _secrets(server)
    if tool:
        routes.append(_route(server, TOOL_PATH, open_tool(server), method="POST"))
    routes += _watching_and_talking(server)
    refusals = {
        ApiError: _refused(server),
        MossError: _refused_by_service(server),
        HTTPException: _not_there(server),
    }
    return Starlette(
        routes=routes,
        exception_handlers=refusals,  # type: ignore[arg-type]
        middleware=[_for_pages_of(origins)] if origins else None,
    )


def _secrets(server: Server) -> list[BaseRoute]:
    """Short-lived keys for pages, and their calls over WebRTC."""

    async def secret(request: Request, caller: Caller) -> Response:
        return await issue(server, request, caller)

    async def session(request: Request, caller: Caller) -> Response:
        return await issue_session(server, request, caller)

    open_calls: list[Any] = []

    async def call(request: Request) -> Response:
        if not open_calls:
            try:
                from moss_engine.endpoints.realtime.calls import Calls
            except ImportError:
                raise ApiError(
                    501,
                    "Calls over WebRTC need a package that is not installed; run pip install "
                    "aiortc, or talk by the WebSocket /v1/realtime.",
                    "no_webrtc",
                ) from None
            open_calls.append(Calls())
        return await open_calls[0].begin(server, request)

    path = f"{PREFIX}realtime/"
    return [
        Route(f"{path}calls", call, methods=["POST"]),
        _route(server, f"{path}client_secrets", secret, method="POST"),
        _route(server, f"{path}sessions", session, method="POST"),
    ]


def _watching_and_talking(server: Server) -> list[BaseRoute]:
    """/metrics, which counts against nobody's calls, and the realtime interface."""

    async def metrics(request: Request) -> Response:
        server.access.caller(request.scope)  # type: ignore[arg-type]
        stats = await server.service.stats()
        text = server.figures.text(server.info, server.model, stats)
        return Response(text, media_type=MEDIA_TYPE)

    async def realtime(socket: WebSocket) -> None:
        await converse(server, socket)

    return [Route("/metrics", metrics), WebSocketRoute(PREFIX + "realtime", realtime)]


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


def _route(server: Server, path: str, endpoint: Endpoint, *, method: str = "GET") -> Route:
    """A route for those who may call."""

    async def answer(request: Request) -> Response:
        caller = server.access.caller(request.scope)  # type: ignore[arg-type]
        caller.call()
        return await endpoint(request, caller)

    return Route(path, answer, methods=[method])


def _model(name: str, begun_s: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": begun_s, "owned_by": "moss-speech-live"}


def _voices(server: Server) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "audio.voice", "name": name, "default": place == 0}
        for place, name in enumerate(server.info.voices)
    ]


def _refused(server: Server) -> Refused:
    """Answers with a refusal, and counts it."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        server.refused(error)
        return error.response()

    return refused


def _refused_by_service(server: Server) -> Refused:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, MossError)
        server.refused(error)
        return of_moss(error).response()

    return refused


def _not_there(server: Server) -> Refused:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        place = f"{request.method} {request.url.path}"
        refusal = ApiError(
            error.status_code,
            f"There is nothing at {place[:80]!r}; docs/api.md lists what there is.",
            "not_found" if error.status_code == 404 else "method_not_allowed",
        )
        server.refused(refusal)
        return refusal.response()

    return refused
