"""How a reply's sound travels to the browser: as its samples, or compressed for a slow link."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from moss_engine.audio.opus import RATES_HZ, OpusStream
from moss_engine.ui.view import to_wire

WAYS = ("pcm", "opus")


class SoundWay:
    """Of one reply. A rate that Opus does not know travels as samples."""

    def __init__(self, way: str):
        self._opus = way == "opus"
        self._stream: OpusStream | None = None

    def wire(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as JSON; its `sound` says which way it went."""
        if not self._opus or (message["rate"] and message["rate"] not in RATES_HZ):
            return {**to_wire(message), "sound": "pcm"}
        packets = self._packets(message)
        head = self._stream.head if self._stream else b""
        opus = {"head": _text(head), "packets": _text(framed(packets))}
        return {**to_wire({**message, "pcm": b""}), "sound": "opus", "opus": opus}

    def _packets(self, message: Mapping[str, Any]) -> list[bytes]:
        packets = []
        if message["pcm"]:
            self._stream = self._stream or OpusStream(message["rate"])
            packets = self._stream.push(np.frombuffer(message["pcm"], "<i2").astype(np.int16))
        if message["end"] and self._stream:
            packets += self._stream.end()
        return packets

    def close(self) -> None:
        """The reply is over, perhaps before its end."""
        if self._stream:
            self._stream.close()


def framed(packets: list[bytes]) -> bytes:
    """Every packet behind its length, as two bytes with the lower first."""
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
