"""The endpoints as one ASGI app: OpenAI's interfaces, over any `SpeechService`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from moss_engine.api.errors import MossError
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import MAX_JSON_BYTES, MAX_SOUND_BYTES, Body, read_json
from moss_engine.endpoints.chat import ChatBody, complete
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.figures import MEDIA_TYPE
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.realtime.client_secrets import SecretBody, issue
from moss_engine.endpoints.realtime.connection import converse
from moss_engine.endpoints.replies import IGNORED
from moss_engine.endpoints.responses import ResponsesBody, respond
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.speech import SpeechBody, speak
from moss_engine.endpoints.tool import open_tool
from moss_engine.endpoints.transcription import transcribe

CALLS = "/v1/realtime/calls"


def make_app(server: Server, *, tool: bool = False, origins: tuple[str, ...] = ()) -> Starlette:
    """Everything under /v1/, and /metrics; unknown paths are refused in OpenAI's shape, too.
    `tool`: also /mcp, which raises as `open_tool` does. Web pages of `origins` may call and read
    the answers."""
    here = {
        "id": server.model, "object": "model", "created": int(time.time()),
        "owned_by": "moss-speech-live",
    }  # fmt: skip

    async def models(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": [here]})

    async def model(request: Request, caller: Caller) -> Response:
        server.check_model(request.path_params["model"])
        return JSONResponse(here)

    async def voices(request: Request, caller: Caller) -> Response:
        """`data` as of OpenAI's lists; Open WebUI and others read `voices`."""
        data = [
            {"id": name, "object": "audio.voice", "name": name, "default": place == 0}
            for place, name in enumerate(server.info.voices)
        ]
        return JSONResponse({"object": "list", "data": data, "voices": data})

    async def no_socket(request: Request, caller: Caller) -> Response:
        raise ApiError(
            400,
            "/v1/realtime is a WebSocket, and this call asked for none; open it by ws:// or "
            "wss://, and let a proxy before it hand on the headers Upgrade and Connection.",
            "no_websocket",
        )

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

    async def hang_up(request: Request, caller: Caller) -> Response:
        call = server.calls.get(request.path_params["call"])
        if call is None:
            raise ApiError(404, "There is no such call, or it has ended.", "call_not_found")
        call.cancel()
        return Response()

    async def metrics(request: Request) -> Response:
        """Counts against nobody's calls."""
        server.access.caller(request.scope)  # type: ignore[arg-type]
        stats = await server.service.stats()
        text = server.figures.text(server.info, server.model, stats)
        return Response(text, media_type=MEDIA_TYPE)

    refused = _refusing(server)
    get, post, route = ["GET"], ["POST"], partial(_route, server)
    return Starlette(
        routes=[
            route("/v1/models", get, models),
            route("/v1/models/{model:path}", get, model),
            route("/v1/audio/voices", get, voices),
            route("/v1/audio/speech", post, partial(speak, server), SpeechBody),
            route("/v1/audio/transcriptions", post, partial(transcribe, server)),
            route(
                "/v1/audio/translations", post, partial(transcribe, server, task="translate")
            ),
            route(
                "/v1/chat/completions", post, partial(complete, server, Memory()), ChatBody,
                MAX_SOUND_BYTES,
            ),
            route("/v1/responses", post, partial(respond, server), ResponsesBody),
            route("/v1/realtime/client_secrets", post, partial(issue, server), SecretBody),
            *([route("/mcp", post, open_tool(server))] if tool else ()),
            Route(CALLS, call, methods=post),
            route(f"{CALLS}/{{call}}/hangup", post, hang_up),
            route("/v1/realtime", get, no_socket),
            WebSocketRoute("/v1/realtime", partial(converse, server)),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: refused, MossError: refused, HTTPException: refused},
        middleware=[Middleware(_shared, origins)],
    )  # fmt: skip


def _shared(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Pages of `origins` may call and read the answers, with a key in a header and never with
    cookies; calls over WebRTC any page, since a short-lived key opens them from anywhere."""
    to_pages = partial(
        CORSMiddleware, app, allow_methods=("GET", "POST"), allow_headers=("*",),
        allow_private_network=True, expose_headers=("Retry-After", "Location", IGNORED),
    )  # fmt: skip
    named = to_pages(allow_origins=origins) if origins else app
    anywhere = to_pages(allow_origins=("*",))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (anywhere if scope.get("path") == CALLS else named)(scope, receive, send)

    return answer


def _route(
    server: Server,
    path: str,
    methods: list[str],
    endpoint: Callable[[Any, Caller], Awaitable[Response]],
    kind: type[Body] | None = None,
    limit: int = MAX_JSON_BYTES,
) -> Route:
    """A route for callers with access. `endpoint` gets the body as a `kind`, from JSON of at most
    `limit` bytes, or without a `kind` the request."""

    async def answer(request: Request) -> Response:
        caller = server.access.caller(request.scope)  # type: ignore[arg-type]
        caller.call()
        asked = request if kind is None else await read_json(request, kind, limit)
        return await endpoint(asked, caller)

    return Route(path, answer, methods=methods)


def _refusing(server: Server) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answers with a refusal, and counts it."""

    async def refused(request: Request, error: Exception) -> Response:
        headers: Mapping[str, str] = {}
        if isinstance(error, HTTPException):
            headers = error.headers or {}  # of a method: which are allowed
            place = f"{request.method} {request.url.path}"
            error = ApiError(
                error.status_code,
                f"There is nothing at {place[:80]!r}; docs/api.md lists what there is.",
                "not_found" if error.status_code == 404 else "method_not_allowed",
            )
        assert isinstance(error, MossError | ApiError)
        refusal = of_moss(error)
        server.refused(refusal)
        response = refusal.response()
        response.headers.update(headers)
        return response

    return refused
