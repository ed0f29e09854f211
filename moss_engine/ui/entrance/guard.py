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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from starlette.responses import JSONResponse

from moss_engine.ui.entrance.asgi import Refused, Texts, header, read_body, replay, with_headers
from moss_engine.ui.entrance.login import Login
from moss_engine.ui.entrance.upload import PATH as UPLOAD

API = "/gradio_api"
OPEN = re.compile(
    r"/|/(?:config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/pwa_icon/\d{1,3}"
    r"|/(?:assets|static)/[\w./@+-]{1,200}"
    rf"|{API}/(?:info|app_id|user|login_check|startup-events|theme\.css|queue/join|queue/data|cancel|reset)/?"
    rf"|{API}/(?:heartbeat|call)/\w[\w-]*/?|{API}/call/\w+/\w+|{API}/custom_component/[\w./@+-]{{1,200}}"
    rf"|{API}/file=/[^\x00-\x1f\x7f]+",
    re.ASCII,
)
LISTEN = re.compile(rf"{API}/(?:queue/data|call/\w+/(?P<event>\w+))", re.ASCII)
RANGE = re.compile(rb"bytes=(?:\d{1,15}-\d{0,15}|-\d{1,15})")
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]{1,253})(?::\d{1,5})?", re.ASCII)
MAX_HEAD_BYTES = 16 * 1024
CALL = re.compile(rf"{API}/(?:queue/join|call/(?P<name>[^/]+))/?")

ENDPOINTS = ("/v1/", "/metrics", "/mcp")
DOOR = f"{API}/live"

SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # under a stricter one a form on plain http names no origin
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}
FILE = {"x-content-type-options": "nosniff"}
HEALTH = {
    "ready": "Requests are answered.",
    "draining": "The service is shutting down.",
    "faulted": "The engine stopped; restart the program.",
    "stalled": "Nothing has moved for seconds.",
}

MAX_DEPTH = 20
SESSION_HASH = re.compile(r"[A-Za-z0-9_-]{1,64}")  # Gradio's: a random number, however few digits
HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")
ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Call(NamedTuple):
    """A function for programs: its index, how many inputs it has, and what the last of them are
    where a program leaves them out."""

    index: int
    num_inputs: int
    defaults: tuple[Any, ...] = ()


