"""Small parts of ASGI: headers, bodies, answers, and what of these is compressed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from collections import OrderedDict
from typing import Any

MAX_BODY_BYTES = 256 * 1024
TEXTS = re.compile(r"/|/config/?|/gradio_api/info/?", re.ASCII)
"""What is answered with one text. Sound, files and messages that go on are none of these."""
MIN_BYTES = 2000
LEVEL = 6
KEPT = 8  # texts: the same one under every name that the service is reached by
TEXT_KINDS = (b"text/", b"application/json")


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


async def read_body(receive: Any) -> bytes:
    """A whole body; raises Refused for one that is cut off or larger than MAX_BODY_BYTES."""
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


def replay(body: bytes, receive: Any) -> Any:
    """A `receive` that gives a body once more, in one piece."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return waiting.pop() if waiting else await receive()

    return replayed


def with_headers(send: Any, headers: dict[bytes, bytes]) -> Any:
    """A `send` that adds the headers that an answer has not."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            known = {key.lower() for key, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *((k, v) for k, v in headers.items() if k not in known),
            ]
        await send(message)

    return sending


async def answer(send: Any, status: int, message: dict[str, Any]) -> None:
    """Answer with JSON."""
    body = json.dumps(message).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Compressor:
    """Compresses the page's document and other answers of one text: Gradio compresses its files
    alone, and the document is larger than all of them. What was compressed is kept for the next
    visitor. Used on one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def for_(self, scope: dict[str, Any], send: Any) -> Any:
        """A `send` that compresses the answer to a request, where that is one text of some length
        and who asks can read it."""
        if not TEXTS.fullmatch(scope["path"]) or not _reads_gzip(scope):
            return send
        start: dict[str, Any] | None = None

        async def sending(message: Any) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                head, start = start, None
                if _is_whole_text(head, message):
                    message = {**message, "body": await self._compressed(message["body"])}
                    head = _as_gzip(head, len(message["body"]))
                await send(head)
            await send(message)

        return sending

    async def _compressed(self, body: bytes) -> bytes:
        """Beside the event loop, which serves others meanwhile."""
        key = hashlib.blake2b(body, digest_size=16).digest()
        if key not in self._kept:
            self._kept[key] = await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[key]


def _reads_gzip(scope: dict[str, Any]) -> bool:
    accepted = header(scope, b"accept-encoding").lower().replace(" ", "").split(",")
    return any(re.fullmatch(r"gzip(;q=(1|0\.\d*[1-9]\d*).*)?", kind) for kind in accepted)


def _is_whole_text(head: dict[str, Any], message: dict[str, Any]) -> bool:
    headers = {name.lower(): value for name, value in head["headers"]}
    return (
        head["status"] == 200
        and message["type"] == "http.response.body"
        and not message.get("more_body")
        and len(message.get("body", b"")) >= MIN_BYTES
        and b"content-encoding" not in headers
        and headers.get(b"content-type", b"").startswith(TEXT_KINDS)
    )


def _as_gzip(head: dict[str, Any], num_bytes: int) -> dict[str, Any]:
    kept = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
    ours = [
        (b"content-encoding", b"gzip"),
        (b"content-length", str(num_bytes).encode()),
        (b"vary", b"Accept-Encoding"),
    ]
    return {**head, "headers": [*kept, *ours]}
