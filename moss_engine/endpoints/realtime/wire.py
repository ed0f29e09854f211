"""What events of a realtime session, and its sound, come and go by: a WebSocket, whose client may
know the events by their earlier names, or a call (`calls`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

GONE = (WebSocketDisconnect, asyncio.TimeoutError)
EARLIER = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "conversation.item.added": "conversation.item.created",
}
"""Names of events before the interface's general availability, for clients that ask for them."""
EARLIER_PARTS = {"output_audio": "audio", "output_text": "text"}


class Wire(Protocol):
    """What events, and sound, come and go by. `plays`: it plays the answers itself, as PCM, and
    knows how far it came."""

    plays: bool

    async def receive(self) -> str | bytes | np.ndarray | None:
        """An event, or sound as int16 [n] at `RATE_HZ`; None once the client is gone."""
        ...

    async def send(self, event: dict[str, Any]) -> None:
        """Raises one of `GONE`, or RuntimeError, once the client is gone."""
        ...

    def hush(self) -> int | None:
        """Drop what is not played yet; the samples of the last answer that were, None where
        nothing was dropped."""
        ...


class SocketWire:
    """A WebSocket; `earlier`: events have the names of before the general availability."""

    plays = False

    def __init__(self, socket: WebSocket, *, earlier: bool = False):
        self._socket = socket
        self._earlier = earlier

    async def receive(self) -> str | bytes | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("text") or message.get("bytes") or ""

    async def send(self, event: dict[str, Any]) -> None:
        if self._earlier:
            if event["type"] == "conversation.item.done":
                return
            event = _earlier({**event, "type": EARLIER.get(event["type"], event["type"])})
        await self._socket.send_text(json.dumps(event, ensure_ascii=False))

    def hush(self) -> None:
        """Clients play what they are sent."""


def _earlier(value: Any) -> Any:
    """With the earlier names of parts of items."""
    if isinstance(value, list):
        return [_earlier(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    told = {name: _earlier(inner) for name, inner in value.items()}
    kind = told.get("type")
    return {**told, "type": EARLIER_PARTS[kind]} if kind in EARLIER_PARTS else told
