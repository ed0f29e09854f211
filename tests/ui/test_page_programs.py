"""Programs on the page's own port: OpenAI's endpoints behind its guard and in front of its service, and Gradio's
own protocol: /reply with a whole reply as one file, /stream, /stop, and its queue."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gradio as gr
import httpx
import numpy as np
import pytest
import soundfile
import websockets.exceptions
import websockets.sync.client
from gradio.queueing import Queue
from gradio_client import Client

from moss_engine.api.errors import ALL_TAKEN, BusyError
from moss_engine.audio.pcm import to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.programs import access_of
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, free_port, signal, until

TEXT = "Hello there, world. I am here."


@pytest.fixture(scope="module")
def real(tiny_checkpoint):
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    service.start()
    port = free_port()
    page = launch(service, PageConfig(port=port, mcp=True), model="nano")
    yield service, f"http://127.0.0.1:{port}/v1"
    page.close(verbose=False)
    service.close()


@pytest.mark.parametrize(
    ("change", "open_to_all"),
    [({}, True), ({"host": "0.0.0.0"}, False), ({"share": True}, False), ({"auth": "a:b"}, False)],
)
def test_programs_need_a_key_wherever_others_can_come(change, open_to_all, tmp_path):
    config = replace(PageConfig(), **change)
    assert (access_of(config)._local is not None) == open_to_all
    path = tmp_path / "keys"
    path.write_text(f"ann {'k' * 20}\n", encoding="utf-8")
    assert access_of(replace(config, api_key_file=path)).by_key


def test_a_websocket_is_behind_the_same_guard(real):
    _, url = real
    address = f"{url.replace('http', 'ws')}/realtime"
    with websockets.sync.client.connect(address) as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
    for path, headers, status in (
        ("realtime", {"Origin": "https://evil.example"}, 403),
        ("realtime?model=other", {}, 404),
        ("nothing", {}, 403),
    ):
        with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
            websockets.sync.client.connect(
                address.replace("realtime", path), additional_headers=headers
            )
        assert caught.value.response.status_code == status


# docs/api.md and README.md: every curl line and every program of them is run.

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
# Transcriptions need a recogniser, which the tiny checkpoint of this test is not given.
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", DOCUMENT, re.S)
    for line in block.splitlines()
    if line.startswith("curl ") and "transcriptions" not in line
]
PROGRAMS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
assert len(LINES) > 2 and len(PROGRAMS) > 3
README = (ROOT / "README.md").read_text(encoding="utf-8")


def port_and_voice(real) -> tuple[int, str]:
    service, url = real
    return httpx.URL(url).port, asyncio.run(service.describe()).voices[0]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", LINES)
def test_curl_lines_work_as_they_stand(real, line, tmp_path):
    port, voice = port_and_voice(real)
    command = shlex.split(line.replace(":7860", f":{port}").replace('"ada"', f'"{voice}"'))
    done = subprocess.run(
        [*command, "--fail-with-body", "--silent", "--show-error", "--max-time", "60"],
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    files = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(done.stdout) > 0 or (files and min(files) > 0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_work_as_they_stand(real, program, tmp_path, monkeypatch, capsys):
    port, voice = port_and_voice(real)
    monkeypatch.chdir(tmp_path)
    exec(program.replace(":7860", f":{port}").replace('"ada"', f'"{voice}"'), {})
    out = capsys.readouterr().out
    written = [path for path in tmp_path.iterdir() if path.stat().st_size > 1000]
    assert written or "response.done" in out or Path(out.split()[-1]).stat().st_size > 1000


def test_the_readme_s_call_gives_a_file(real):
    port, _ = port_and_voice(real)
    (call,) = re.findall(r"`(Client\(.*?\)\.predict\(.*?\))`", README)
    path = eval(call.replace(":7860", f":{port}"), {"Client": Client})
    assert Path(path).read_bytes()[:4] == b"RIFF"


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


def test_predict_gives_the_whole_sound_of_what_is_chosen(service, client):
    path = client.predict("Over the wire.", "default", 1.25, "chat", 11, api_name="/reply")
    request = service.requests[-1]
    assert (request.voice, request.speed, request.mode) == ("default", 1.25, "chat")
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
        (["Hi.", None, 1.0, "sing"], "There is no mode 'sing'; choose one of"),
        (["Hi.", None, 1.0, "write"], "'write' makes no sound; choose another"),
        ([{"a": 1}], "text"),
    ],
)
def test_what_is_wrong_is_said(service, client, given, sentence):
    with pytest.raises(Exception, match=sentence):
        client.predict(*given, api_name="/reply")
    assert service.requests == []


@pytest.mark.parametrize("name", ["/reply", "/stream"])
def test_stop_ends_it(service, client, name):
    service.script = Script(seconds=30.0, rtf=0.5)
    job = client.submit("A long one.", api_name=name)
    assert until(lambda: service.open)
    entries = client.predict(api_name="/stop")
    assert until(lambda: not service.open) and until(job.done)
    if name == "/stream":
        assert job.outputs()[-1]["state"] == "stopped"
        assert [entry["role"] for entry in entries[-2:]] == ["user", "assistant"]
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
