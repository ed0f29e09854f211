"""/reply of Gradio's own protocol: a whole reply as one file, with every choice left open."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest
import soundfile
from gradio_client import Client

from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.ui.page_support import FakeService, Script, free_port, signal, until


@pytest.fixture(scope="module")
def scripted():
    service, port = FakeService(), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, f"http://127.0.0.1:{port}"
    page.close(verbose=False)


@pytest.fixture
def service(scripted):
    scripted[0].reset()
    return scripted[0]


@pytest.fixture
def url(scripted):
    return scripted[1]


@pytest.fixture(scope="module")
def client(scripted):
    client = Client(scripted[1], verbose=False)
    yield client
    client.close()


def called(url: str, data: list) -> tuple[str, list]:
    """What `curl` gets: the last event of a call, and its data."""
    call = httpx.post(f"{url}/gradio_api/call/reply", json={"data": data})
    assert call.status_code == 200, call.text
    told = httpx.get(f"{url}/gradio_api/call/reply/{call.json()['event_id']}", timeout=60).text
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
    sound = httpx.get(data[0].get("url") or f"{url}/gradio_api/file={data[0]['path']}")
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
    told = httpx.get(f"{url}/gradio_api/info").json()["named_endpoints"]
    assert set(told) == {"/reply", "/stream", "/stop", "/listen"}
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
    answer = httpx.post(f"{url}/gradio_api/call/reply", json={"data": []})
    assert answer.status_code == 422 and "5 arguments" in answer.json()["detail"]
    assert service.requests == []


def test_stop_ends_it(service, client):
    service.script = Script(seconds=30.0, rtf=0.5)
    job = client.submit("A long one.", api_name="/reply")
    assert until(lambda: service.open)
    client.predict(api_name="/stop")
    assert until(lambda: not service.open) and until(job.done)
    with pytest.raises(Exception, match="The reply was stopped; ask again"):
        job.result()


def test_who_hangs_up_stops_the_reply(service, url):
    service.script = Script(seconds=60.0, rtf=0.9)
    call = httpx.post(f"{url}/gradio_api/call/reply", json={"data": ["A long one."]})
    address = f"{url}/gradio_api/call/reply/{call.json()['event_id']}"
    with httpx.stream("GET", address, timeout=60) as answer:
        next(answer.iter_raw())
        assert until(lambda: service.open)
    assert until(lambda: not service.open) and len(service.cancelled) == 1