@dataclass(eq=False)
class Guard:
    """Wraps an ASGI app. `calls` are the page's functions by name; `state` tells how the service
    is, one of HEALTH; `hosts` are the Host names (None: any); `frames` are the origins that may
    show the page inside theirs.

    `login` asks for a password, where there is one; `upload` and `door` are ASGI apps for
    audio files, where the page takes them, and for the WebSockets of open tabs; `files` are the
    page's own by path, and `rewrite` makes its document of Gradio's; `endpoints` is an ASGI app
    that answers programs on `ENDPOINTS`, with keys and limits of its own. `is_session` tells
    whether somebody asked something under a session's name.
    """

    app: Any
    _: KW_ONLY
    calls: Mapping[str, Call]
    state: Callable[[], Awaitable[str]]
    hosts: frozenset[str] | None = None
    frames: tuple[str, ...] = ()
    login: Login | None = None
    upload: Any = None
    door: Any = None
    files: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    rewrite: Callable[[bytes], bytes] | None = None
    endpoints: Any = None
    is_session: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        self.texts = Texts(self.rewrite)
        policy = " ".join(("frame-ancestors 'self'", *self.frames))
        self.headers = {**SAFE, "content-security-policy": policy}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = with_headers(send, FILE if scope["path"].startswith("/assets/") else self.headers)
        try:
            self._check_head(scope)
            await self._serve(scope, receive, send)
        except Refused as refused:
            refusal = JSONResponse({"detail": str(refused)}, refused.status)
            await refusal(scope, receive, send)

    async def _serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Hand a request to whom it is for; raises Refused where it is for nobody."""
        path = scope["path"]
        if path in ("/healthz", "/readyz"):
            state = await self.state()
            fine = state == "ready" if path == "/readyz" else state != "faulted"
            told = {"state": state, "detail": HEALTH[state]}
            await JSONResponse(told, 200 if fine else 503)(scope, receive, send)
        elif path.startswith(ENDPOINTS) and self.endpoints is not None:
            await self.endpoints(scope, receive, send)
        elif self.login is not None and not self.login.knows(scope):
            await self.login.answer(scope, receive, send)
        elif path == UPLOAD and self.upload is not None:
            await self.upload(scope, receive, send)
        elif path in self.files:
            await self.texts.send_file(scope, *self.files[path], send)
        elif not OPEN.fullmatch(path):
            raise Refused(404, "There is nothing here; programs ask below /v1, as in /v1/models.")
        else:
            self._check_listening(path, scope)
            if scope["method"] == "POST":
                body = await read_body(receive)
                body = self._check_post(path, scope, body)
                receive = replay(body, receive)
            scope = _without_frills(scope)
            await self.texts.pass_on(self.app, scope, receive, send)

    async def _connect(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """A WebSocket: of a program, or of an open tab of this very page."""
        with contextlib.suppress(Refused):
            self._check_head(scope)
            if scope["path"].startswith(ENDPOINTS) and self.endpoints is not None:
                await self.endpoints(scope, receive, send)
                return
            known = self.login is None or self.login.knows(scope)
            if scope["path"] == DOOR and self.door is not None and known and _is_own(scope):
                await self.door(scope, receive, send)
                return
        if (await receive())["type"] == "websocket.connect":
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
        return json.dumps(checked(self.calls, call["name"], message)).encode()

    def _check_listening(self, path: str, scope: dict[str, Any]) -> None:
        """Gradio answers listeners of what is not there with a traceback in the log."""
        found = LISTEN.fullmatch(path)
        if found and self.is_session is not None:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if not self.is_session(found["event"] or query.get("session_hash", [""])[0]):
                raise Refused(404, "There is nothing to listen to; ask first.")


def _without_frills(scope: dict[str, Any]) -> dict[str, Any]:
    """Without what Gradio takes long over, or answers with a traceback: cookies, none of which are
    its own, and in the page's address other pages and deep links, of which there are none."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"cookie"]
    whole = scope["path"].rstrip("/") in ("", "/config")
    return {**scope, "headers": headers, **({"query_string": b""} if whole else {})}


def _is_own(scope: dict[str, Any]) -> bool:
    """Whether the page that opens a WebSocket came from here: a browser says where it came from,
    and sends cookies whoever asks."""
    origin = header(scope, b"origin").partition("://")[2]
    return bool(origin) and origin in (header(scope, b"host"), header(scope, b"x-forwarded-host"))


def checked(calls: Mapping[str, Call], name: str | None, message: Any) -> dict[str, Any]:
    """A call of a function by its `name`, or by its index in the message, with the arguments that
    were left out at the end, where they have defaults. Raises Refused."""
    if not isinstance(message, dict):
        raise Refused(400, "The body is not a JSON object.")
    session = message.get("session_hash")
    if session is not None and not (isinstance(session, str) and SESSION_HASH.fullmatch(session)):
        raise Refused(400, "session_hash must be 1 to 64 letters, digits, - or _.")
    index = message.get("fn_index")
    by_index = {call.index: call for call in calls.values()}
    call = calls.get(name) if name else by_index.get(index) if type(index) is int else None
    if call is None:
        raise Refused(404, "There is no such function.")
    data = message.get("data")
    if isinstance(data, list) and len(data) < call.num_inputs <= len(data) + len(call.defaults):
        data = [*data, *call.defaults[len(data) - call.num_inputs :]]
    if not isinstance(data, list) or len(data) != call.num_inputs:
        raise Refused(422, f"This function takes {call.num_inputs} arguments.")
    return {**message, "data": data}


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
    if ESCAPED_HALF.search(body) and HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        raise Refused(400, "A text holds half a character; type it again.")
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
