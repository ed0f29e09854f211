"""The page before networks of the published layout: tiny ones, that say noise, in the real service,
with a recogniser beside them (--transcribe)."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import AudioChunk
from moss_engine.api.request import Speech
from moss_engine.api.service import stream
from moss_engine.audio.pcm import to_pcm16
from moss_engine.build import build_service, build_talking_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.service.service_support import at_once
from tests.ui.page_support import free_port, until

pytest.importorskip("onnxruntime", reason="voices are made with onnxruntime")
pytest.importorskip("moonshine_voice", reason="the recogniser that listens beside the checkpoint")
QUESTION = Path(__file__).resolve().parents[2] / "assets" / "samples" / "good_morning.flac"
SPOKEN = {"mode": "speech-to-speech", "new_seed": False, "seed": 3, "max_rows": 60}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tests.fixtures.make_tiny_moss import make_tiny_moss

    folder = tmp_path_factory.mktemp("moss")
    make_tiny_moss(folder)
    config = PageConfig(port=free_port(), own_voice=True)
    model = EngineConfig(
        checkpoint=folder / "model", codec=folder / "codec", device="cpu", kv_rows=4096
    )
    service = build_talking_service(model, TalkConfig(transcribe=True), clones_voices=True)
    service.requests, submit = [], service.submit
    service.submit = lambda request: service.requests.append(request) or submit(request)
    service.start()
    page = launch(service, config)
    yield service, f"http://127.0.0.1:{config.port}"
    page.close(verbose=False)
    service.close()


@pytest.fixture
def service(served):
    served[0].requests.clear()
    return served[0]


@pytest.fixture
def url(served):
    return served[1]


@pytest.fixture
def client(url):
    client = Client(url, verbose=False)
    yield client
    client.close()


async def direct(service, request) -> np.ndarray:
    """int16 of the same request without a page between."""
    again = dataclasses.replace(request, request_id="direct", session_id="direct")
    chunks = [
        event.samples async for event in stream(service, again) if isinstance(event, AudioChunk)
    ]
    return to_pcm16(np.concatenate(chunks))


def upload(url: str) -> str:
    answer = httpx.post(f"{url}/gradio_api/hear", content=QUESTION.read_bytes(), timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["utterance"]


def test_a_program_asks_by_voice_and_hears_the_answer(service, url, client):
    job = client.submit(**SPOKEN, utterance=upload(url), api_name="/stream")
    job.result(timeout=60)
    outputs = job.outputs()
    assert outputs[-1]["state"] in ("done", "length")
    content = service.requests[0].messages[-1].content
    assert isinstance(content, Speech) and len(content.codes) > 40
    assert content.transcript.text.lower().startswith("good morning"), "nobody listens beside it"
    pcm = b"".join(base64.b64decode(message["pcm"]) for message in outputs)
    own = asyncio.run(direct(service, service.requests[0]))
    assert np.array_equal(np.frombuffer(pcm, "<i2"), own)
    assert at_once(service.stats()).engine.blocks_used == 0


def test_an_own_voice_is_for_this_machine_and_this_codec():
    for change in ({"share": True}, {"host": "0.0.0.0"}):
        with pytest.raises(ConfigError, match="this machine alone"):
            PageConfig(own_voice=True, **change)


def test_a_codec_of_one_voice_takes_no_other(tiny_checkpoint):
    with pytest.raises(ConfigError, match="MOSS-Speech codec"):
        build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"), clones_voices=True)


@pytest.fixture
def tab(visit, url):
    tab = visit(url, permissions=["microphone"])
    tab.page.wait_for_function("document.body.dataset.input === 'speech'")  # talking comes first
    return tab


def test_the_system_turn_of_each_mode_is_shown_and_may_be_replaced(service, tab):
    tab.page.locator("#settings summary").click()
    system = tab.page.locator("#system textarea")
    assert until(lambda: system.get_attribute("placeholder").endswith("with spoken responses."))
    tab.choose("Type, read the answer")
    assert until(lambda: system.get_attribute("placeholder").endswith("with text."))
    system.fill("Answer in one word.")
    tab.hear("Why?")
    assert [message.role for message in service.requests[0].messages] == ["system", "user"]
    assert service.requests[0].messages[0].content.text == "Answer in one word."


def test_an_own_voice_needs_consent_and_ends_with_the_visit(service, tab):
    tab.page.locator("#settings summary").click()
    tab.page.wait_for_selector(".vs-record")
    assert all(tab.page.locator(button).is_disabled() for button in (".vs-record", ".vs-file"))
    tab.page.locator("#consent input").check()
    tab.page.locator(".vs-input").set_input_files(QUESTION)
    assert until(lambda: len(service._below.codec.voices) == 2)
    own = service._below.codec.voices[1]
    chosen = tab.page.locator("#voice label:has(:checked)")
    assert until(lambda: chosen.inner_text().strip() == "Your voice")
    assert service.requests == [], "the sample was taken for a question"
    tab.record(0.6)
    tab.wait("speaking")
    assert service.requests[-1].voice == own
    tab.page.keyboard.press("Escape")
    tab.wait("stopped", "done")
    tab.page.locator("#clear").click()
    tab.record(0.6)
    assert until(lambda: len(service.requests) == 2) and service.requests[-1].voice == own
    tab.page.locator(".vs-record").click()
    tab.page.wait_for_function("recorder.state === 'recording' && recorder.seconds > 1.2")
    assert tab.page.locator(".rec-state").inner_text() == "Recording your voice"
    assert tab.page.locator(".rec-talk").get_attribute("aria-pressed") == "false"
    assert tab.page.locator(".vs-record").inner_text() == "Stop"
    tab.page.locator(".vs-record").click()
    assert until(
        lambda: own not in service._below.codec.voices and len(service._below.codec.voices) == 2
    )
    assert len(service.requests) == 2 and tab.problems == []
    tab.page.close()
    assert until(lambda: service._below.codec.voices == ("tiny",)), "a voice outlived its visit"
