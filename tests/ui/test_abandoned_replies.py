"""Replies that nobody opens, or whose sound nobody reads from the socket, give their place back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, free_port, until

LEASE_S = 1.0
LONG = Script(seconds=120.0, first_s=0.01, rtf=0.001)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeService, int]]:
    service, port = FakeService(LONG, replace(INFO, lease_s=LEASE_S)), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port
    page.close(verbose=False)


@pytest.fixture
def service(served) -> FakeService:
    served[0].reset(LONG)
    return served[0]


def assert_begins_and_is_ended(service: FakeService) -> None:
    assert until(lambda: service.requests), "it did not begin"
    assert until(lambda: service.cancelled and not service.open), "it holds its place"


def ask(port: int, session: str) -> None:
    """A reply is asked for, as a program does before it opens the stream of messages."""
    base = f"http://127.0.0.1:{port}"
    data = [*{**form.defaults(PageInfo.of(INFO)), "text": "A long one."}.values()]
    functions = httpx.get(f"{base}/config", timeout=60).json()["dependencies"]
    index = next(fn["id"] for fn in functions if fn["api_name"] == "stream")
    body = {"fn_index": index, "session_hash": session, "data": data}
    answer = httpx.post(f"{base}/gradio_api/queue/join", json=body, timeout=60)
    answer.raise_for_status()


def test_a_reply_that_nobody_opens_ends_with_its_lease(service, served):
    _, port = served
    ask(port, "never")
    assert_begins_and_is_ended(service)


def test_a_reply_whose_socket_nobody_reads_ends_with_its_lease(service, served):
    _, port = served
    ask(port, "unread")
    with socket.socket() as visitor:
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        visitor.connect(("127.0.0.1", port))
        visitor.sendall(
            b"GET /gradio_api/queue/data?session_hash=unread HTTP/1.1\r\n"
            + f"Host: 127.0.0.1:{port}\r\n\r\n".encode()
        )
        assert_begins_and_is_ended(service)


def test_a_whole_reply_that_nobody_takes_ends_with_its_lease(service, served):
    _, port = served
    service.reset(replace(LONG, rtf=0.1))  # it is still made when the timeout ends
    url = f"http://127.0.0.1:{port}/gradio_api/call/reply"
    httpx.post(url, json={"data": ["A long one."]}, timeout=60).raise_for_status()
    assert_begins_and_is_ended(service)
