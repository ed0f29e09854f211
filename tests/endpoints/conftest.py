"""A scripted service behind the endpoints."""

from __future__ import annotations

import threading
from dataclasses import replace

import openai
import pytest

from moss_engine.talk.chat_server import ChatServer
from moss_engine.talk.llm import Llm
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from tests.endpoints.endpoint_support import running
from tests.talk.talk_support import READER
from tests.talk.test_llm import Chat, event
from tests.ui.page_support import FakeService, Script


@pytest.fixture(scope="module")
def served():
    service = FakeService()
    with running(service) as url:
        yield service, url


@pytest.fixture
def service(served):
    served[0].reset(Script(seconds=1.2, first_s=0.02, rtf=0.02))
    return served[0]


@pytest.fixture
def url(served, service):
    return served[1]


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def thinking():
    """The endpoints over a chat server that calls a function until it hears of its result."""
    chat = Chat()

    def script(handler) -> None:
        chat.begin(handler)
        told = chat.asked[-1]["messages"][-1]
        if told["role"] == "tool":
            chat.say(handler, told["content"])
        else:
            for piece in (
                {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": ""}},
                {"index": 0, "function": {"arguments": '{"city": '}},
                {"index": 0, "function": {"arguments": '"Rome"}'}},
                {"index": 1, "function": {"name": "get_weather", "arguments": "{}"}},
            ):
                handler.wfile.write(event({"tool_calls": [piece]}))
        handler.wfile.write(b"data: [DONE]\n\n")

    chat.script = script
    threading.Thread(target=chat.server.serve_forever, args=(0.02,), daemon=True).start()
    below = FakeService(Script(seconds=0.4, first_s=0.01, rtf=0.01), READER)
    info = replace(READER, brain="tiny")
    info = replace(info, modes=talking_modes(info))
    service = TalkingService(below, info, Llm(ChatServer(chat.url, "tiny")))  # type: ignore[arg-type]
    with running(service) as url:
        yield chat, url
    chat.server.shutdown()
    chat.server.server_close()
