"""Gradio's own protocol: /reply with a whole reply as one file, /stream, /stop, and its queue."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gradio as gr
import httpx
import numpy as np
import pytest
import soundfile
from gradio.queueing import Queue
from gradio_client import Client

from moss_engine.api.errors import ALL_TAKEN, BusyError
from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, free_port, signal, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client(url):
    client = Client(url, verbose=False)
    yield client
    client.close()


def called(url: str, data: list) -> tuple[str, list]:
    """What `curl` gets: the last event of a call, and its data."""
    call = httpx.post(f"{url}gradio_api/call/reply", json={"data": data})
    assert call.status_code == 200, call.text
    told = httpx.get(f"{url}gradio_api/call/reply/{call.json()['event_id']}", timeout=60).text
    name, value = told.strip().split("\n\n")[-1].split("\n")
    return name.removeprefix("event: "), json.loads(value.removeprefix("data: "))


def test_predict_gives_the_whole_sound(service, client):
    path = client.predict("Over the wire.", seed=11, api_name="/reply")
    pcm, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == 24_000
    assert np.array_equal(pcm, to_pcm16(signal(service.script.seconds, seed=11)))


def test_all_but_the_text_may_be_left_out(service, client, url):
    assert client.predict("Hello.", api_name="/reply").endswith(".wav")
    name, data = called(url, ["Hello."])
    assert name == "complete"
    sound = httpx.get(data[0].get("url") or f"{url}gradio_api/file={data[0]['path']}")
    assert sound.status_code == 200 and sound.content[:4] == b"RIFF"
    seeds = [request.sampling.seed for request in service.requests]
    assert len(set(seeds)) == len(seeds) == 2
    assert {(r.voice, r.mode, r.speed) for r in service.requests} == {("default", "read", 1.0)}


def test_what_is_chosen_is_asked_for(service, client):
    client.predict("Hello.", "default", 1.25, "chat", 3, api_name="/reply")
    request = service.requests[-1]
    assert (request.voice, request.speed, request.mode) == ("default", 1.25, "chat")
    assert request.sampling.seed == 3


def test_what_clients_are_told_is_true(client, url):
    told = httpx.get(f"{url}gradio_api/info").json()["named_endpoints"]
    assert set(told) == {"/reply", "/stream", "/stop"}
    fields = {p["parameter_name"]: p["parameter_has_default"] for p in told["/reply"]["parameters"]}
    assert fields == {"text": False, "voice": True, "speed": True, "mode": True, "seed": True}
    assert all(p["parameter_has_default"] for p in told["/stream"]["parameters"])
    assert "WAV file" in told["/reply"]["description"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["  "], "There is nothing to say; type a sentence"),
        (["Hi.", "nobody"], "There is no voice 'nobody'; choose one of default"),
        (["Hi.", None, 9.0], "speed"),
        (["Hi.", None, 1.0, "sing"], "There is no mode 'sing'; choose one of"),
        (["Hi.", None, 1.0, "write"], "'write' makes no sound; choose another"),
        (["Hi.", None, 1.0, "listen"], "Nothing was said yet"),
        (["Hi.", None, 1.0, None, -1], "seed"),
        ([{"a": 1}], "text"),
    ],
)
def test_what_is_wrong_is_said(service, client, given, sentence):
    with pytest.raises(Exception, match=sentence):
        client.predict(*given, api_name="/reply")
    assert service.requests == []


def test_a_call_without_its_text_is_refused(url, service):
    answer = httpx.post(f"{url}gradio_api/call/reply", json={"data": []})
    assert answer.status_code == 422 and "5 arguments" in answer.json()["detail"]
    assert service.requests == []


@pytest.mark.parametrize("name", ["/reply", "/stream"])
def test_stop_ends_it(service, client, name):
    service.script = Script(seconds=30.0, rtf=0.5)
    job = client.submit("A long one.", api_name=name)
    assert until(lambda: service.open)
    client.predict(api_name="/stop")
    assert until(lambda: not service.open) and until(job.done)
    if name == "/stream":
        assert job.outputs()[-1]["state"] == "stopped"
        return
    with pytest.raises(Exception, match="The reply was stopped; ask again"):
        job.result()


def test_who_hangs_up_stops_the_reply(service, url):
    service.script = Script(seconds=60.0, rtf=0.9)
    call = httpx.post(f"{url}gradio_api/call/reply", json={"data": ["A long one."]})
    address = f"{url}gradio_api/call/reply/{call.json()['event_id']}"
    with httpx.stream("GET", address, timeout=60) as answer:
        next(answer.iter_raw())
        assert until(lambda: service.open)
    assert until(lambda: not service.open) and len(service.cancelled) == 1


def test_a_program_gets_the_same_sound(service, client):
    job = client.submit("Over the wire.", seed=11, new_seed=False, api_name="/stream")
    job.result(timeout=120)
    pcm = b"".join(base64.b64decode(message["pcm"]) for message in job.outputs())
    sent = to_pcm16(signal(service.script.seconds, seed=11))
    assert np.array_equal(np.frombuffer(pcm, "<i2"), sent)
    numbers = [message["seq"] for message in job.outputs()]
    assert numbers == list(range(len(numbers)))
    roles = [entry["role"] for entry in client.predict(api_name="/stop")]
    assert roles[-2:] == ["user", "assistant"]


def test_files_of_others_and_other_names_are_closed(service, url):
    with httpx.Client(base_url=url) as http:
        assert http.get("/gradio_api/file=/etc/passwd").status_code == 403
        assert http.get("/gradio_api/file=app.py").status_code == 404
        assert http.get("/", headers={"Host": "rebound.example"}).status_code == 403
        icon = (ROOT / "moss_engine" / "ui" / "icon.png").read_bytes()
        assert http.get("/favicon.ico").content == icon
        for path in ("/", "/healthz", "/readyz", "/config"):
            answer = http.get(path)
            assert answer.status_code == 200
            assert answer.headers["x-content-type-options"] == "nosniff"


# What is asked and not waited for, and more than there are places for.

MANY = 45  # at a time, which is more than Gradio works on by itself
LEASE_S = 1.0
LONG = Script(seconds=120.0, first_s=0.01, rtf=0.001)


@pytest.fixture(scope="module")
def leased() -> Iterator[tuple[FakeService, int, gr.Blocks]]:
    service, port = FakeService(LONG, replace(INFO, lease_s=LEASE_S)), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port, page
    page.close(verbose=False)


@pytest.fixture
def abandoned(leased) -> FakeService:
    leased[0].reset(LONG)
    return leased[0]


def assert_begins_and_is_ended(service: FakeService) -> None:
    assert until(lambda: service.requests), "it did not begin"
    assert until(lambda: service.cancelled and not service.open), "it holds its place"


def ask(base: str, *sessions: str) -> None:
    """Replies are asked for, as a program does before it opens the stream of messages."""
    data = [*{**form.defaults(INFO), "text": "A long one."}.values()]
    functions = httpx.get(f"{base}config", timeout=60).json()["dependencies"]
    index = next(fn["id"] for fn in functions if fn["api_name"] == "stream")
    with httpx.Client(base_url=base, timeout=60) as client:
        for session in sessions:
            body = {"fn_index": index, "session_hash": session, "data": data}
            client.post("gradio_api/queue/join", json=body).raise_for_status()


def test_every_question_reaches_the_service_which_says_who_is_refused(service, client, url):
    service.script = Script(seconds=2.0, first_s=120.0, rtf=0.1)
    ask(url, *(f"many{number}" for number in range(MANY)))
    assert until(lambda: len(service.open) == MANY)
    for key in list(service.open):
        service.cancel(key)
    service.script = Script(error=BusyError(ALL_TAKEN))
    for name in ("/reply", "/stream"):
        with pytest.raises(Exception, match=ALL_TAKEN):
            client.predict("One more.", api_name=name)


def test_gradio_looks_for_calls_a_few_times_a_second_where_nobody_asks(leased, monkeypatch):
    looks = []
    monkeypatch.setattr(Queue, "__len__", lambda queue: looks.append(queue) or 0)
    time.sleep(0.5)
    assert 1 < looks.count(leased[2]._queue) < 20


def test_a_reply_whose_socket_nobody_reads_ends_with_its_lease(abandoned, leased):
    _, port, _ = leased
    ask(f"http://127.0.0.1:{port}/", "unread")
    with socket.socket() as visitor:
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        visitor.connect(("127.0.0.1", port))
        visitor.sendall(
            b"GET /gradio_api/queue/data?session_hash=unread HTTP/1.1\r\n"
            + f"Host: 127.0.0.1:{port}\r\n\r\n".encode()
        )
        assert_begins_and_is_ended(abandoned)


def test_a_whole_reply_that_nobody_takes_ends_with_its_lease(abandoned, leased):
    _, port, _ = leased
    abandoned.reset(replace(LONG, rtf=0.1))  # it is still made when the timeout ends
    url = f"http://127.0.0.1:{port}/gradio_api/call/reply"
    httpx.post(url, json={"data": ["A long one."]}, timeout=60).raise_for_status()
    assert_begins_and_is_ended(abandoned)
