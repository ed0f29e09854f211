"""How a reply travels to the browser: with its samples, or compressed and in few words for a slow
link."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from moss_engine.audio.opus import RATES_HZ, OpusStream
from moss_engine.ui.stream import SILENCE_S, TICK_S
from moss_engine.ui.view import to_wire

WAYS = ("pcm", "opus")
TICKS_S = {"pcm": TICK_S, "opus": SILENCE_S}  # between messages without sound
DIGITS = 5  # after the point, of seconds and figures: less than half a sample
FOLDED = ("figures", "stages", "pool")  # of which a slow link carries what changed
NEW = ("pcm", "text", "ids", "pieces", "opus")  # of one message; all others last until they change


class SoundWay:
    """Of one reply. A rate that Opus does not know travels as samples.

    A compressed message is `{run, seq, brief}`, whose `brief` is JSON of everything that is new
    since the message before: Gradio itself would send each changed number beside its place, which
    takes more than the sound."""

    def __init__(self, way: str):
        self._opus = way == "opus"
        self._told: dict[str, Any] = {}
        self._stream: OpusStream | None = None

    def wire(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as JSON; its `sound` says which way it went."""
        if not self._opus or (message["rate"] and message["rate"] not in RATES_HZ):
            return {**to_wire(message), "sound": "pcm"}
        packets = self._packets(message)
        head = self._stream.head if self._stream else b""
        opus = {"head": _text(head), "packets": _text(framed(packets))} if packets else None
        name = {key: message[key] for key in ("run", "seq")}
        wired = {**to_wire({**message, "pcm": b""}), "sound": "opus", "opus": opus}
        return name | {"brief": self._brief({k: v for k, v in wired.items() if k not in name})}

    def _brief(self, message: Mapping[str, Any]) -> str:
        new = {}
        for key, value in rounded(message).items():
            if key in FOLDED:
                told = self._told.setdefault(key, {})
                value = {name: one for name, one in value.items() if told.get(name) != one}
                told.update(value)
            elif key not in NEW:
                if key in self._told and self._told[key] == value:
                    continue
                self._told[key] = value
            if value or key not in (*FOLDED, *NEW):
                new[key] = value
        return json.dumps(new, ensure_ascii=False, separators=(",", ":"))

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


def rounded(value: Any) -> Any:
    """JSON with all of its numbers short."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def framed(packets: list[bytes]) -> bytes:
    """Every packet behind its length, as two bytes with the lower first."""
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
