"""The program on Windows, as far as another system can tell: without the modules, signals and user
numbers that Windows has not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.ui.page_support import free_port

CHECKOUT = Path(__file__).parents[2]
PROGRAM = """
import importlib, os, pkgutil, signal, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
del os.getuid, signal.SIGHUP, signal.SIGQUIT
import app, moss_engine.ui
for module in pkgutil.walk_packages(moss_engine.ui.__path__, "moss_engine.ui."):
    importlib.import_module(module.name)
app.run()
"""
PATIENCE_S = 240.0


def test_the_page_is_served_speaks_and_ends(tmp_path):
    port = free_port()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--port", str(port), "--drain-s", "1"],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = program.stdout.readline()
        assert told.startswith("Serving "), program.communicate()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            assert "MOSS-Speech Live" in http.get("/").text
            asked = http.post("/gradio_api/call/reply", json={"data": ["It speaks."]}).json()
            reply = http.get(f"/gradio_api/call/reply/{asked['event_id']}").text
        assert "event: complete" in reply and ".wav" in reply
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 0
        assert not list(tmp_path.glob("moss-speech-*")), "visitors' sound is still there"
    finally:
        program.kill()
        program.communicate()
