"""The endpoints for programs on the page's own port: behind its guard, in front of its service."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets.exceptions
import websockets.sync.client
from gradio_client import Client

from moss_engine.api.events import AudioChunk
from moss_engine.api.service import request_of, stream
from moss_engine.audio.pcm import to_pcm16
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.say import choose_mode
from moss_engine.ui.config import PageConfig
from moss_engine.ui.programs import access_of
from moss_engine.ui.server import launch
from tests.ui.page_support import engine_stats, free_port, until

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


async def said(service, seed: int) -> np.ndarray:
    """What `moss-say` writes into its file."""
    from moss_engine.api.request import Text

    info = await service.describe()
    mode = choose_mode(info, None, hears=False, speaks=True)
    request = request_of(info, Text(TEXT), "say", mode=mode.name, seed=seed)
    events = [event async for event in stream(service, request)]
    return to_pcm16(np.concatenate([e.samples for e in events if isinstance(e, AudioChunk)]))


def test_pcm_is_what_say_writes_sample_by_sample(real):
    service, url = real
    body = {"model": "nano", "input": TEXT, "response_format": "pcm", "seed": 5}
    answer = httpx.post(f"{url}/audio/speech", json=body, timeout=60)
    assert answer.status_code == 200
    assert np.array_equal(np.frombuffer(answer.content, "<i2"), asyncio.run(said(service, 5)))


def test_hanging_up_frees_every_block(real):
    service, url = real
    body = {"model": "nano", "input": "Hello world and you. " * 100, "response_format": "pcm"}
    with httpx.stream("POST", f"{url}/audio/speech", json=body, timeout=60) as answer:
        parts = answer.iter_raw()
        next(parts)
        assert engine_stats(service).blocks_used > 0
    assert until(lambda: engine_stats(service).blocks_used == 0)
    assert engine_stats(service).leaked_blocks == 0


def test_the_guard_stands_in_front(real):
    _, url = real
    answer = httpx.get(f"{url}/models", headers={"Host": "rebound.example"})
    assert answer.status_code == 403
    answer = httpx.get(f"{url}/models")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert [model["id"] for model in answer.json()["data"]] == ["nano"]


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


def test_there_are_lines_and_programs():
    assert len(LINES) > 2 and len(PROGRAMS) > 3
