"""The program from its start to its end: addresses, certificates, links, signals, and Windows as far as
another system can tell."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal as signals
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets.sync.client
from gradio_client import Client

from moss_engine.api.errors import ConfigError, ContextError
from moss_engine.serve import run, shield_gradio
from moss_engine.ui.clip import write_clip
from moss_engine.ui.config import PageConfig
from moss_engine.ui.entrance import process as process_of
from moss_engine.ui.entrance.process import BROKEN_OFF, breakable
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, free_port, until

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def program(*arguments: str, **options) -> Iterator[subprocess.Popen]:
    """Python with arguments, in the program's folder; gone at the end. `options` are Popen's."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    usual = {"cwd": ROOT, "text": True, **pipes}
    process = subprocess.Popen([sys.executable, *arguments], **{**usual, **options})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def with_folder(folder: Path) -> dict[str, str]:
    """The environment in which temporary files are made there."""
    return {**os.environ, "TMPDIR": str(folder)}


def test_a_page_that_cannot_be_opened_ends_the_program_with_a_sentence(tiny_checkpoint, tmp_path):
    """Although threads of the service work by then."""
    keys, port = str(tmp_path / "keys"), str(free_port())
    options = ("--device", "cpu", "--port", port, "--api-key-file", keys)
    with program("app.py", "--checkpoint", str(tiny_checkpoint), *options) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert error.count("\n") == 1 and "--api-key-file" in error


def test_a_taken_port_is_told_before_anything_is_loaded(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["app.py", "--checkpoint", str(tmp_path), "--port", port]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match=f"Port {port} is taken; give another"):
            run()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_a_start_that_is_broken_off_ends_without_a_traceback():
    terminal, process_end = os.openpty()
    own = {"stdin": None, "stdout": process_end, "stderr": process_end}
    with (
        open(terminal, "rb") as said,
        program("app.py", "--port", str(free_port()), **own) as start,
    ):
        os.close(process_end)
        assert said.readline() == b"Loading nano.\r\n"
        start.send_signal(signals.SIGINT)
        assert start.wait(timeout=120) == 130
        with contextlib.suppress(OSError):  # Linux says so that nobody is left to write
            assert said.read() == b""


def test_a_signal_lets_the_open_reply_end_and_leaves_no_sound(tiny_checkpoint, tmp_path):
    """SIGTERM; that Ctrl+C ends it, too, is tried where there are no signals of Unix."""
    port = str(free_port())
    options = ("--device", "cpu", "--port", port, "--drain-s", "1")
    command = ("app.py", "--checkpoint", str(tiny_checkpoint), *options)
    with program(*command, env=with_folder(tmp_path)) as process:
        line = process.stdout.readline()
        assert f"127.0.0.1:{port}" in line and "tiny-random" in line
        client = Client(f"http://127.0.0.1:{port}", verbose=False)
        job = client.submit(" ".join(["Hello world and you."] * 150), api_name="/stream")
        assert until(lambda: len(job.outputs()) > 3)
        process.send_signal(signals.SIGTERM)
        assert until(job.done) and job.outputs()[-1]["end"]
        assert process.wait(timeout=120) == 0
        assert not list(tmp_path.glob("moss-speech-*"))
        client.close()


def test_proxies_and_what_others_do_with_gradio_do_not_keep_the_page_from_starting(
    tiny_checkpoint, tmp_path
):
    odd = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks://127.0.0.1:9/"}
    odd |= {"no_proxy": "[::1]", "GRADIO_DEBUG": "1", "TMPDIR": str(tmp_path)}
    odd["GRADIO_NUM_WORKERS"] = "many"
    (tmp_path / "gradio").touch()  # as a folder of another user, who is root may write there
    options = ("--device", "cpu", "--port", str(free_port()))
    command = ("app.py", "--checkpoint", str(tiny_checkpoint), *options)
    with program(*command, env={**os.environ, **odd}) as process:
        assert process.stdout.readline().startswith("Serving tiny-random"), process.stderr.read()


def test_a_public_link_by_socks_is_refused(monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    with pytest.raises(ConfigError, match=r"through a SOCKS proxy.*unset ALL_PROXY"):
        shield_gradio(PageConfig(share=True))


def test_a_public_link_that_cannot_be_made_stops_the_start(monkeypatch):
    def no_tunnel(*_, **__):
        raise RuntimeError("no network")

    monkeypatch.setattr("gradio.networking.setup_tunnel", no_tunnel)
    port = free_port()
    with pytest.raises(ConfigError, match=r"No public link could be made.*omit --share"):
        launch(FakeService(), PageConfig(port=port, share=True))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host):
    with pytest.raises(ConfigError, match=f"{host} is no address of this machine"):
        launch(FakeService(), PageConfig(host=host, port=free_port()))


def test_a_pool_too_small_to_speak_with_is_refused_at_start():
    service = FakeService(
        Script(error=ContextError("The conversation needs 18 rows.")), replace(INFO, kv_rows=64)
    )
    with pytest.raises(
        ConfigError, match="--kv-rows 64 is too small to speak with; give 1024 or more"
    ):
        launch(service, PageConfig(port=free_port()))


# By https and wss.

MAKE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN=localhost"
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
NO_OPENSSL = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    out = ["-nodes", "-keyout", str(key), "-out", str(cert), "-addext", NAMES]
    subprocess.run([*MAKE.split(), *out], check=True, capture_output=True)
    return cert, key


