"""POST /v1/audio/transcriptions, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import io
from dataclasses import replace

import httpx
import openai
import pytest

from moss_engine.audio.pcm import to_pcm16, write_wav
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import INFO, FakeService, signal


@pytest.fixture(scope="module")
def url():
    with running(FakeService(info=replace(INFO, recogniser="scripted"))) as url:
        yield url


@pytest.fixture(scope="module")
def recording() -> bytes:
    file = io.BytesIO()
    write_wav(file, to_pcm16(signal(1.0)), 24_000)
    return file.getvalue()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_recording_becomes_its_words(client, recording):
    answer = client.audio.transcriptions.create(model=MODEL, file=("a.wav", recording))
    assert answer.text == "What time is it?" and answer.usage.seconds == 1.0
    text = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", recording), response_format="text"
    )
    assert text.strip() == "What time is it?"


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({"model": "whisper"}, True, "model"),
        ({}, True, "model"),
        ({"model": MODEL}, False, "file"),
        ({"model": MODEL, "response_format": "srt"}, True, "response_format"),
        ({"model": MODEL, "prompt": "Names."}, True, "prompt"),
        ({"model": MODEL, "stream": "true"}, True, "stream"),
        ({"model": MODEL, "language": "de"}, True, "language"),
    ],
)
def test_what_is_wrong_is_named(url, recording, fields, files, param):
    sent = {"file": ("a.wav", recording)} if files else {"other": ("a.wav", b"x")}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data=fields, files=sent)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"junk", "multipart/form-data"),
        (b"{}", "application/json"),
    ],
)
def test_forms_that_are_none_are_refused(url, content, kind):
    answer = httpx.post(
        f"{url}/v1/audio/transcriptions", content=content, headers={"content-type": kind}
    )
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_file_that_is_no_sound_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="no audio file that can be read"):
        client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"not a sound"))
