"""docs/api.md: every curl line and every program of it is run, in front of the real service."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from gradio_client import Client

from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.ui.page_support import free_port

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
# Transcriptions need a recogniser, which the tiny checkpoint of this test is not given.
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.startswith("curl ") and "transcriptions" not in line
]
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def real(tiny_checkpoint):
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    service.start()
    port = free_port()
    page = launch(service, PageConfig(port=port, mcp=True), model="nano")
    yield port, asyncio.run(service.describe()).voices[0]
    page.close(verbose=False)
    service.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", LINES)
def test_curl_lines_work_as_they_stand(real, line, tmp_path):
    port, voice = real
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
    port, voice = real
    monkeypatch.chdir(tmp_path)
    exec(program.replace(":7860", f":{port}").replace('"ada"', f'"{voice}"'), {})
    out = capsys.readouterr().out
    written = [path for path in tmp_path.iterdir() if path.stat().st_size > 1000]
    assert written or "response.done" in out or Path(out.split()[-1]).stat().st_size > 1000


def test_the_readme_s_call_gives_a_file(real):
    port, _ = real
    (call,) = re.findall(r"`(Client\(.*?\)\.predict\(.*?\))`", README)
    path = eval(call.replace(":7860", f":{port}"), {"Client": Client})
    assert Path(path).read_bytes()[:4] == b"RIFF"


def test_there_are_lines_and_programs():
    assert len(LINES) > 2 and len(PROGRAMS) > 3
