"""What stands between the network and Gradio: a pure ASGI filter.

Gradio opens more routes than this page needs, answers unknown functions with a traceback, takes
JSON of any size and `NaN` for a number, and knows nothing of health. Here, the routes that neither
the page nor `gradio_client` uses are closed, and every call is checked against the page's own
functions before Gradio sees it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moss_engine.ui.audio_in import route
from moss_engine.ui.audio_in.ingest import AudioIngest

MAX_BODY_BYTES = 256 * 1024
MAX_DEPTH = 20
SESSION_HASH = re.compile(
    r"[A-Za-z0-9_-]{1,64}"
)  # Gradio's: the digits of a random number, however few

API = "/gradio_api"
CLOSED = re.compile(
    rf"{API}/(?:proxy=|api/|component_server|deep_link|process_recording|vibe-|undo-vibe-|run-history|runs|profiling"
    rf"|upload|stream/|call/v2/|openapi\.json|file=[a-z][a-z0-9+.-]*:|dev/)|/monitoring|/dev/|/svelte/|/proxy=",
    re.IGNORECASE,
)
CALL = re.compile(rf"{API}/(?P<how>queue/join|run|call)(?:/(?P<name>[^/]+))?/?")

ENDPOINTS = ("/v1/", "/metrics")

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"permissions-policy": b"microphone=(self), camera=(), geolocation=()",
    b"content-security-policy": b"frame-ancestors 'self' https://huggingface.co https://*.hf.space",
}

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: (
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ),
    "flag": lambda value: isinstance(value, bool),
    "state": lambda value: value is None,  # the server's copy is the only one
    "any": lambda value: True,
}


@dataclass(frozen=True)
class Calls:
    """The page's functions: kinds of their inputs by index, names open to programs, and those that
    bypass the queue."""

    kinds: Mapping[int, tuple[str, ...]]
    names: Mapping[str, int]
    unqueued: frozenset[int]


class Refused(Exception):
    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class Guard:
    """Wraps an ASGI app. `ready` tells whether requests can be served now; `hosts` are the Host
    names (None: any).

    `ingest` takes recordings, where the page does; `endpoints` is an ASGI app that answers programs
    on `ENDPOINTS`, with limits of its own.
    """

    def __init__(
        self,
        app: Any,
        *,
        calls: Calls,
        ready: Callable[[], Awaitable[bool]],
        hosts: frozenset[str] | None = None,
        ingest: AudioIngest | None = None,
        endpoints: Any = None,
    ):
        self.app = app
        self.endpoints = endpoints
        self.ingest = ingest
        self.calls = calls
        self.ready = ready
        self.hosts = hosts

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_host(scope)
            path = scope["path"]
            if path in ("/healthz", "/readyz"):
                ready = path == "/healthz" or await self.ready()
                await _answer(
                    send, 200 if ready else 503, {"detail": "ok" if ready else "not ready"}
                )
                return
            if path.startswith(route.PREFIX) and self.ingest is not None:
                await _answer(send, *await route.answer(self.ingest, scope, receive))
                return
            if path.startswith(ENDPOINTS) and self.endpoints is not None:
                await self.endpoints(scope, receive, _with_headers(send))
                return
            if CLOSED.match(path):
                raise Refused(404, "There is nothing here.")
            if scope["method"] == "POST":
                body = await _read(receive)
                self._check_post(path, scope, body)
                receive = _replay(body, receive)
        except Refused as refused:
            await _answer(send, refused.status, {"detail": str(refused)})
            return
        await self.app(scope, receive, _with_headers(send))

    async def _connect(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """A WebSocket: the page has none."""
        if scope["path"].startswith(ENDPOINTS) and self.endpoints is not None:
            with contextlib.suppress(Refused):
                self._check_host(scope)
                await self.endpoints(scope, receive, send)
                return
        await send({"type": "websocket.close", "code": 1008})

    def _check_host(self, scope: dict[str, Any]) -> None:
        """Against DNS rebinding: a page elsewhere must not reach a service that only listens
        locally."""
        host = _header(scope, b"host")
        host = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts is not None and host not in self.hosts:
            raise Refused(403, f"This service answers to {', '.join(sorted(self.hosts))} only.")

    def _check_post(self, path: str, scope: dict[str, Any], body: bytes) -> None:
        call = CALL.fullmatch(path)
        if call is None and not _header(scope, b"content-type").startswith("application/json"):
            return
        message = parse_json(body)
        if call is not None:
            self._check_call(call["how"], call["name"], message)

    def _check_call(self, how: str, name: str | None, message: Any) -> None:
        if not isinstance(message, dict):
            raise Refused(400, "The body is not a JSON object.")
        session = message.get("session_hash")
        if session is not None and not (
            isinstance(session, str) and SESSION_HASH.fullmatch(session)
        ):
            raise Refused(400, "session_hash must be 1 to 64 letters, digits, - or _.")
        index = message.get("fn_index") if how != "call" else None
        if index is None and how != "queue/join":
            index = self.calls.names.get(name or "")
        if isinstance(index, bool) or not isinstance(index, int) or index not in self.calls.kinds:
            raise Refused(404, "There is no such function.")
        if how == "run" and index not in self.calls.unqueued:
            raise Refused(404, "This function is not called this way.")
        check_data(message.get("data"), self.calls.kinds[index])


def parse_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, finite numbers, nesting of at most MAX_DEPTH. Raises Refused."""

    def number(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise Refused(400, f"The number {text[:20]} is too large.")
        return value

    def constant(text: str) -> float:
        raise Refused(400, f"{text} is not a number that can be used here.")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=constant, parse_float=number)
    except RecursionError:
        raise Refused(400, "The JSON is nested too deeply.") from None
    except ValueError:
        raise Refused(400, "The body is not JSON.") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise Refused(400, "The JSON is nested too deeply.")
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return value


def check_data(data: Any, kinds: tuple[str, ...]) -> None:
    """Arguments must be as many and of the kinds that the function takes; states may be left out.
    Raises Refused."""
    open_kinds = tuple(kind for kind in kinds if kind != "state")
    if not isinstance(data, list) or len(data) not in (len(kinds), len(open_kinds)):
        raise Refused(422, f"This function takes {len(open_kinds)} arguments.")
    expected = kinds if len(data) == len(kinds) else open_kinds
    for place, (value, kind) in enumerate(zip(data, expected, strict=True), 1):
        if not KINDS[kind](value):
            raise Refused(422, f"Argument {place} must be a {kind}.")


def _header(scope: dict[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _read(receive: Any) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The request was cut off.")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"The request is larger than {MAX_BODY_BYTES // 1024} kB.")
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Any) -> Any:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return waiting.pop() if waiting else await receive()

    return replayed


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            known = {key.lower() for key, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *((k, v) for k, v in HEADERS.items() if k not in known),
            ]
        await send(message)

    return sending


async def _answer(send: Any, status: int, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *HEADERS.items(),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
