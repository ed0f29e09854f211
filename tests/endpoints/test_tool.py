"""POST /mcp, as the Model Context Protocol's own client for Python uses it."""

from __future__ import annotations

import base64
import http.client
import io
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import numpy as np
import pytest
import soundfile
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from moss_engine.api.errors import BusyError, ConfigError, MissingPackageError
from moss_engine.audio.pcm import to_pcm16
from moss_engine.endpoints.access import Access, Caller, digest_of
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.server import Server
from tests.endpoints.endpoint_support import running
from tests.ui.page_support import INFO, MODES, FakeService, Script, signal, until

KEY = "k" * 20
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "say", "arguments": {"text": "Good morning."}},
}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def served():
    service = FakeService(info=replace(INFO, speeds=(0.7, 1.5)))
    with running(service, tool=True) as url:
        yield service, url


@asynccontextmanager
async def session(url: str, headers: dict[str, str] | None = None):
    async with (
        httpx.AsyncClient(headers=headers) as web,
        streamable_http_client(f"{url}/mcp", http_client=web) as (reading, writing, _),
        ClientSession(reading, writing) as client,
    ):
        await client.initialize()
        yield client


async def test_there_is_one_tool_and_it_says_what_it_takes(url):
    async with session(url) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["say"]
    fields = tools[0].inputSchema["properties"]
    assert list(fields) == ["text", "voice", "rate"]
    assert fields["voice"]["enum"] == ["default"] and fields["rate"]["maximum"] == 1.5
    assert tools[0].inputSchema["required"] == ["text"]


async def test_a_text_becomes_a_sound_file(url, service):
    asked = {"text": "Good morning.", "voice": "default", "rate": 1.25}
    async with session(url) as client:
        answer = await client.call_tool("say", asked)
    request = service.requests[-1]
    assert (request.messages[0].content.text, request.speed) == (asked["text"], 1.25)
    words, sound = answer.content
    assert not answer.isError and words.text == "1.2 s of speech."
    assert sound.mimeType == "audio/wav"
    pcm, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(sound.data)), dtype="int16")
    made = to_pcm16(signal(service.script.seconds, seed=request.sampling.seed % 50))
    assert rate_hz == 24_000 and np.array_equal(pcm, made)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "text is missing; send it."),
        ({"text": 5}, "text must be a valid string; change it."),
        ({"text": "Hi.", "format": "mp3"}, "format is not served here; leave it out."),
        ({"text": "Guten Morgen, wie geht es dir heute? Ich bin nicht da."}, "send English."),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(url, service, asked, sentence):
    async with session(url) as client:
        answer = await client.call_tool("say", asked)
    assert answer.isError and answer.content[0].text.endswith(sentence)
    assert service.requests == []


async def test_a_refusal_of_the_service_and_another_tool_are_sentences(url, service):
    service.script = Script(error=BusyError("All places are taken; try again."))
    async with session(url) as client:
        answer = await client.call_tool("say", {"text": "Hi."})
        other = await client.call_tool("listen", {})
    assert answer.isError and answer.content[0].text == "All places are taken; try again."
    assert other.isError and other.content[0].text == "There is no tool 'listen'; call 'say'."


def test_hanging_up_stops_the_reply(url, service):
    service.script = Script(seconds=60.0, rtf=0.5)
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    headers = {**HEADERS, "Content-Type": "application/json"}
    connection.request("POST", "/mcp", json.dumps(CALL), headers)
    assert until(lambda: service.open)
    connection.close()
    assert until(lambda: not service.open) and len(service.cancelled) == 1


async def test_the_tool_is_behind_the_keys_and_their_places():
    service = FakeService()
    access = Access(((digest_of(KEY), Caller("ann", places=1)),))
    with running(service, access, tool=True) as url:
        refused = httpx.post(f"{url}/mcp", json=CALL, headers=HEADERS)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        async with session(url, {"Authorization": f"Bearer {KEY}"}) as client:
            assert not (await client.call_tool("say", {"text": "Hi."})).isError
            with access.caller({"headers": [(b"authorization", f"Bearer {KEY}".encode())]}).place():
                answer = await client.call_tool("say", {"text": "Hi."})
    assert answer.isError and "allows 1 replies at a time" in answer.content[0].text


@pytest.mark.parametrize(
    ("method", "content", "status"),
    [
        ("GET", b"", 405),
        ("DELETE", b"", 405),
        ("POST", b"{", 400),
        ("POST", b"[" * 5000, 400),
        ("POST", b'{"jsonrpc": "2.0", "id": 1, "method": "no/such"}', 200),
        ("POST", b'{"jsonrpc": "1.0"}', 400),
        ("POST", b" " * (1 << 19), 413),
    ],
)
def test_messages_that_are_none_are_refused(url, method, content, status, caplog):
    headers = {**HEADERS, "Content-Type": "application/json"}
    answer = httpx.request(method, f"{url}/mcp", content=content, headers=headers)
    assert answer.status_code == status and answer.json()["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info]


def test_where_it_cannot_be_offered_the_option_says_why(monkeypatch):
    info = replace(INFO, modes=MODES[1:])
    server = Server(FakeService(info=info), info, "scripted", Access(open_to_all=True))
    with pytest.raises(ConfigError, match="omit it"):
        make_app(server, tool=True)
    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'mcp>=1\.21,<2'"):
        make_app(server, tool=True)


def test_the_tool_is_there_by_option_only():
    with running(FakeService()) as url:
        assert httpx.post(f"{url}/mcp", json=CALL).status_code == 404