@NO_OPENSSL
def test_page_and_programs_are_served_by_https(files):
    cert, key = files
    port = free_port()
    page = launch(FakeService(), PageConfig(port=port, tls_cert=cert, tls_key=key), model="tiny")
    try:
        assert page.local_url == f"https://127.0.0.1:{port}/"
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=page.local_url, verify=trusted) as http:
            assert http.get("/").status_code == 200
            assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"
            asked = {"model": "tts-1", "voice": "alloy", "input": "Hello."}
            assert http.post("/v1/audio/speech", json=asked).status_code == 200
        with websockets.sync.client.connect(
            f"wss://127.0.0.1:{port}/v1/realtime?model=gpt-realtime", ssl=trusted, open_timeout=60
        ) as socket:
            assert json.loads(socket.recv(timeout=20))["type"] == "session.created"
    finally:
        page.close(verbose=False)


@NO_OPENSSL
def test_what_is_no_certificate_is_refused(files, tmp_path):
    cert, key = files
    with pytest.raises(ConfigError, match="belong together; give both"):
        PageConfig(tls_cert=cert)
    with pytest.raises(ConfigError, match="omit --tls-cert"):
        PageConfig(tls_cert=cert, tls_key=key, share=True)
    for wrong in (cert, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="no certificate and its key"):
            launch(FakeService(), PageConfig(port=free_port(), tls_cert=cert, tls_key=wrong))


# Without the modules, signals and user numbers that Windows has not.

PROGRAM = """
import importlib, os, pkgutil, signal, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
del os.getuid, signal.SIGHUP, signal.SIGQUIT
import app, moss_engine.ui
for module in pkgutil.walk_packages(moss_engine.ui.__path__, "moss_engine.ui."):
    importlib.import_module(module.name)
app.page()
"""
WINDOWS_PATIENCE_S = 240.0


def test_the_page_is_served_speaks_and_ends(tmp_path):
    port = free_port()
    command = ("-c", PROGRAM, "--port", str(port), "--drain-s", "1")
    with program(*command, env=with_folder(tmp_path)) as process:
        told = process.stdout.readline()
        assert told.startswith("Serving "), process.communicate()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WINDOWS_PATIENCE_S) as http:
            assert "MOSS-Speech Live" in http.get("/").text
            asked = http.post("/gradio_api/call/reply", json={"data": ["It speaks."]}).json()
            reply = http.get(f"/gradio_api/call/reply/{asked['event_id']}").text
        assert "event: complete" in reply and ".wav" in reply
        process.send_signal(signals.SIGINT)
        assert process.wait(WINDOWS_PATIENCE_S) == 0
        assert not list(tmp_path.glob("moss-speech-*")), "visitors' sound is still there"


# The folder for visitors' sound, and a start that is broken off.

HOLD = """
import sys
from moss_engine.ui.entrance.process import make_cache
folder = make_cache()
(folder / "sound.wav").write_bytes(b"RIFF")
print(folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_is_removed_at_the_next_start_and_nothing_of_others(temporary):
    for name in ("moss-speech-mine", "other"):
        (temporary / name).mkdir()
    with program("-c", HOLD, env=with_folder(temporary)) as process:
        folder = process.stdout.readline().strip()
        process_of.remove_left_behind(temporary)
        assert os.listdir(folder), "it is in use"
    assert os.listdir(folder), "it was killed"
    process_of.remove_left_behind(temporary)
    assert sorted(os.listdir(temporary)) == ["moss-speech-mine", "other"]


def test_sound_that_has_grown_old_is_removed_whoever_made_it(tmp_path):
    for name, age_s in (("old", 1900), ("new", 10)):
        path = write_clip(tmp_path / name, np.ones(100, np.int16), 24_000).path
        os.utime(path.parent, (time.time() - age_s,) * 2)
        process_of.remove_old(tmp_path / name, 1800.0)
        assert path.exists() == (name == "new")


def test_without_a_place_for_files_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="TMPDIR"):
        process_of.make_cache()


@pytest.mark.parametrize("fault", [None, ImportError("partially initialised")])
def test_an_interrupt_that_a_library_takes_for_a_fault_ends_the_start(fault):
    before, reached = signals.getsignal(signals.SIGINT), []

    def start() -> None:
        with breakable() as check:
            check()
            with contextlib.suppress(KeyboardInterrupt):
                signals.raise_signal(signals.SIGINT)
            reached.append("behind the press")
            if fault:
                raise fault
            check()
            reached.append("behind the check")

    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == BROKEN_OFF and reached == ["behind the press"]
    assert signals.getsignal(signals.SIGINT) is before


STAYING = """
import os, signal
from moss_engine.serve import keep_nohup
from moss_engine.ui.entrance.process import breakable
keep_nohup()
with breakable():
    os.kill(os.getpid(), signal.SIGHUP)
"""


@pytest.mark.skipif(not hasattr(signals, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize(("handler", "code"), [(signals.SIG_IGN, 0), (signals.SIG_DFL, 129)])
def test_who_logs_out_ends_it_but_for_nohup(handler, code):
    def like_nohup() -> None:
        signals.pthread_sigmask(signals.SIG_UNBLOCK, {signals.SIGHUP})
        signals.signal(signals.SIGHUP, handler)

    with program("-c", STAYING, preexec_fn=like_nohup) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == code, error


STARTING = """
import os, signal
from moss_engine.ui.entrance.process import breakable, make_cache
with breakable():
    print(make_cache(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_before_anybody_waits_for_it_leaves_no_folder(temporary):
    with program("-c", STARTING, env=with_folder(temporary)) as process:
        folder, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signals.SIGTERM
    assert not os.path.exists(folder.strip())
