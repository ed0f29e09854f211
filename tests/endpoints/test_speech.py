"""POST /v1/audio/speech, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest
import soundfile

from moss_engine.api.errors import BusyError, EngineFaultError, TextTooLongError
from moss_engine.audio.pcm import to_pcm16
from moss_engine.endpoints.replies import Streamed
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import INFO, RATE_HZ, FakeService, Script, signal, until

FORMATS = ("wav", "pcm", "mp3", "opus", "flac")
ASKED = {"model": MODEL, "input": "Good morning to you.", "voice": "default"}
SEED = {"seed": 7}


def sent(service) -> np.ndarray:
    return to_pcm16(signal(service.script.seconds, seed=7))


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """Read in blocks: a stream does not know its length."""
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        file.seekable = lambda: False  # libsndfile cannot, in a FLAC file of unknown length
        blocks = []
        while len(block := file.read(1 << 14, dtype="int16")):
            blocks.append(block)
        return np.concatenate(blocks), file.samplerate


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_files_hold_the_same_samples(client, service, name):
    answer = client.audio.speech.create(**ASKED, response_format=name, extra_body=SEED)
    assert answer.response.headers["content-type"] == f"audio/{name}"
    pcm, rate_hz = decoded(answer.content)
    assert rate_hz == RATE_HZ and np.array_equal(pcm, sent(service))


def test_a_streamed_wav_file_says_that_its_length_is_unknown(client):
    data = client.audio.speech.create(**ASKED, response_format="wav").content
    sizes = struct.unpack("<I", data[4:8]), struct.unpack("<I", data[40:44])
    assert sizes == ((0xFFFFFFFF,), (0xFFFFFFFF,)) and data[36:40] == b"data"


@pytest.mark.parametrize(("name", "kind"), [("mp3", "audio/mpeg"), ("opus", "audio/ogg")])
def test_packed_files_sound_alike(client, service, name, kind):
    answer = client.audio.speech.create(**ASKED, response_format=name, extra_body=SEED)
    assert answer.response.headers["content-type"] == kind
    pcm, rate_hz = decoded(answer.content)
    wave = sent(service).astype(float)
    assert rate_hz == RATE_HZ and len(wave) <= len(pcm) <= len(wave) + 3000
    shifts = [np.corrcoef(wave, np.resize(pcm[shift:], len(wave)))[0, 1] for shift in range(2400)]
    assert max(shifts) > 0.95


@pytest.mark.parametrize("name", ["wav", "pcm", "flac", "mp3", "opus"])
def test_bytes_leave_while_the_reply_is_made(client, service, name):
    service.script = Script(seconds=20.0, rtf=0.5)
    asked = {**ASKED, "response_format": name}
    with client.audio.speech.with_streaming_response.create(**asked) as answer:
        got = 0
        for part in answer.iter_bytes():
            got += len(part)
            if got > 1000:
                break
    assert until(lambda: not service.open)
    assert len(service.cancelled) == 1  # it was not over


@pytest.mark.parametrize("rounds", range(8))
async def test_hanging_up_is_heard_whatever_is_being_sent(rounds):
    """After so many rounds of the event loop, of which a part takes several."""
    gone, taken = asyncio.Event(), []

    async def parts():
        for number in range(1000):
            await asyncio.sleep(0)
            taken.append(number)
            yield b"sound"

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        """As to a socket with room."""

    serving = asyncio.create_task(Streamed(parts(), "audio/pcm")({}, receive, send))
    for _ in range(20 + rounds):
        await asyncio.sleep(0)
    gone.set()
    await serving
    assert 0 < len(taken) < 100


def test_events_carry_the_file_and_the_usage(client, service, url):
    body = {**ASKED, "response_format": "pcm", "stream_format": "sse", **SEED}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert np.array_equal(np.frombuffer(data, "<i2"), sent(service))
    assert events[-1]["type"] == "speech.audio.done"
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


def test_the_fields_reach_the_service(client, service):
    client.audio.speech.create(**ASKED, extra_body={"seed": 3, "mode": "chat"})
    request = service.requests[-1]
    assert (request.voice, request.mode) == ("default", "chat")
    assert request.sampling.seed == 3 and request.messages[0].content.text == ASKED["input"]


def test_null_is_a_field_that_was_left_out(url, service):
    optional = ("voice", "speed", "response_format", "stream_format", "seed", "mode", "anyway")
    answer = httpx.post(f"{url}/v1/audio/speech", json={**ASKED, **dict.fromkeys(optional)})
    assert answer.status_code == 200 and answer.headers["content-type"] == "audio/mpeg"
    assert service.requests[-1].speed == 1.0 and "x-moss-ignored" not in answer.headers


def test_a_voice_takes_the_nearest_of_its_speeds():
    info = replace(INFO, speeds=(0.7, 1.5))
    with running(service := FakeService(Script(seconds=0.2), info)) as url:
        for speed, used in ((0.25, "0.7"), (1.25, None), (4, "1.5")):
            answer = httpx.post(f"{url}/v1/audio/speech", json={**ASKED, "speed": speed})
            said = answer.headers.get("x-moss-ignored")
            assert said == (used and f"speed;used={used}")
            assert service.requests[-1].speed == float(used or speed)


def test_what_has_no_effect_is_taken_and_named(url):
    """OpenAI's own snippet, and what their agents' pipeline sends."""
    for stream_format in ("audio", "sse"):
        body = {**ASKED, "instructions": "Speak cheerfully.", "stream_format": stream_format}
        answer = httpx.post(f"{url}/v1/audio/speech", json=body)
        assert (answer.status_code, answer.headers["x-moss-ignored"]) == (200, "instructions")


def test_without_a_seed_every_reply_has_its_own(client, service):
    for seed in (None, None, -1, -1):
        client.audio.speech.create(**ASKED, extra_body={"seed": seed})
    assert len({request.sampling.seed for request in service.requests}) == 4


@pytest.mark.parametrize(
    ("raised", "kind", "status", "retry"),
    [
        (TextTooLongError("Too long; send less."), openai.APIStatusError, 413, None),
        (BusyError("All places are taken; try again."), openai.InternalServerError, 503, "2"),
        (EngineFaultError("It failed; start again."), openai.InternalServerError, 500, None),
    ],
)
def test_the_service_s_refusals_keep_their_sentence(client, service, raised, kind, status, retry):
    service.script = Script(error=raised)
    with pytest.raises(kind, match=str(raised)) as caught:
        client.audio.speech.create(**ASKED)
    assert caught.value.status_code == status and caught.value.code == raised.code
    assert caught.value.response.headers.get("retry-after") == retry


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b'{"model": "m", "input": "x", "speed": NaN}', "application/json", "invalid_value"),
        (b"[" * 5000, "application/json", "invalid_json"),
        (b"[]", "application/json", "invalid_value"),
        (b"\xff\xfe", "application/json", "invalid_json"),
        (b"{}", "text/plain", "content_type"),
        (b'{"input": "' + b"x" * (1 << 18) + b'"}', "application/json", "body_too_large"),
    ],
)
def test_bodies_that_are_none_are_refused(url, body, kind, code):
    answer = httpx.post(f"{url}/v1/audio/speech", content=body, headers={"content-type": kind})
    assert answer.json()["error"]["code"] == code
    assert answer.status_code == (413 if code == "body_too_large" else 400)


def test_models_and_voices_are_listed(client, url):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError, match="ask for 'scripted'"):
        client.models.retrieve("gpt-image-1")
    listed = httpx.get(f"{url}/v1/audio/voices").json()
    voices = listed["data"]
    assert listed["voices"] == voices
    assert [voice["id"] for voice in voices] == ["default"] and voices[0]["default"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_reply_without_sound_is_no_file(url, service, name):
    service.script = Script(seconds=0.0)
    answer = httpx.post(f"{url}/v1/audio/speech", json={**ASKED, "response_format": name})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "The reply has no sound; ask again."
