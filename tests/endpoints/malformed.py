"""Calls that are nearly right: the real bodies and events with something of them changed, and bytes
that are none at all."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

SPEECH = {"model": "scripted", "input": "Good morning.", "voice": "default", "seed": 1}
CHAT = {
    "model": "scripted",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "How are you?"},
    ],
    "modalities": ["text", "audio"],
    "audio": {"voice": "default", "format": "pcm16"},
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 100,
}
RECORDING = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
HEARD = {"model": "scripted", "messages": [{"role": "user", "content": [RECORDING]}]}
BODIES = (("audio/speech", SPEECH), ("chat/completions", CHAT), ("chat/completions", HEARD))
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "session.update", "session": {"output_modalities": ["audio"], "audio": {
        "input": {"turn_detection": {"type": "server_vad", "threshold": 0.5}},
        "output": {"voice": "default", "speed": 1.0}}, "max_output_tokens": "inf"}},
    {"type": "input_audio_buffer.append", "audio": "AAAAAA=="},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.create", "previous_item_id": "root", "item": ITEM},
    {"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 9},
    {"type": "conversation.item.delete", "item_id": "x"},
    {"type": "conversation.item.retrieve", "item_id": "x"},
    {"type": "response.create", "response": {"output_modalities": ["text"]}},
    {"type": "response.cancel", "response_id": "x"},
)  # fmt: skip
MESSAGES: tuple[dict[str, Any], ...] = (
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "say", "arguments": {"text": "Hello.", "voice": "default"}}},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
    {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"}}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**30, -(2**63), "", "x", "\u0000", "😀" * 50, "\ud800",
    "a" * 5000, [], {}, [[]], [None], {"x": 1}, [{"type": "text"}], "NaN", float("nan"),
    float("inf"), "../../etc/passwd", "<script>", {"type": "x"}, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip
RAW = (
    b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'"text"', b"[" * 9000, b"{" * 9000, b"1" * 5000,
    b'{"a":' * 3000, b"\x00" * 64, b'{"model": "\\ud800"}', b"{}" * 50, b"--x\r\n\r\n--x--\r\n",
)  # fmt: skip


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The way to everything inside a value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value)
        if isinstance(value, list) else ()
    )  # fmt: skip
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def odd(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(ODD))


def changed(value: Any, draw: random.Random) -> Any:
    """A copy with one to three things of it replaced, removed, doubled or added."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        *way, last = draw.choice([place for place in places(value) if place] or [("x",)])
        inside = value
        for key in way:
            inside = inside[key]
        what = draw.randrange(4)
        if what == 0 and isinstance(inside, dict):
            inside[draw.choice(["tools", "extra", "id", "type", "", "n", "stop"])] = draw.choice(
                ODD
            )
        elif what == 1 and (isinstance(inside, list) or last in inside):
            del inside[last]
        elif what == 2 and isinstance(inside, list):
            inside.extend(inside[:1] * draw.choice([1, 20, 600]))
        elif isinstance(inside, dict) or last < len(inside):
            inside[last] = odd(draw)
    return value


def http_call(draw: random.Random) -> dict[str, Any]:
    """Arguments for httpx's `build_request`, without the address in front of `url`."""
    path, body = draw.choice(BODIES)
    method = draw.choices(["POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD"], [30, 2, 1, 1, 1, 1])[
        0
    ]
    path = draw.choices(
        [path, "models/" + str(draw.choice(ODD))[:40], "audio/transcriptions", "realtime", "x%0ay"],
        [30, 2, 6, 1, 1],
    )[0]
    kind = draw.choices(
        ["application/json", "text/plain", "multipart/form-data; boundary=x",
         "multipart/form-data", "application/json; charset=utf-16", ""], [30, 1, 5, 1, 1, 1],
    )[0]  # fmt: skip
    content = draw.choice(RAW)
    if draw.random() < 0.8:
        content = json.dumps(changed(body, draw)).encode()
    if "boundary" in kind and draw.random() < 0.8:
        fields = {"model": draw.choice(ODD), draw.choice(["file", "x", "model"]): draw.choice(ODD)}
        content = b"".join(
            f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a"\r\n\r\n'.encode()
            + str(value)[:200].encode("utf-8", "replace") + b"\r\n"
            for name, value in fields.items()
        ) + draw.choice([b"--x--\r\n", b"", b"--x"])  # fmt: skip
    return {"method": method, "url": path, "content": content, "headers": {"Content-Type": kind}}


def tool_message(draw: random.Random) -> bytes:
    """What a client of the Model Context Protocol might send by mistake."""
    if draw.random() < 0.1:
        return draw.choice(RAW)
    return json.dumps(changed(draw.choice(MESSAGES), draw)).encode()


def realtime_event(draw: random.Random) -> str:
    """What a client might send by mistake."""
    if draw.random() < 0.1:
        return draw.choice(RAW).decode("utf-8", "replace")
    return json.dumps(changed(draw.choice(EVENTS), draw))
