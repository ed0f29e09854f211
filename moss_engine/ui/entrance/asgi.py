"""Small parts of ASGI: headers, bodies, texts that are compressed, and documents that are kept."""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

MAX_BODY_BYTES = 256 * 1024
TOO_LARGE = f"The request is larger than {MAX_BODY_BYTES // 1024} kB."
DOCUMENTS = ("/config", "/gradio_api/info")
KEPT = 8  # documents: the same one under every name that the service is reached by
NAMING = (b"host", b"x-forwarded-host", b"x-forwarded-proto", b"x-gradio-server")
"""Headers of which Gradio makes the addresses in a document."""
compressed = lru_cache(maxsize=128)(gzip.compress)  # every file once


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


def text_of(scope: dict[str, Any], kind: str, body: bytes) -> Response:
    """The answer with a file of the page's own, compressed for who can read that. In /assets/ its
    name changes with it."""
    headers = {"vary": "Accept-Encoding"}
    if scope["path"].startswith("/assets/"):
        headers["cache-control"] = "public, max-age=31536000, immutable"
    if "gzip" in header(scope, b"accept-encoding").lower():
        body = compressed(body)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type=kind)


class Documents:
    """What Gradio tells programs of the page, over which it takes long: it makes one answer at a
    time, and each once for every name of the service. Used on one event loop."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._made: OrderedDict[str, list[Any]] = OrderedDict()
        self._asking = asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        named = [pair for pair in scope["headers"] if pair[0] in NAMING]
        key = repr((scope["path"], scope.get("query_string"), scope.get("scheme"), named))
        async with self._asking:
            if (made := self._made.get(key)) is None:
                made = await self._asked({**scope, "headers": named}, receive)
                if made[0]["status"] == 200:
                    self._made[key] = made
                    if len(self._made) > KEPT:
                        self._made.popitem(last=False)
        for message in made:
            await send({**message})

    async def _asked(self, scope: dict[str, Any], receive: Any) -> list[Any]:
        messages: list[Any] = []

        async def sending(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, sending)
        return messages
