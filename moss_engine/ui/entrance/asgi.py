"""Small parts of ASGI: headers, bodies, answers."""

from __future__ import annotations

import json
from typing import Any

MAX_BODY_BYTES = 256 * 1024


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
