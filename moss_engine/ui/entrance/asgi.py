"""Small parts of ASGI: headers, bodies, and texts that are compressed."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import brotli
from starlette.datastructures import MutableHeaders

MAX_BODY_BYTES = 256 * 1024
TOO_LARGE = f"The request is larger than {MAX_BODY_BYTES // 1024} kB."
TEXTS = re.compile(
    r"/|/config/?|/gradio_api/info/?|/theme\.css|/assets/[\w.@-]+\.(?:js|css)", re.ASCII
)
"""What is answered with one text. Sound, files and messages that go on are none of these."""
MIN_BYTES = 500
KEPT = 8  # documents: the same one under every name that the service is reached by
KEPT_COMPRESSED = 128
NAMING = (b"host", b"x-forwarded-host", b"x-forwarded-proto", b"x-gradio-server")
"""Headers of which Gradio makes the addresses in a document."""
TEXT_KINDS = (b"text/", b"application/j")
FOR_GOOD = b"public, max-age=31536000, immutable"
NO_NEED = (b"etag", b"last-modified", b"accept-ranges")  # of what is never asked for again
COMPRESS: dict[str, Callable[[bytes, bool], bytes]] = {  # in haste, or as small as can be
    "br": lambda body, hastily: brotli.compress(body, quality=5 if hastily else 11),
    "gzip": lambda body, hastily: gzip.compress(body, 6 if hastily else 9, mtime=0),
}
_COMPRESSING = ThreadPoolExecutor(1, "compress")


class Refused(Exception):
    """A request is answered with a status and a sentence, and goes no further."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def address_of(scope: dict[str, Any]) -> str:
    """The network address of who asks, as far as it is known."""
    client = scope.get("client")
    return client[0] if client else ""


def header(scope: dict[str, Any], name: bytes) -> str:
    """The first header of that name, in lower case; empty where there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def is_foreign(scope: dict[str, Any]) -> bool:
    """Whether a browser says that another site's page asks for this."""
    site = header(scope, b"sec-fetch-site")
    if site:
        return site not in ("same-origin", "none")
    origin = header(scope, b"origin") or header(scope, b"referer")
    return bool(origin) and origin.split("/")[2:3] != [header(scope, b"host")]


async def read_body(receive: Any, limit: int = MAX_BODY_BYTES, too_large: str = TOO_LARGE) -> bytes:
    """A whole body; raises Refused for one that is cut off or larger than `limit`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The request was cut off.")
        body += message.get("body", b"")
        if len(body) > limit:
            raise Refused(413, too_large)
        if not message.get("more_body"):
            return bytes(body)


def replay(body: bytes, receive: Any) -> Any:
    """A `receive` that gives a body once more, in one piece."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return waiting.pop() if waiting else await receive()

    return replayed


def with_headers(send: Any, headers: Mapping[str, str]) -> Any:
    """A `send` that adds the headers that an answer has not."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            told = MutableHeaders(scope=message)
            for name, value in headers.items():
                told.setdefault(name, value)
        await send(message)

    return sending


class Texts:
    """The page's document, style sheets and modules: each is one text, compressed for who can read
    that. Gradio compresses its files anew for every visitor and in haste. Here it is done in haste
    for the first alone, and once well for the others, and kept. `rewrite` makes this page's
    document of Gradio's. Used on one event loop."""

    def __init__(self, rewrite: Callable[[bytes], bytes] | None = None) -> None:
        self._rewrite = rewrite
        self._made: OrderedDict[str, tuple[dict[str, Any], bytes]] = OrderedDict()
        self._asking = asyncio.Lock()

    async def pass_on(self, app: Any, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """What `app` answers; a text with a length of its own is compressed. Gradio takes long over
        its documents: it makes one at a time, and each once for every name of the service."""
        path = scope["path"]
        if scope["method"] != "GET" or not TEXTS.fullmatch(path):
            await app(scope, receive, send)
        elif path.startswith("/assets/"):
            await self._send(scope, *await _asked(app, scope, receive), send)
        else:
            if path == "/":  # what stands behind it is the browser's matter
                scope = {**scope, "query_string": b""}
            named = [pair for pair in scope["headers"] if pair[0] in NAMING]
            key = repr((path, scope.get("query_string"), scope.get("scheme"), named))
            async with self._asking:
                if (made := self._made.get(key)) is None:
                    made = await _asked(app, scope, receive)
                    if made[0]["status"] == 200:
                        if path == "/" and self._rewrite:
                            made = made[0], self._rewrite(made[1])
                        self._made[key] = made
                        if len(self._made) > KEPT:
                            self._made.popitem(last=False)
            await self._send(scope, *made, send)

    async def send_file(self, scope: dict[str, Any], kind: bytes, body: bytes, send: Any) -> None:
        """A file of the page's own."""
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        await self._send(scope, head, body, send)

    async def _send(
        self, scope: dict[str, Any], head: dict[str, Any], body: bytes, send: Any
    ) -> None:
        headers = {name.lower(): value for name, value in head["headers"]}
        if head["status"] == 200:
            if scope["path"].startswith("/assets/"):
                headers = {name: headers[name] for name in headers if name not in NO_NEED}
                headers[b"cache-control"] = FOR_GOOD
            how = _encoding(scope)
            kind = headers.get(b"content-type", b"")
            if how and len(body) >= MIN_BYTES and kind.startswith(TEXT_KINDS):
                body = await asyncio.to_thread(compress, body, how)
                headers |= {b"content-encoding": how.encode(), b"vary": b"Accept-Encoding"}
        headers[b"content-length"] = str(len(body)).encode()
        await send({**head, "headers": [*headers.items()]})
        await send({"type": "http.response.body", "body": body})


def compress(body: bytes, how: str) -> bytes:
    """As small as can be once that is made; the first who asks do not wait for it."""
    small = smallest(body, how)
    return small.result() if small.done() else COMPRESS[how](body, True)


@lru_cache(maxsize=KEPT_COMPRESSED)
def smallest(body: bytes, how: str) -> Future[bytes]:
    """Made once, which may take a tenth of a second, and kept."""
    return _COMPRESSING.submit(COMPRESS[how], body, False)


async def _asked(app: Any, scope: dict[str, Any], receive: Any) -> tuple[dict[str, Any], bytes]:
    """The head and the whole body of an answer, not compressed."""
    plain = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
    head: dict[str, Any] = {}
    body = bytearray()

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        else:
            body.extend(message.get("body", b""))

    await app({**scope, "headers": plain}, receive, sending)
    return head, bytes(body)


def _encoding(scope: dict[str, Any]) -> str | None:
    """The best that who asks can read."""
    accepted = header(scope, b"accept-encoding").lower().replace(" ", "").split(",")
    for name in COMPRESS:
        if any(re.fullmatch(rf"{name}(;q=(1|0\.\d*[1-9]\d*).*)?", kind) for kind in accepted):
            return name
    return None
