"""The page's document and other answers of one text, compressed: Gradio compresses its files alone,
and the document is larger than all of them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections import OrderedDict
from typing import Any

from moss_engine.ui.entrance.asgi import header

TEXTS = re.compile(r"/|/config/?|/gradio_api/info/?", re.ASCII)
"""What is answered with one text. Sound, files and messages that go on are none of these."""
MIN_BYTES = 2000
LEVEL = 6
KEPT = 8  # texts: the same one under every name that the service is reached by
TEXT_KINDS = (b"text/", b"application/json")


class Compressor:
    """What was compressed is kept for the next visitor. Used on one event loop."""

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
