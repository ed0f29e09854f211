"""--tls-cert and --tls-key: the page and its programs by https and wss, as clients require that
speak to nothing else."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess

import httpx
import pytest
import websockets.sync.client

from moss_engine.api.errors import ConfigError
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.ui.page_support import FakeService, free_port

MAKE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN=localhost"
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    out = ["-nodes", "-keyout", str(key), "-out", str(cert), "-addext", NAMES]
    subprocess.run([*MAKE.split(), *out], check=True, capture_output=True)
    return cert, key


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
            f"wss://127.0.0.1:{port}/v1/realtime?model=gpt-realtime", ssl=trusted
        ) as socket:
            assert json.loads(socket.recv(timeout=20))["type"] == "session.created"
    finally:
        page.close(verbose=False)


def test_what_is_no_certificate_is_refused(files, tmp_path):
    cert, key = files
    with pytest.raises(ConfigError, match="belong together; give both"):
        PageConfig(tls_cert=cert)
    with pytest.raises(ConfigError, match="omit --tls-cert"):
        PageConfig(tls_cert=cert, tls_key=key, share=True)
    for wrong in (cert, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="no certificate and its key"):
            launch(FakeService(), PageConfig(port=free_port(), tls_cert=cert, tls_key=wrong))
