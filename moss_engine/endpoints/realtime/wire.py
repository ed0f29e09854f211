"""Transport of a realtime session's events and sound: a WebSocket, or a WebRTC call (`calls`)."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import AudioFormatError
from moss_engine.audio.g711 import Decoder
from moss_engine.audio.rate import FROM_HZ
from moss_engine.endpoints.sound import from_base64

RATE_HZ = FROM_HZ
"""Rate of the sound that sessions work with."""
MAX_NAME_CHARS = 512
GONE = (WebSocketDisconnect, TimeoutError)


class Wire(Protocol):
    """Carries events and sound. `plays`: it plays the answers itself, as PCM, and knows how much
    was played."""

    plays: bool

    async def receive(self) -> str | bytes | np.ndarray | None:
        """The next event, or sound as int16 [n] at `RATE_HZ`; None once the client is gone."""
        ...

    async def send(self, event: dict[str, Any]) -> None:
        """Raises one of `GONE`, or RuntimeError, once the client is gone."""
        ...

    def hush(self) -> int | None:
        """Drop what was not played yet; returns how many samples of the last answer were, None
        where nothing was dropped."""
        ...


class SocketWire:
    plays = False

    def __init__(self, socket: WebSocket):
        self._socket = socket

    async def receive(self) -> str | bytes | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("text") or message.get("bytes") or ""

    async def send(self, event: dict[str, Any]) -> None:
        await self._socket.send_text(json.dumps(event, ensure_ascii=False))

    def hush(self) -> None:
        """Clients play what they are sent by themselves."""


def samples_of(data: str, decoder: Decoder | None, last: bool = False) -> np.ndarray:
    """base64 of what a decoder takes, or else of 16-bit little-endian PCM at `RATE_HZ`, -> int16
    [n] at `RATE_HZ`; `last`: nothing follows. Raises AudioFormatError."""
    raw = from_base64(data)
    if decoder is not None:
        return decoder.push(raw, last=last)
    if len(raw) % 2:
        raise AudioFormatError("The audio is no base64 of 16-bit samples; send pcm16 at 24 kHz.")
    return np.frombuffer(raw, "<i2").astype(np.int16)


def event_id_of(said: str | bytes) -> str | None:
    """The id of a client's event that cannot be read, where at least the id can."""
    try:
        found = json.loads(said).get("event_id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return found[:MAX_NAME_CHARS] if isinstance(found, str) and found.isascii() else None
