"""What stands between the network and Gradio: a pure ASGI filter.

Gradio has more routes than this page needs, answers unknown functions with a traceback, takes JSON
of any size and `NaN` for a number, and knows nothing of health. Here, only the routes that the page
and `gradio_client` use are open, behind the password if there is one, and every call is checked
against the page's own functions before Gradio sees it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from moss_engine.ui.audio_in import route
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.entrance.asgi import Refused, answer, header, read_body, replay, with_headers
from moss_engine.ui.entrance.calls import Calls, check_call, completed, parse_json
from moss_engine.ui.entrance.compressed import Compressor
from moss_engine.ui.entrance.login import Login
from moss_engine.ui.entrance.places import Places

API = "/gradio_api"
OPEN = re.compile(
    r"/|/(?:config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/(?:assets|static)/[\w./@+-]+"
    rf"|{API}/(?:info|app_id|user|login_check|startup-events|theme\.css|queue/join|queue/data|cancel|reset)/?"
    rf"|{API}/(?:heartbeat|run|call)/\w[\w-]*/?|{API}/call/\w+/\w+|{API}/custom_component/[\w./@+-]+"
    rf"|{API}/file=/[^\x00-\x1f\x7f]+",
    re.ASCII,
)
LISTEN = re.compile(rf"{API}/(?:queue/data|call/\w+/(?P<event>\w+))", re.ASCII)
RANGE = re.compile(rb"bytes=(?:\d{1,15}-\d{0,15}|-\d{1,15})")
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]{1,253})(?::\d{1,5})?", re.ASCII)
MAX_HEAD_BYTES = 16 * 1024
CALL = re.compile(rf"{API}/(?P<how>queue/join|run|call)(?:/(?P<name>[^/]+))?/?")

ENDPOINTS = ("/v1/", "/metrics", "/mcp")

SAFE = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"permissions-policy": b"microphone=(self), camera=(), geolocation=()",
}
HEALTH = {
    "ready": "Requests are answered.",
    "draining": "The service is shutting down.",
    "faulted": "The engine stopped; restart the program.",
    "stalled": "Nothing has moved for seconds.",
}


class Guard:
    """Wraps an ASGI app. `state` tells how the service is, one of HEALTH; `hosts` are the Host
    names (None: any); `frames` are the origins that may show the page inside theirs.

    `login` asks for a password, where there is one; `ingest` takes recordings, where the page does;
    `endpoints` is an ASGI app that answers programs on `ENDPOINTS`, with keys and limits of its
    own. `is_session` tells whether somebody asked something under a session's name; `places` bounds
    how many questions are asked at a time.
    """

    def __init__(
        self,
        app: Any,
        *,
        calls: Calls,
        state: Callable[[], Awaitable[str]],
        hosts: frozenset[str] | None = None,
        frames: tuple[str, ...] = (),
        login: Login | None = None,
        ingest: AudioIngest | None = None,
        endpoints: Any = None,
        is_session: Callable[[str], bool] | None = None,
        places: Places | None = None,
    ):
        self.app = app
        self.endpoints = endpoints
        self.login = login
        self.ingest = ingest
        self.calls = calls
        self.state = state
        self.hosts = hosts
        self.is_session = is_session
        self.places = places
        self.compressor = Compressor()
        policy = " ".join(("frame-ancestors 'self'", *frames))
        self.headers = {**SAFE, b"content-security-policy": policy.encode()}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = with_headers(send, self.headers)
        try:
            self._check_head(scope)
            await self._serve(scope, receive, send)
        except Refused as refused:
            await answer(send, refused.status, {"detail": str(refused)})

    async def _serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Hand a request to whom it is for; raises Refused where it is for nobody."""
        path = scope["path"]
        if path in ("/healthz", "/readyz"):
            state = await self.state()
            fine = state == "ready" if path == "/readyz" else state != "faulted"
            await answer(send, 200 if fine else 503, {"state": state, "detail": HEALTH[state]})
        elif path.startswith(ENDPOINTS) and self.endpoints is not None:
            await self.endpoints(scope, receive, send)
        elif self.login is not None and not self.login.knows(scope):
            await self.login.answer(scope, receive, send)
        elif path.startswith(route.PREFIX) and self.ingest is not None:
            await answer(send, *await route.answer(self.ingest, scope, receive))
        elif not OPEN.fullmatch(path):
            raise Refused(404, "There is nothing here.")
        else:
            self._check_listening(path, scope)
            if scope["method"] == "POST":
                body = await read_body(receive)
                body = self._check_post(path, scope, body)
                receive = replay(body, receive)
            with self._place(path):
                await self.app(scope, receive, self.compressor.for_(scope, send))

    def _place(self, path: str) -> contextlib.AbstractContextManager[None]:
        """A place in the queue for what goes there."""
        call = CALL.fullmatch(path)
        if self.places is None or call is None or call["how"] == "run":
            return contextlib.nullcontext()
        return self.places.join()

    async def _connect(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """A WebSocket: the page has none."""
        if scope["path"].startswith(ENDPOINTS) and self.endpoints is not None:
            with contextlib.suppress(Refused):
                self._check_head(scope)
                await self.endpoints(scope, receive, send)
                return
        await send({"type": "websocket.close", "code": 1008})

    def _check_head(self, scope: dict[str, Any]) -> None:
        """Size and Host of a request, the latter against DNS rebinding: a page elsewhere must not
        reach a service that only listens locally. Headers that Gradio does not bear are left
        out."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD_BYTES:
            raise Refused(431, f"The headers are larger than {MAX_HEAD_BYTES // 1024} kB.")
        host = HOST.fullmatch(header(scope, b"host"))
        if host is None:
            raise Refused(400, "The Host header is no name and port.")
        if self.hosts is not None and host["name"] not in self.hosts:
            raise Refused(403, f"This service answers to {', '.join(sorted(self.hosts))} only.")
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if not (name == b"range" and not RANGE.fullmatch(value))
            and not (
                name == b"x-forwarded-host"
                and (self.hosts is not None or not HOST.fullmatch(value.decode("latin-1")))
            )
        ]

    def _check_post(self, path: str, scope: dict[str, Any], body: bytes) -> bytes:
        """The body as Gradio is to see it."""
        call = CALL.fullmatch(path)
        if call is None and not header(scope, b"content-type").startswith("application/json"):
            return body
        message = parse_json(body)
        if call is None:
            return body
        whole = completed(self.calls, call["name"], message) if call["how"] == "call" else message
        check_call(self.calls, call["how"], call["name"], whole)
        return body if whole is message else json.dumps(whole).encode()

    def _check_listening(self, path: str, scope: dict[str, Any]) -> None:
        """Gradio answers listeners of what is not there with a traceback in the log."""
        found = LISTEN.fullmatch(path)
        if found and self.is_session is not None:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if not self.is_session(found["event"] or query.get("session_hash", [""])[0]):
                raise Refused(404, "There is nothing to listen to; ask first.")
