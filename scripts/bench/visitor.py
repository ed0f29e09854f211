"""A visitor of the page as an open tab is one: asks, listens, talks, stops and leaves by the page's
WebSocket (`moss_engine/ui/door.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

PATIENCE_S = 60.0


@dataclass
class Answer:
    """What came of a question: seconds to the first sound (None: there was none), and how it
    ended."""

    first_s: float | None = None
    end: str = "lost"
    note: str = ""


class Visitor:
    """One tab, from `open` to `leave`."""

    def __init__(self, socket: ClientConnection):
        self._socket = socket
        self._last = -1
        self._recordings = 0

    @staticmethod
    async def open(url: str) -> Visitor:
        """A tab of the page at that address."""
        address = url.replace("http", "ws", 1).rstrip("/") + "/gradio_api/live"
        visitor = Visitor(await connect(address, origin=Origin(url.rstrip("/")), max_size=None))
        await visitor._send("session.open", visit=secrets.token_hex(16), key=secrets.token_hex(16))
        await visitor._event("session.opened")
        return visitor

    async def ask(
        self, *, while_heard: Callable[[Answer], Awaitable[None]] | None = None, **values: Any
    ) -> Answer:
        """Ask something and take the reply to its end; `while_heard` runs beside that."""
        answer, asked_s, run = Answer(), time.monotonic(), secrets.token_hex(4)
        await self._send("response.create", values=values, run=run)
        beside = asyncio.ensure_future(while_heard(answer)) if while_heard else None
        try:
            over = False
            while not over:
                event, sound = await self._event("response.update", run=run)
                if sound and answer.first_s is None:
                    answer.first_s = time.monotonic() - asked_s
                answer.end = event.get("state", answer.end)
                answer.note = event.get("note", answer.note)
                over = event.get("end", False)
        finally:
            if beside is not None and not beside.cancel():
                beside.result()
        return answer

    async def stop(self) -> None:
        """Stop what is heard; its `ask` takes what comes of that."""
        await self._send("response.cancel")

    async def talk(self) -> None:
        """Switch the microphone on, hands-free."""
        self._recordings += 1
        await self._send("input_audio_buffer.begin", recording=self._recordings, hands_free=True)

    async def say(self, pcm: np.ndarray) -> dict[str, Any]:
        """int16 samples at 16 kHz; what became of them."""
        await self._socket.send(pcm.tobytes())
        heard, _ = await self._event("input_audio_buffer.heard", recording=self._recordings)
        return heard

    async def leave(self) -> None:
        """Close the tab."""
        with contextlib.suppress(OSError):
            await self._send("session.close")
            await self._socket.close()

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def _event(self, kind: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        """The next event of that kind, with its sound."""
        while True:
            frame = await asyncio.wait_for(self._socket.recv(), PATIENCE_S)
            sound = b""
            if isinstance(frame, bytes):
                size = int.from_bytes(frame[:4], "little")
                frame, sound = frame[4 : 4 + size].decode(), frame[4 + size :]
            event = json.loads(frame)
            if "n" in event:
                self._last = event["n"]
                if self._last % 16 == 0:
                    await self._send("got", last=self._last)
            if event["type"] == "error":
                raise RuntimeError(event["message"])
            if event["type"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event, sound
