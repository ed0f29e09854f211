"""Refusals as programs are told of them, and calls that are nearly right: real bodies and events
with something of them changed, and bytes that are none at all."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.sync.client
from starlette.requests import Request

from moss_engine.api.errors import AudioFormatError
from moss_engine.endpoints.bodies import (
    MAX_JSON_BYTES,
    MAX_SOUND_BYTES,
    PIECE_BYTES,
    check_size,
    parse,
    parse_value,
    read_body,
    read_json,
    without_effect,
)
from moss_engine.endpoints.chat import ChatBody
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.sound import from_base64
from moss_engine.endpoints.speech import SpeechBody
from moss_engine.endpoints.tool import Say
from tests.ui.page_support import FakeService, Script, until


def test_long_names_of_fields_are_not_repeated_whole():
    long = "x" * 100_000
    body = parse('{"model": "m", "input": "i", "' + long + '": 1}', SpeechBody)
    assert without_effect(body) == ["x" * 60]
    with pytest.raises(ApiError) as caught:
        parse_value({"text": "Hi.", long: 1}, Say)
    assert caught.value.code == "unknown_field"
    assert len(str(caught.value.value())) < 500 and "xxx is not served" in caught.value.message


KNOWN = json.loads(Path(__file__).with_name("bodies.json").read_text(encoding="utf-8"))
"""What programs send; and by its path what is wrong with a body behind a change, told by status,
param and message."""


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "sentence"),
    [
        (door["path"], {**door["right"], **change}, *told)
        for door in KNOWN["wrong"]
        for change, *told in door["rows"]
    ],
)
def test_what_is_wrong_is_named(url, service, path, body, status, param, sentence):
    answer = httpx.post(f"{url}/v1/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error" and error["code"]
    assert re.search(sentence, error["message"]), error["message"]
    assert service.requests == []


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "\u0000", "😀" * 50, "\ud800", "a" * 5000, [], {},
    [[]], [None], {"x": 1}, [{"type": "text"}], float("nan"), float("inf"), "../../etc/passwd",
    {"type": "x"}, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip
RAW = (
    b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'"text"', b"[" * 9000, b"1" * 5000,
    b'{"a":' * 3000, b"\x00" * 64, b'{"model": "\\ud800"}', b"{}" * 50, b"--x\r\n\r\n--x--\r\n",
)  # fmt: skip
KINDS = ("application/json",) * 8 + ("text/plain", "multipart/form-data; boundary=x", "")


TOKEN = re.compile(r'"[^"]*"|[\d.]+|true|null|\[.*?\]')


def changed(value: Any, draw: random.Random) -> bytes:
    """JSON of it with one to three names, values or lists in it replaced, or taken three times;
    or no JSON."""
    if draw.random() < 0.15:
        return draw.choice(RAW)
    text = json.dumps(value)
    for _ in range(draw.randint(1, 3)):
        found = draw.choice(list(TOKEN.finditer(text)))
        others = [json.dumps(draw.choice(ODD)), ", ".join([found[0]] * 3), ""]
        other = draw.choices(others, weights=(8, 1, 1))[0]
        text = text[: found.start()] + other + text[found.end() :]
    return text.encode()


@contextmanager
def left_as_it_was(service: FakeService, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    service.script = Script(seconds=0.04, first_s=0.0, rtf=0.0)
    yield
    assert until(lambda: not service.open)
    assert not [record for record in caplog.records if record.exc_info]


def test_http_calls_are_refused_and_nothing_is_left(url, service, caplog):
    draw, seen = random.Random(17), set()
    with left_as_it_was(service, caplog), httpx.Client(timeout=20) as http:
        for _ in range(150):
            path, body = draw.choice(KNOWN["bodies"])
            path = draw.choice([path] * 8 + ["models/x%0ay", "audio/transcriptions", "realtime"])
            method = draw.choice(["POST"] * 8 + ["GET", "DELETE", "OPTIONS"])
            headers, content = {"Content-Type": draw.choice(KINDS)}, changed(body, draw)
            answer = http.request(method, f"{url}/v1/{path}", content=content, headers=headers)
            seen.add(answer.status_code)
            assert answer.status_code < 500, (method, path, content, answer.text)
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["message"].endswith((".", "python -m scripts.download")), error
                assert "Traceback" not in error["message"] and error["code"]
    assert {200, 400, 404, 405} <= seen


def test_realtime_events_are_refused_and_nothing_is_left(url, service, caplog):
    draw, errors = random.Random(18), 0
    address = f"{url.replace('http', 'ws')}/v1/realtime"
    with left_as_it_was(service, caplog):
        for _ in range(5):
            with websockets.sync.client.connect(address) as socket:
                for _ in range(20):
                    socket.send(
                        changed(draw.choice(KNOWN["events"]), draw).decode("utf-8", "replace")
                    )
                # Last, what is answered whatever came before.
                socket.send(json.dumps({"type": "input_audio_buffer.clear", "event_id": "last"}))
                kind = ""
                while kind != "input_audio_buffer.cleared":
                    event = json.loads(socket.recv(timeout=20))
                    kind = event["type"]
                    if kind == "error":
                        errors += 1
                        assert event["error"]["type"] != "server_error", event
                        assert event["error"]["message"].endswith("."), event
    assert errors > 25


def test_many_values_are_counted_before_they_are_made():
    message = b'{"role": "user", "content": "a, [b], {c}"}, '
    assert check_size(b"[" + message * 2500 + b"]") is None
    for body in (message * 300_000, b"[" * 30_000, "1," * 30_000):
        began_s = time.process_time()
        with pytest.raises(ApiError, match="20,000 values"):
            check_size(body)
        assert time.process_time() - began_s < 0.5
    with pytest.raises(ApiError, match="20,000 values"):
        parse(b'{"model": "m", "messages": [' + message * 30_000 + b"]}", ChatBody)


def test_base64_is_read_in_pieces_as_in_one():
    sound = bytes(range(256)) * 400
    data = base64.b64encode(sound + b"a").decode()
    lines = "\n".join(data[begin : begin + 76] for begin in range(0, len(data), 76))
    for whole in (data, lines, f"{lines}\n" + " " * PIECE_BYTES):
        assert from_base64(whole) == sound + b"a"
    for wrong in (data + data, data[:-1], f"{data}\n%", "A===", data[:8] + "=" + data[9:]):
        with pytest.raises(AudioFormatError, match="no base64"):
            from_base64(wrong)


async def test_a_hostile_body_is_refused_by_its_beginning():
    async def receive() -> dict[str, Any]:
        if not came:
            await asyncio.Event().wait()  # the rest never comes
        return {"type": "http.request", "body": came.pop(), "more_body": True}

    came = [b"[" + b"1," * MAX_JSON_BYTES]
    request = Request(
        {"type": "http", "headers": [(b"content-type", b"application/json")]}, receive
    )
    with pytest.raises(ApiError, match="20,000 values"):
        await asyncio.wait_for(read_json(request, ChatBody, MAX_SOUND_BYTES), 5)


async def test_of_large_bodies_one_part_is_taken_in_a_round_of_the_event_loop():
    taken, rounds, size = list[int](), 0, MAX_JSON_BYTES // 4

    def body() -> Request:
        parts = iter(range(16))

        async def receive() -> dict[str, Any]:
            part = next(parts)
            if part > 4:  # the body is known to be large
                taken.append(rounds)
            return {"type": "http.request", "body": bytes(size), "more_body": part < 15}

        return Request({"type": "http", "headers": []}, receive)

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    counting = asyncio.create_task(count())
    bodies = await asyncio.gather(*(read_body(body(), MAX_SOUND_BYTES) for _ in range(8)))
    counting.cancel()
    assert {len(whole) for whole in bodies} == {16 * size}
    assert len(taken) == 8 * 11 and len(set(taken)) >= len(taken) - 1
