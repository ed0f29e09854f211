"""The page over HTTP, as programs use it, and the real service behind it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal as signals
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client

from moss_engine.api.errors import ConfigError, ContextError
from moss_engine.api.events import AudioChunk
from moss_engine.api.request import Text
from moss_engine.api.service import stream
from moss_engine.audio.pcm import to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, engine_stats, free_port, signal, until

ROOT = Path(__file__).resolve().parents[2]


def pcm_of(outputs: list) -> np.ndarray:
    return np.frombuffer(b"".join(base64.b64decode(message["pcm"]) for message in outputs), "<i2")


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


@pytest.fixture
def client(url):
    client = Client(url, verbose=False)
    yield client
    client.close()


def test_a_program_gets_the_same_sound(service, client):
    job = client.submit("Over the wire.", seed=11, new_seed=False, api_name="/stream")
    job.result(timeout=120)
    assert np.array_equal(pcm_of(job.outputs()), to_pcm16(signal(service.script.seconds, seed=11)))
    assert [message["seq"] for message in job.outputs()] == sorted(
        message["seq"] for message in job.outputs()
    )
    assert [entry["role"] for entry in client.predict(api_name="/stop")] == ["user", "assistant"]


def test_a_program_can_stop_its_reply(service, client):
    service.script = Script(seconds=30.0, rtf=0.5)
    job = client.submit("A long one.", api_name="/stream")
    assert until(lambda: service.open)
    client.predict(api_name="/stop")
    assert until(lambda: not service.open)
    assert until(job.done) and job.outputs()[-1]["state"] == "stopped"


def test_a_program_hears_why_it_was_refused(service, client):
    with pytest.raises(Exception, match="There is nothing to say; type a sentence"):
        client.predict("  ", api_name="/stream")
    assert service.requests == []


def test_the_wire_refuses_what_is_no_call(service, url):
    data = [*{**form.defaults(PageInfo.of(INFO)), "text": "hi"}.values()]
    with httpx.Client(base_url=url) as http:
        functions = http.get("/config").json()["dependencies"]
        index = next(fn["id"] for fn in functions if fn["api_name"] == "stream")
        join = {"fn_index": index, "session_hash": "abcdefgh", "data": data}
        assert (
            http.post("/gradio_api/queue/join", json={**join, "data": data[1:]}).status_code == 422
        )
        assert http.post("/gradio_api/queue/join", json={**join, "fn_index": 99}).status_code == 404
        nan = json.dumps(join).replace("0.7", "NaN")
        assert http.post("/gradio_api/queue/join", content=nan).status_code == 400
        assert http.post("/gradio_api/run/reply", json=join).status_code == 404
        assert http.get("/monitoring/summary").status_code == 404
        assert http.get("/gradio_api/file=/etc/passwd").status_code == 403
        assert http.get("/gradio_api/file=app.py").status_code == 404
        assert http.get("/", headers={"Host": "rebound.example"}).status_code == 403
        assert (
            http.get("/favicon.ico").content
            == (ROOT / "moss_engine" / "ui" / "icon.png").read_bytes()
        )
        for answer in (
            http.get("/"),
            http.get("/healthz"),
            http.get("/readyz"),
            http.get("/config"),
        ):
            assert (
                answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
            )
    assert service.requests == []


def test_readiness_follows_the_service(service, url):
    service.drained = True
    assert (
        httpx.get(f"{url}/readyz").status_code == 503
        and httpx.get(f"{url}/healthz").status_code == 200
    )
    service.drained = False


def test_a_taken_port_is_one_sentence(service, url):
    with pytest.raises(ConfigError, match=r"Port \d+ is taken; give another with --port"):
        launch(FakeService(), PageConfig(port=int(url.rpartition(":")[2])))


@pytest.fixture(scope="module")
def real(tiny_checkpoint):
    config = PageConfig(port=free_port())
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    service.start()
    page = launch(service, config)
    yield service, config
    page.close(verbose=False)
    service.close()


VALUES = {"text": "Hello there, world. I am here.", "seed": 5, "new_seed": False}


async def direct(service) -> np.ndarray:
    """The sound of the same request, without a page between."""
    facts = PageInfo.of(await service.describe())
    values = {**form.defaults(facts), **VALUES}
    request = form.request_of(values, facts, VALUES["seed"], (), Text(VALUES["text"]), "direct")
    chunks = [
        event.samples async for event in stream(service, request) if isinstance(event, AudioChunk)
    ]
    return to_pcm16(np.concatenate(chunks))


def test_the_real_service_sounds_the_same_through_the_page(real):
    service, config = real
    client = Client(f"http://127.0.0.1:{config.port}", verbose=False)
    job = client.submit(**VALUES, api_name="/stream")
    job.result(timeout=120)
    client.close()
    assert np.array_equal(pcm_of(job.outputs()), asyncio.run(direct(service)))
    assert engine_stats(service).blocks_used == 0


def test_stop_frees_every_block_of_the_real_service(real):
    service, config = real
    client = Client(f"http://127.0.0.1:{config.port}", verbose=False)
    client.submit(" ".join(["Hello world and you."] * 100), api_name="/stream")
    assert until(lambda: engine_stats(service).blocks_used > 0)
    client.predict(api_name="/stop")
    client.close()
    assert until(lambda: engine_stats(service).blocks_used == 0)
    assert engine_stats(service).leaked_blocks == 0


def run_app(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "app.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_a_checkpoint_the_program_says_what_is_missing(tmp_path):
    process = run_app("--checkpoint", str(tmp_path))
    out, error = process.communicate(timeout=120)
    assert process.returncode == 1 and out == ""
    assert error.count("\n") == 1 and "holds no checkpoint" in error


def test_a_page_that_cannot_be_opened_ends_the_program_with_a_sentence(tmp_path):
    """With the built-in voice, whose threads are busy by then."""
    process = run_app("--port", str(free_port()), "--api-key-file", str(tmp_path / "keys"))
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert error.count("\n") == 1 and "--api-key-file" in error


def test_a_taken_port_is_told_before_anything_is_loaded(tiny_checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = run_app("--checkpoint", str(tiny_checkpoint), "--port", port)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert error.count("\n") == 1 and f"Port {port} is taken" in error


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_a_start_that_is_broken_off_ends_without_a_traceback():
    terminal, process_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(free_port())],
        cwd=ROOT,
        stderr=process_end,
        stdout=process_end,
    )
    os.close(process_end)
    said = os.fdopen(terminal, "rb")
    try:
        assert said.readline() == b"Loading nano.\r\n"
        process.send_signal(signals.SIGINT)
        assert process.wait(timeout=120) == 130
        with contextlib.suppress(OSError):  # Linux says so that nobody is left to write
            assert said.read() == b""
    finally:
        process.kill()
        process.wait()
        said.close()


@pytest.mark.parametrize("signal", [signals.SIGTERM, signals.SIGINT])
def test_a_signal_lets_the_open_reply_end_and_leaves_no_sound(signal, tiny_checkpoint, tmp_path):
    port = free_port()
    process = run_app(
        "--checkpoint",
        str(tiny_checkpoint),
        "--port",
        str(port),
        "--device",
        "cpu",
        "--drain-s",
        "1",
        TMPDIR=str(tmp_path),
    )
    try:
        line = process.stdout.readline()
        assert f"127.0.0.1:{port}" in line and "tiny-random" in line
        client = Client(f"http://127.0.0.1:{port}", verbose=False)
        job = client.submit(" ".join(["Hello world and you."] * 150), api_name="/stream")
        assert until(lambda: len(job.outputs()) > 3)
        process.send_signal(signal)
        assert until(job.done) and job.outputs()[-1]["end"]
        assert process.wait(timeout=120) == 0
        assert not list(tmp_path.glob("moss-speech-*"))
        client.close()
    finally:
        process.kill()
        process.wait()


def test_a_public_link_that_cannot_be_made_stops_the_start(service, monkeypatch):
    def no_tunnel(*_, **__):
        raise RuntimeError("no network")

    monkeypatch.setattr("gradio.networking.setup_tunnel", no_tunnel)
    port = free_port()
    with pytest.raises(ConfigError, match=r"No public link could be made.*omit --share"):
        launch(service, PageConfig(port=port, share=True))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("300.1.1.1", "300.1.1.1 is no address of this machine"),
        ("192.0.2.1", "192.0.2.1 is no address of this machine"),
    ],
)
def test_an_address_of_another_machine_is_refused(service, host, sentence):
    with pytest.raises(ConfigError, match=sentence):
        launch(service, PageConfig(host=host, port=free_port()))


def test_a_pool_too_small_to_speak_with_is_refused_at_start():
    service = FakeService(
        Script(error=ContextError("The conversation needs 18 rows.")), replace(INFO, kv_rows=64)
    )
    with pytest.raises(
        ConfigError, match="--kv-rows 64 is too small to speak with; give 1024 or more"
    ):
        launch(service, PageConfig(port=free_port()))
